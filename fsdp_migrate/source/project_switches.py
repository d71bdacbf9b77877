"""Where a switch that decides on the wrapping is off, over a project's files.

What a source by itself shows of it stands in :mod:`fsdp_migrate.source.python.switches`.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import libcst as cst

from fsdp_migrate.source.project import Asked, Place, dotted, last_name
from fsdp_migrate.source.python.asked_words import says_off
from fsdp_migrate.source.python.nodes import walk_for
from fsdp_migrate.source.python.switches import STEADY, contradict
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.project import Project, Start


_DEEPEST = 2
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class _Fact(NamedTuple):
    """What is known at a place: that something is true or not, or equals a constant or not."""

    said: tuple[str, str | None, bool]
    test: ast.expr


# What tests of a function say: that is asked as often as a name of a model is met there.
_FACTS: WeakKeyDictionary[ast.AST, dict[tuple[ast.expr, bool], tuple[_Fact, ...]]] = WeakKeyDictionary()
# What is in a function's loops, and in a file's constructors, is asked as often.
_LOOPED: WeakKeyDictionary[ast.AST, frozenset[int]] = WeakKeyDictionary()
_INITS: WeakKeyDictionary[ast.AST, list[tuple[int, frozenset[int]]]] = WeakKeyDictionary()


class Mark(NamedTuple):
    """Where a name is made a model: a statement, the loops around it, and the choices."""

    start: Start
    loops: tuple[ast.AST, ...]
    asked: tuple[Asked, ...]
    is_aside: bool = False
    """Whether another name is bound there, and this one's model is sharded in place."""


def comes_to(project: Project, mark: Mark, place: Place, text: str) -> bool:
    """Tell whether a place in the same function may have what a name was made.

    Args:
        project: The files.
        mark: Where it was.
        place: The place.
        text: The name. An attribute keeps its model until the function runs again.
    """
    shared = [each for each in place.loops if any(each is other for other in mark.loops)]
    anew = [each for each in shared if _binds(each, text)]
    # What a loop binds anew has nothing of the round before, unless a loop within goes round again.
    within = [each for each in shared if each not in anew and _is_within(each, anew)]
    is_below = mark.start < place.start or bool(within) or (bool(shared) and not anew)
    is_kept = "." in text and not place.scope.endswith("__init__")
    if anew and not within and _chose_otherwise(mark.asked, place.asked, anew):
        return False
    return is_below and not _is_excluded(project, mark.asked, place, is_kept=is_kept)


