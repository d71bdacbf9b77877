"""Fabrics that are made of a strategy which shards nothing, whatever a function is given as one."""

from __future__ import annotations

import ast
import functools
import re
import textwrap
from typing import TYPE_CHECKING, Final

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.python.argument_places import named_arguments


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_OTHERS: Final = frozenset(
    {"DDPStrategy", "DataParallelStrategy", "DeepSpeedStrategy", "SingleDeviceStrategy"}
    | {"SingleDeviceXLAStrategy", "XLAStrategy"}
)
"""Lightning's own strategies that shard by no FSDP; a project's may derive from FSDP's."""
# A project's own, as its name says: of one device.
_OF_ONE: Final = re.compile(r"^Single\w*Strategy$")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def shards_nothing(given: Mapping[str, str]) -> bool:
    """Tell whether a Fabric is given another strategy by its word, or one device and none.

    Without a strategy ``fabric run --strategy`` may choose one.

    Example:
        >>> [shards_nothing(each) for each in ({"devices": "1"}, {"devices": "2"}, {"strategy": "'ddp'"})]
        [True, False, True]
    """
    strategy = given.get("strategy", "'auto'")
    if strategy in {"'auto'", '"auto"'}:
        return given.get("devices") == "1" and "num_nodes" not in given
    return _is_others(ast.parse(f"({strategy})", mode="eval").body)


@functools.lru_cache(maxsize=64)
def makes_plain(text: str, owner: str) -> bool:
    r"""Tell whether each Fabric of a name is made of other strategies, in the text of a function or a class.

    Example:
        >>> text = "def run(strategy):\n  {}\n  fabric = Fabric(strategy=strategy)"
        >>> [makes_plain(text.format(each), "fabric") for each in ("pass", "strategy = 'ddp'")]
        [False, True]
    """
    try:
        tree = parse_any(textwrap.dedent(text))
    except SyntaxError:
        return False
    made = list(_made(tree, owner))
    return bool(made) and all(_is_plain(function, line) for function, line in made)


def _made(tree: ast.AST, owner: str) -> Iterator[tuple[ast.AST, ast.Assign]]:
    """Yield the lines that give a name a value, with the functions that they stand in."""
    for function in (each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)):
        for line in ast.walk(function):
            if isinstance(line, ast.Assign) and owner in map(ast.unparse, line.targets):
                yield function, line


def _is_plain(function: ast.AST, line: ast.Assign) -> bool:
    call = line.value
    if not isinstance(call, ast.Call) or call.args or any(each.arg is None for each in call.keywords):
        return False
    if ast.unparse(call.func).split(".")[-1] != "Fabric":
        return False
    given = named_arguments(call)
    if shards_nothing({name: ast.unparse(value) for name, value in given.items()}):
        return True
    name = given.get("strategy")
    values = _values(function, line, name.id) if isinstance(name, ast.Name) else None
    others = [each for each in values or () if not _is_auto(each)]
    return bool(others) and all(map(_is_others, others))


def _values(function: ast.AST, line: ast.stmt, name: str) -> list[ast.expr] | None:
    """Return what a name may hold at a line, if the function gives it a value above in any case."""
    block = next((each for each in _blocks(function) if line in each), None)
    while block is not None:
        found = _last_in(block[: block.index(line)], name)
        if found is None or found:
            return found
        line = next(
            (each for each in ast.walk(function) if isinstance(each, ast.stmt) and block in _own(each)), line
        )
        block = next((each for each in _blocks(function) if line in each and each is not block), None)
    return None


def _last_in(lines: list[ast.stmt], name: str) -> list[ast.expr] | None:
    """Return the last values that lines give a name, which may be none; None where that is unclear."""
    for line in reversed(lines):
        if isinstance(line, ast.Assign) and name in map(ast.unparse, line.targets):
            return [line.value]
        if isinstance(line, ast.If) and line.orelse and _binds(line, name):
            sides = [_last_in(each, name) for each in (line.body, line.orelse)]
            return [v for side in sides for v in side or ()] if all(sides) else None
        if _binds(line, name):
            return None
    return []


def _binds(line: ast.stmt, name: str) -> bool:
    stores = (each for each in ast.walk(line) if isinstance(each, ast.Name) and each.id == name)
    return any(not isinstance(each.ctx, ast.Load) for each in stores)


def _blocks(function: ast.AST) -> Iterator[list[ast.stmt]]:
    yield from (block for each in ast.walk(function) for block in _own(each))


def _own(node: ast.AST) -> list[list[ast.stmt]]:
    blocks = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
    return [each for each in blocks if isinstance(each, list) and each]


def _is_auto(strategy: ast.expr) -> bool:
    return isinstance(strategy, ast.Constant) and strategy.value == "auto"


def _is_others(strategy: ast.expr) -> bool:
    """Tell whether a strategy is another's than FSDP's, whichever of several is chosen."""
    if isinstance(strategy, ast.IfExp):
        return _is_others(strategy.body) and _is_others(strategy.orelse)
    if isinstance(strategy, ast.Call):
        name = ast.unparse(strategy.func).split(".")[-1]
        return name in _OTHERS or _OF_ONE.match(name) is not None
    return isinstance(strategy, ast.Constant) and "fsdp" not in str(strategy.value)
