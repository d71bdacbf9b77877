"""Functions of a project that are given a class, and ask whether something is of it: ``wraps(model, FSDP)``.

Also those that give the class back, where whoever calls them asks so: ``isinstance(model, fsdp_class())``.

What such a call asks is what ``isinstance(model, FSDP)`` asks, and nothing is made of the class there.
"""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.python.argument_places import argument_at, parameters_of
from fsdp_migrate.source.python.nodes import argument_of, text_of
from fsdp_migrate.source.python.written_names import written_names


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsdp_migrate.source.python.text import Source


Asked = frozenset[tuple[int, str]]
"""Arguments, by place and name, of whose class a function asks whether something is of it."""
_ASKS: Final = {"isinstance": 1, "issubclass": 1}
"""What asks whether something is of a class, and at which place it is given that."""
_LOOKS: Final = {"callable": 0, "getfullargspec": 0, "signature": 0}
"""What only looks at a function, and at which place it is given that: ``inspect.signature(forward)``."""
_WITHIN: Final = (cst.BinaryOperation, cst.BooleanOperation, cst.Element, cst.IfExp, cst.Tuple)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def asked_parameters(function: ast.AST) -> Asked:
    """Return the parameters of a function that it asks for as classes, and does nothing else with.

    Example:
        >>> (function,) = ast.parse("def is_one(x, kinds): return isinstance(x, kinds)").body
        >>> asked_parameters(function)
        frozenset({(1, 'kinds')})
    """
    return _parameters(function, _ASKS)


def looked_parameters(function: ast.AST) -> Asked:
    """Return the parameters of a function that are functions themselves, which it only looks at.

    Example:
        >>> (function,) = ast.parse("def names(f): return list(inspect.signature(f).parameters)").body
        >>> looked_parameters(function)
        frozenset({(0, 'f')})
    """
    return _parameters(function, _LOOKS)


def _parameters(function: ast.AST, kinds: Mapping[str, int]) -> Asked:
    if not isinstance(function, _FUNCTIONS):
        return frozenset()
    is_method = function.args.args[:1] != [] and function.args.args[0].arg in {"self", "cls"}
    names = (each.arg for each in parameters_of(function) if _is_only_asked(function, each.arg, kinds))
    places = (argument_at(function, name, is_method=is_method) for name in names)
    return frozenset(each for each in places if each is not None)


def _is_only_asked(
    function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, kinds: Mapping[str, int]
) -> bool:
    asked: set[ast.AST] = set()
    handed: set[ast.AST] = set()
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        called = ast.unparse(call.func)
        place = kinds.get(called.removeprefix("inspect."))
        if place is not None and len(call.args) > place:
            asked.update(ast.walk(call.args[place]))
        elif called.rpartition(".")[2] == function.name:  # by itself, for each part: `wraps(child, kinds)`
            handed.update((*call.args, *(each.value for each in call.keywords)))
    body = (each for line in function.body for each in ast.walk(line))
    uses = [each for each in body if isinstance(each, ast.Name) and each.id == name]
    return any(each in asked for each in uses) and all(
        isinstance(each.ctx, ast.Load) and (each in asked or each in handed) for each in uses
    )


def is_asked_by_function(source: Source, call: cst.Call, arg: cst.CSTNode) -> bool:
    """Tell whether a call gives an argument to a function that only asks whether something is of it."""
    return _is_given_so(source, call, arg, source.links.asking, asked_parameters)


def is_looked_at_by_function(source: Source, call: cst.Call, arg: cst.CSTNode) -> bool:
    """Tell whether a call gives an argument to a function that only looks at it, and calls nothing."""
    return _is_given_so(source, call, arg, source.links.looking, looked_parameters)


def _is_given_so(
    source: Source,
    call: cst.Call,
    arg: cst.CSTNode,
    told: Mapping[str, Asked],
    parameters: Callable[[ast.AST], Asked],
) -> bool:
    if not isinstance(arg, cst.Arg) or arg.star:
        return False
    functions = source.models.guards.functions(call.func)
    known = [_parameters_here(source, each, parameters) for each in functions] or [
        told[each] for each in written_names(source.index, call.func) if each in told
    ]
    return bool(known) and all(
        any(argument_of(call, place, {name}) is arg.value for place, name in asked) for asked in known
    )