def made_below(place: Place, text: str) -> set[str]:
    """Return the classes of which a loop that binds a name makes it an object at a place, or below it alone.

    In ``for m in net.children(): m = Own(m)`` what the class is given is no ``Own`` of the round before.
    """
    loop = next((each for each in reversed(place.loops) if _binds(each, text)), None)
    made: dict[str, list[Start]] = {}
    for node in ast.walk(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else ():
        call = node.value if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(call, ast.Call) and text in map(dotted, node.targets):
            made.setdefault(last_name(call.func), []).append((node.lineno, node.col_offset))
    over = ast.unparse(loop.iter) if made and isinstance(loop, (ast.For, ast.AsyncFor)) else ""
    is_once = place.loops[-1:] == (loop,)
    return {
        name
        for name, starts in made.items()
        if is_once and name not in over and all(start >= place.start for start in starts)
    }


def _binds(loop: ast.AST, text: str) -> bool:
    """Tell whether each round of a loop gives a name another value."""
    target = loop.target if isinstance(loop, (ast.For, ast.AsyncFor)) else None
    root = text.partition(".")[0]
    return target is not None and any(
        isinstance(each, ast.Name) and each.id == root and isinstance(each.ctx, ast.Store)
        for each in ast.walk(target)
    )


def _is_within(loop: ast.AST, others: Sequence[ast.AST]) -> bool:
    return any(part is loop for other in others for part in ast.walk(other))


def _chose_otherwise(made: Sequence[Asked], asked: Sequence[Asked], loops: Sequence[ast.AST]) -> bool:
    """Tell whether one choice of a round leads to one place or to the other."""
    return any(
        one.choice is other.choice and one.truth is not other.truth and _is_within(one.choice, loops)
        for one in made
        for other in asked
    )


def is_without_fsdp(project: Project, place: Place) -> bool:
    """Tell whether a place is reached only where a switch for FSDP is off: below ``if not use_fsdp:``."""
    function = project.node(place.module, place.scope) or place.module.tree
    return any(
        _says_off(ast.unparse(each.test), truth=each.truth) and _last(place, function, [each.test])
        for each in place.asked
    )


@functools.lru_cache(maxsize=1024)
def _says_off(test: str, *, truth: bool) -> bool:
    """Tell whether a test says so by a switch's name; what is compared, ``mode == "a"``, may be set anew."""
    node = cst.parse_expression(test)
    is_named = not any(walk_for(node, cst.Comparison))
    return is_named and says_off(node, truth=truth, says_all=False)


def is_ruled_out(project: Project, other: Place, place: Place) -> bool:
    """Tell whether one of two places of a function is not run where the other is, as their tests say."""
    is_here = other.module is place.module and other.scope == place.scope
    return is_here and _is_excluded(project, other.asked, place, is_kept=False)


def _is_excluded(project: Project, made: Sequence[Asked], place: Place, *, is_kept: bool) -> bool:
    if not is_kept and any(
        one.choice is other.choice and one.truth is not other.truth and not one.is_in_loop
        for one in made
        for other in place.asked
    ):
        return True
    function = project.node(place.module, place.scope) or place.module.tree
    return any(
        contradict(one.said, other.said)
        and not (is_kept and _asks_what_is_given(one.test))
        and _last(place, function, (one.test, other.test))
        for one in _facts(made, function)
        for other in _facts(place.asked, function)
    )


def chosen(value: ast.expr) -> tuple[Asked, ...]:
    """Return the choice by which a value makes a model: ``FSDP(m) if on else m``."""
    if not isinstance(value, ast.IfExp):
        return ()
    plain = (ast.Name, ast.Attribute)
    if isinstance(value.orelse, plain) is isinstance(value.body, plain):
        return ()
    return (Asked(value.test, isinstance(value.orelse, plain), value, is_in_loop=True),)


def said_by(asked: Sequence[Asked], function: ast.AST) -> Iterator[tuple[str, str | None, bool]]:
    """Yield what choices of a function say: what is asked, the constant that it equals, and the truth."""
    yield from (each.said for each in _facts(asked, function))


def _facts(asked: Sequence[Asked], function: ast.AST) -> Iterator[_Fact]:
    known = _FACTS.setdefault(function, {})
    for each in asked:
        key = each.fact
        if key not in known:
            known[key] = tuple(_split(each.test, function, truth=each.truth))
        yield from known[key]


def _split(test: ast.expr, function: ast.AST, *, truth: bool, depth: int = 0) -> Iterator[_Fact]:
    """Yield what a test that is ``truth`` says, part by part, and by what a name in it was set to."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _split(test.operand, function, truth=not truth, depth=depth)
        return
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is truth:
        for part in test.values:
            yield from _split(part, function, truth=truth, depth=depth)
    value = _value(test, function) if isinstance(test, ast.Name) and depth < _DEEPEST else None
    if value is not None:
        yield from _split(value, function, truth=truth, depth=depth + 1)
    if not _is_steady(test):
        return
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        operator, left, right = test.ops[0], ast.unparse(test.left), ast.unparse(test.comparators[0])
        if isinstance(operator, (ast.Eq, ast.Is)):
            yield _Fact((left, right, truth), test)
        elif isinstance(operator, (ast.NotEq, ast.IsNot)):
            yield _Fact((left, right, not truth), test)
        return
    yield _Fact((ast.unparse(test), None, truth), test)


def _value(name: ast.Name, function: ast.AST) -> ast.expr | None:
    """Return what a name of a function is set to, if that is one test, at one place."""
    places = _stores(function, name.id)
    assigns = [
        node
        for node in walked(function)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] in places
    ]
    tests = (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Name, ast.Attribute)
    value = assigns[0].value if len(assigns) == len(places) == 1 else None
    is_above = value is not None and value.lineno < name.lineno and name.id not in _parameters(function)
    return value if is_above and isinstance(value, tests) else None


def _is_steady(test: ast.expr) -> bool:
    """Tell whether a test gives the same each time, as long as its variables do."""
    if any(isinstance(each, (ast.Subscript, ast.Await, ast.NamedExpr)) for each in ast.walk(test)):
        return False
    calls = [each for each in ast.walk(test) if isinstance(each, ast.Call)]
    names = (last_name(each.func) for each in calls)
    given = (dotted(arg) for each in calls for arg in each.args)
    return all(name in STEADY for name in names) and not any(each in {"self", "cls"} for each in given)


def _last(place: Place, function: ast.AST, tests: Sequence[ast.expr]) -> bool:
    """Tell whether what is asked keeps its value from the first of some tests on."""
    first = min(test.lineno for test in tests)
    looped = _in_loops(function)

    def is_early(node: ast.expr) -> bool:
        return node.lineno < first and id(node) not in looped

    parts = [part for test in tests for part in ast.walk(test)]
    for name in {part.id for part in parts if isinstance(part, ast.Name)}:
        if not all(map(is_early, _stores(function, name))) or _is_global(place, name):
            return False
    attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    if not attributes:
        return True
    own = set(map(id, walked(function)))
    inits = [nodes for init, nodes in _in_inits(place.module.tree) if init != id(function)]
    return all(
        is_early(each) if id(each) in own else any(id(each) in nodes for nodes in inits)
        for each in walked(place.module.tree)
        if isinstance(each, ast.Attribute) and each.attr in attributes and not isinstance(each.ctx, ast.Load)
    )


def _in_loops(function: ast.AST) -> frozenset[int]:
    """Return what stands in loops of a function, by identity."""
    if function not in _LOOPED:
        loops = (loop for loop in walked(function) if isinstance(loop, _LOOPS))
        _LOOPED[function] = frozenset(id(each) for loop in loops for each in ast.walk(loop))
    return _LOOPED[function]


def _in_inits(tree: ast.Module) -> list[tuple[int, frozenset[int]]]:
    """Return the constructors of a file, each with what stands in it, by identity."""
    if tree not in _INITS:
        inits = [n for n in walked(tree) if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        _INITS[tree] = [(id(init), frozenset(map(id, ast.walk(init)))) for init in inits]
    return _INITS[tree]


def _asks_what_is_given(test: ast.expr) -> bool:
    """Tell whether a test may come out otherwise when its function runs again."""
    return any(isinstance(each, ast.Name) and each.id not in {"cls", "self"} for each in ast.walk(test))


def _stores(function: ast.AST, name: str) -> list[ast.expr]:
    return [
        node
        for node in walked(function)
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
    ]


def _parameters(function: ast.AST) -> set[str]:
    return {each.arg for each in walked(function) if isinstance(each, ast.arg)}


def _is_global(place: Place, name: str) -> bool:
    """Tell whether functions of the file set a variable of the module, or of the function around them."""
    said = (ast.Global, ast.Nonlocal)
    return any(isinstance(each, said) and name in each.names for each in walked(place.module.tree))
