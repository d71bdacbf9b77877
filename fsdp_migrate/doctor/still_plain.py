"""Lines at which a model is no sharded one: before it is sharded, and where it is summoned whole."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.doctor.sight import Sight


_COPIES: Final = re.compile(r"\bdeepcopy\(\s*(?:self\.)?(?:model|net|module|student|policy)\b")
_SIDE_BY_SIDE: Final = re.compile(r"\bin\s+zip\([^\n]*\bparameters\(\)[^\n]*\bparameters\(\)")
_SHARDED: Final = re.compile(
    r"\b(?:FSDP|FullyShardedDataParallel|fully_shard|prepare_fully_shard)\(|\b[Aa]ccelerat|\bFabric\b|\bTrainer\b"
)
_SHARDS: Final = frozenset(
    {
        *("FSDP", "FullyShardedDataParallel", "fully_shard", "prepare", "prepare_fully_shard"),
        *("prepare_model", "setup", "setup_module"),
    }
)
_SUMMONS: Final = "summon_full_params"
_MOST: Final = 3
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def copied_shards(sight: Sight) -> str:
    """Return where a model is copied that may be sharded: not in a function that shards it below only."""
    return listed(_places(sight, _COPIES, _is_copied_before), _MOST)


def goes_beside(sight: Sight) -> str:
    """Return where a sharded model's parameters are gone through beside others, not summoned whole."""
    near = type(sight)(sources={path: text for path, text in sight.sources.items() if _SHARDED.search(text)})
    return listed(_places(near, _SIDE_BY_SIDE, _is_summoned), _MOST)


def _places(
    sight: Sight, pattern: re.Pattern[str], is_plain: Callable[[int, ast.Module], bool]
) -> Iterator[str]:
    for path, text in sight.sources.items():
        lines = [
            count for count, line in enumerate(text.splitlines(), 1) if pattern.search(line.partition("#")[0])
        ]
        tree = _parsed(text) if lines else ast.Module([], [])
        yield from (f"{path}:{line}" for line in lines if not is_plain(line, tree))


def _parsed(text: str) -> ast.Module:
    try:
        return parse_any(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _is_copied_before(line: int, tree: ast.Module) -> bool:
    """Tell whether the function of a copy shards what is copied below it, and nowhere above it."""
    around = [each for each in ast.walk(tree) if _holds(each, line)]
    functions = [each for each in around if isinstance(each, _Function)]
    home: ast.AST = functions[-1] if functions else tree
    if any(isinstance(each, ast.For | ast.While) for each in around):
        return False
    calls = [each for each in ast.walk(home) if isinstance(each, ast.Call)]
    copied = {ast.unparse(c.args[0]) for c in calls if c.lineno == line and _last(c) == "deepcopy" and c.args}
    sharded = [c.lineno for c in calls if _last(c) in _SHARDS and copied & set(map(ast.unparse, c.args))]
    return bool(sharded) and min(sharded) > line


def _is_summoned(line: int, tree: ast.Module) -> bool:
    withs = (each for each in ast.walk(tree) if isinstance(each, ast.With) and _holds(each, line))
    return any(_SUMMONS in ast.unparse(item.context_expr) for each in withs for item in each.items)


def _holds(node: ast.AST, line: int) -> bool:
    start, end = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return start is not None and end is not None and start <= line <= end


def _last(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