def is_asked_by_default(source: Source, param: cst.CSTNode) -> bool:
    """Tell whether it is a parameter that its function only asks for: ``def wraps(m, kinds=FSDP)``."""
    if not isinstance(param, cst.Param):
        return False
    owner = next((a for a in source.index.ancestors(param) if isinstance(a, cst.FunctionDef)), None)
    asked = asked_by(source, owner) if owner is not None else ()
    return any(name == param.name.value for _, name in asked)


def asked_by(source: Source, function: cst.CSTNode) -> Asked:
    """Return the same of a function of the source itself."""
    return _parameters_here(source, function, asked_parameters)


def _parameters_here(source: Source, function: cst.CSTNode, parameters: Callable[[ast.AST], Asked]) -> Asked:
    written = textwrap.dedent(source.module.code_for_node(function).lstrip("\n"))
    try:
        (parsed,) = parse_any(written).body
    except (SyntaxError, ValueError):
        return frozenset()
    return parameters(parsed)


def is_held_for_checks(source: Source, node: cst.CSTNode, *, or_methods: bool) -> bool:
    """Tell whether a class is given back by a function, or kept in a tuple, and is only asked for by that.

    ``or_methods``: its functions may be called as well, which what is asked before is about.
    """
    above = source.index.parents[node]
    while isinstance(above, _WITHIN):
        node, above = above, source.index.parents[above]
    found: list[cst.CSTNode] | None = None
    if isinstance(above, cst.Return):
        function = source.index.function(above)
        found = _calls_alone(source, function) if function is not None else None
    elif isinstance(above, cst.Assign) and isinstance(node, cst.Tuple):
        found = _kept_as(source, above)
    asked = [_is_asked(source, each, or_methods=or_methods, depth=0) for each in found or ()]
    return None not in asked and any(asked)


def _calls_alone(source: Source, function: cst.FunctionDef) -> list[cst.CSTNode] | None:
    """Return the calls of a function; None where anything else is done with its name."""
    calls = [call for call in source.calls if function in source.models.guards.functions(call.func)]
    called = {id(part) for call in calls for part in (call.func, getattr(call.func, "attr", None))}
    names = (cst.ensure_type(each, cst.Name) for each in source.index.by_kind.get(cst.Name, ()))
    uses = [each for each in names if each.value == function.name.value and each is not function.name]
    return [*calls] if all(id(each) in called for each in uses) else None


def _kept_as(source: Source, assign: cst.Assign) -> list[cst.CSTNode] | None:
    """Return where a name is read that an assignment gives a class; None where that is not seen."""
    target = assign.targets[0].target
    if len(assign.targets) != 1 or not isinstance(target, cst.Name) or source.index.scopes[target].is_class:
        return None
    home = source.index.function(assign)
    names = (cst.ensure_type(each, cst.Name) for each in source.index.by_kind.get(cst.Name, ()))
    same = [each for each in names if each.value == target.value and each is not target]
    uses = [each for each in same if home is None or home in {*source.index.ancestors(each)}]
    return [*uses] if all(each in source.index.scopes for each in uses) else None


def _is_asked(source: Source, node: cst.CSTNode, *, or_methods: bool, depth: int) -> bool | None:
    """Tell whether a class is asked for where a node stands for it; None where more is done with it."""
    above = source.index.parents[node]
    if isinstance(above, cst.Assign) and depth == 0:
        found = _kept_as(source, above)
        asked = [_is_asked(source, each, or_methods=or_methods, depth=1) for each in found or ()]
        return None if found is None or None in asked else any(asked)
    while isinstance(above, (cst.Element, cst.Tuple)):
        node, above = above, source.index.parents[above]
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call) and len(call.args) > 1 and call.args[1] is above:
        return True if text_of(call.func) in _ASKS else None
    is_test = isinstance(above, (cst.If, cst.IfExp)) and above.test is node
    is_nothing = isinstance(above, cst.Comparison) and text_of(above).endswith(("isNone", "isnotNone"))
    is_truth = isinstance(above, (cst.BooleanOperation, cst.UnaryOperation))
    is_method = or_methods and isinstance(above, cst.Attribute)
    return False if is_test or is_nothing or is_truth or is_method else None
