"""Lines at which a model is no sharded one: before it is sharded, and where it is summoned whole."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
_DIMENSIONS: Final = re.compile(r"\.(?:ndim|dim\(\))\s*(?:<|>|>=|<=|==)\s*[12]\b")
_WRAPS: Final = re.compile(r"\b(?:FSDP|FullyShardedDataParallel|fully_shard|prepare_fully_shard)\(")
_PARAMETERS: Final = frozenset({"modules", "named_modules", "named_parameters", "parameters"})
_SUMMONS: Final = "summon_full_params"
_MOST: Final = 3
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Tree:
    """A source, and the names of functions that shard what they are given."""

    root: ast.Module
    shards: frozenset[str] = _SHARDS


def copied_shards(sight: Sight) -> str:
    """Return where a model is copied that may be sharded: not in a function that shards it below only."""
    return listed(_places(sight, _COPIES, _is_copied_before), _MOST)


def goes_beside(sight: Sight) -> str:
    """Return where a sharded model's parameters are gone through beside others, not summoned whole."""
    near = type(sight)(sources={path: text for path, text in sight.sources.items() if _SHARDED.search(text)})
    return listed(_places(near, _SIDE_BY_SIDE, _is_summoned), _MOST)


def asked_dimensions(sight: Sight) -> str:
    """Return where parameters are told apart by their dimensions, not before their model is sharded."""
    near = type(sight)(sources={path: text for path, text in sight.sources.items() if _WRAPS.search(text)})
    return listed(_places(near, _DIMENSIONS, _is_asked_before), _MOST)


def _places(sight: Sight, pattern: re.Pattern[str], is_plain: Callable[[int, _Tree], bool]) -> Iterator[str]:
    shards = _SHARDS | set(_own_sharding(sight.sources.values()))
    for path, text in sight.sources.items():
        lines = [
            count for count, line in enumerate(text.splitlines(), 1) if pattern.search(line.partition("#")[0])
        ]
        tree = _Tree(_parsed(text), shards) if lines else _Tree(ast.Module([], []))
        yield from (f"{path}:{line}" for line in lines if not is_plain(line, tree))


def _own_sharding(sources: Iterable[str]) -> Iterator[str]:
    """Yield the project's own functions that shard what they are given."""
    for text in sources:
        for function in ast.walk(_parsed(text)) if _WRAPS.search(text) else ():
            if isinstance(function, _Function):
                given = {each.arg for each in (*function.args.posonlyargs, *function.args.args)}
                calls = (each for each in ast.walk(function) if isinstance(each, ast.Call))
                if any(_last(call) in _SHARDS and given & set(map(ast.unparse, call.args)) for call in calls):
                    yield function.name


def _parsed(text: str) -> ast.Module:
    try:
        return parse_any(text)
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _is_copied_before(line: int, tree: _Tree) -> bool:
    """Tell whether the function of a copy shards what is copied below it, and nowhere above it."""
    calls = [each for each in ast.walk(tree.root) if isinstance(each, ast.Call) and each.lineno == line]
    copied = {ast.unparse(call.args[0]) for call in calls if _last(call) == "deepcopy" and call.args}
    return _is_sharded_below(line, copied, tree)


def _is_asked_before(line: int, tree: _Tree) -> bool:
    """Tell whether whose parameters a line asks is sharded below it, or below the calls of its function."""
    asking = [n for n in ast.walk(tree.root) if isinstance(n, ast.expr | ast.For) and _holds(n, line)]
    loops = {each: set(_gone_through(each.iter)) for each in asking if isinstance(each, ast.For)}
    names = {name for each in asking for name in _gone_through(each)}.union(*loops.values())
    first = min([each.lineno for each, found in loops.items() if found], default=line)
    if not names:  # what was put into a mapping above
        home = _function_around(line, tree.root)
        above = [each for each in ast.walk(home) if isinstance(each, ast.expr) and each.lineno <= line]
        names = {name for each in above for name in _gone_through(each)}
    return _is_sharded_below(first, names, tree) or _is_given_before(line, names, tree)


def _gone_through(node: ast.AST) -> Iterator[str]:
    """Yield the models whose parameters an expression goes through."""
    for each in ast.walk(node) if isinstance(node, ast.expr) else ():
        func = each.func if isinstance(each, ast.Call) else None
        if isinstance(func, ast.Attribute) and func.attr in _PARAMETERS:
            yield ast.unparse(func.value)


def _is_given_before(line: int, names: set[str], tree: _Tree) -> bool:
    """Tell whether a function goes through a model that it is given, and each call gives a plain one."""
    home = _function_around(line, tree.root)
    if not isinstance(home, _Function) or not names:
        return False
    parameters = [each.arg for each in (*home.args.posonlyargs, *home.args.args)]
    calls = [n for n in ast.walk(tree.root) if isinstance(n, ast.Call) and _last(n) == home.name]
    given = [_given(call, parameters) for call in calls]
    return bool(calls) and all(
        names <= each.keys() and _is_sharded_below(call.lineno, {each[name] for name in names}, tree)
        for call, each in zip(calls, given, strict=True)
    )


def _given(call: ast.Call, parameters: Sequence[str]) -> dict[str, str]:
    """Return what a call gives under the names of a function's parameters; a method's first is the object."""
    is_method = parameters[:1] == ["self"]
    given = dict(zip(parameters[is_method:], map(ast.unparse, call.args), strict=False))
    if is_method and isinstance(call.func, ast.Attribute):
        given["self"] = ast.unparse(call.func.value)
    return given | {each.arg: ast.unparse(each.value) for each in call.keywords if each.arg}


def _is_sharded_below(line: int, names: set[str], tree: _Tree) -> bool:
    """Tell whether the function of a line shards one of these below it, and nowhere above it."""
    home = _function_around(line, tree.root)
    loops = [each for each in ast.walk(home) if isinstance(each, ast.For | ast.While) and _holds(each, line)]
    if any(each.lineno < line for each in loops):
        return False
    calls = [each for each in ast.walk(home) if isinstance(each, ast.Call)]
    sharded = [c.lineno for c in calls if _last(c) in tree.shards and names & set(map(ast.unparse, c.args))]
    return bool(sharded) and min(sharded) > line


def _function_around(line: int, tree: ast.Module) -> ast.AST:
    functions = [each for each in ast.walk(tree) if isinstance(each, _Function) and _holds(each, line)]
    return functions[-1] if functions else tree


def _is_summoned(line: int, tree: _Tree) -> bool:
    withs = (each for each in ast.walk(tree.root) if isinstance(each, ast.With) and _holds(each, line))
    return any(_SUMMONS in ast.unparse(item.context_expr) for each in withs for item in each.items)


def _holds(node: ast.AST, line: int) -> bool:
    start, end = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return start is not None and end is not None and start <= line <= end


def _last(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
