"""Whether a source chooses ``NO_SHARD``, whose models have whole parameters at any time, or a hybrid one."""

from __future__ import annotations

import ast
import functools
import re

from fsdp_migrate.newer_syntax import parse_any


_NAME = "NO_SHARD"
# A default, a value or what is compared; not the line of an enum, `HYBRID_SHARD = "HYBRID_SHARD"`.
_HYBRID = re.compile(
    r"(?<!HYBRID_SHARD)(?<!HYBRID_SHARD )(?<!HYBRID_SHARD_ZERO2)(?<!HYBRID_SHARD_ZERO2 )"
    r"=\s*(?:['\"]|\w[\w.]*\.)_?hybrid_shard",
    re.IGNORECASE,
)


def may_choose_hybrid(code: str) -> bool:
    """Tell whether a hybrid strategy is a default, a value or compared with one, so that it may be chosen.

    Example:
        >>> may_choose_hybrid('add("--strategy", default="HYBRID_SHARD")')
        True
        >>> may_choose_hybrid('HYBRID_SHARD = "HYBRID_SHARD"')
        False
    """
    return _HYBRID.search(code) is not None


@functools.lru_cache(maxsize=64)
def chooses_no_shard(code: str) -> bool:
    """Tell whether a value, or an argument for the strategy, is ``NO_SHARD``, at once or by a condition.

    A dict of all strategies, and one that is only compared, says nothing of what is taken.

    Example:
        >>> chooses_no_shard("s = ShardingStrategy.FULL_SHARD if many else ShardingStrategy.NO_SHARD")
        True
        >>> chooses_no_shard("s = {'no': ShardingStrategy.NO_SHARD}[name]")
        False
    """
    if _NAME not in code:
        return False
    try:
        tree = parse_any(code)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return any(_NAME in _names(value) for node in ast.walk(tree) for value in _values(node))


def _values(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        return [node.value]
    if isinstance(node, ast.keyword) and node.arg == "sharding_strategy":
        return [node.value]
    return node.args if isinstance(node, ast.Call) else []


def _names(value: ast.expr) -> set[str]:
    if isinstance(value, ast.IfExp):
        return _names(value.body) | _names(value.orelse)
    if isinstance(value, ast.Attribute):
        return {value.attr}
    return {value.id} if isinstance(value, ast.Name) else set()
