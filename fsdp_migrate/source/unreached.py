"""What is asked of FSDP below a question for something private to FSDP1, which FSDP2 models do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, short, text_of, walk_for
from fsdp_migrate.source.rules import class_names, module_attribute, privates, wrapped_names
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.text import Source


_OF_MODULES = frozenset(
    {
        "_all_handles",
        "_exec_order_data",
        "_flat_param",
        "_fsdp_wrapped_module",
        "_handle",
        "_handles",
        "_is_root",
        "flat_param",
        "sharding_strategy",
        "summon_full_params",
    }
)
_OF_PARAMETERS = frozenset({"_is_flat_param", "_local_shard"})
_FALSE = frozenset({"()", "0", "False", "None", "[]", "{}"})
_MAX_DEPTH = 3
# What these find is the question itself, or what is private, and no work.
_QUESTIONS = frozenset({class_names.NAME, module_attribute.NAME, privates.NAME, wrapped_names.NAME})
_SAID = (
    "FSDP2 has no such attribute, so that what is asked of FSDP below this is passed over: ask "
    "isinstance({}, {}) in its place."
)


def with_questions(source: Source, found: Sequence[tuple[str, Found]]) -> list[tuple[str, Found]]:
    """Return what was found, with a comment at each private question that work of FSDP depends on."""
    asked: dict[cst.CSTNode, Found] = {}
    for rule, each in found:
        if rule in _QUESTIONS or not (each.edits or each.action == "commented"):
            continue
        for test, truth in source.models.guards.facts(each.node):
            if not _is_done_otherwise(source, test, each, found):
                names = _there(source, test, truth=truth)
                asked.update((name, _said(source, name)) for name in names if name not in asked)
    if not asked:
        return list(found)
    left = [(rule, each) for rule, each in found if rule not in _QUESTIONS or not _is_in(each, asked)]
    return [*left, *((privates.NAME, each) for each in asked.values())]


def _is_in(found: Found, asked: dict[cst.CSTNode, Found]) -> bool:
    """Tell whether a use is a question that a comment speaks of: its string, or the call with it."""
    call = found.node if isinstance(found.node, cst.Call) else None
    return found.node in asked or (call is not None and any(arg.value in asked for arg in call.args))


def _said(source: Source, name: cst.SimpleString) -> Found:
    above = next(
        each for each in source.index.ancestors(name) if isinstance(each, (cst.Call, cst.Comparison))
    )
    subject: cst.BaseExpression = cst.Name("it")
    if isinstance(above, cst.Call):
        subject = above.args[0].value
    elif isinstance(held := above.comparisons[0].comparator, (cst.Call, cst.Attribute)):
        subject = held.args[0].value if isinstance(held, cst.Call) else held.value
    kind = "DTensor" if name.evaluated_value in _OF_PARAMETERS else "FSDPModule"
    return Found("FM317", name, _SAID.format(short(subject), kind), "commented")


def _is_done_otherwise(
    source: Source, test: cst.BaseExpression, work: Found, found: Sequence[tuple[str, Found]]
) -> bool:
    """Tell whether the other branch of a question does the same work: ``inner.state_dict()``."""
    choice = source.index.parents[test]
    if not isinstance(choice, (cst.If, cst.IfExp)) or choice.orelse is None:
        return False
    here = set(source.index.ancestors(work.node))
    other = choice.body if choice.orelse in here else choice.orelse
    return any(
        each.code == work.code and each.edits and other in set(source.index.ancestors(each.node))
        for _, each in found
    )


def _there(source: Source, test: cst.BaseExpression, *, truth: bool, depth: int = 0) -> set[cst.SimpleString]:
    """Return the private names of FSDP1's of which a test that is ``truth`` says that they are there."""

    def there(part: cst.BaseExpression, *, truth: bool = truth, deeper: int = 0) -> set[cst.SimpleString]:
        return _there(source, part, truth=truth, depth=depth + deeper)

    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return there(test.expression, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        # Of `a and b` that is true both are; of `a or b` that is false neither is. Else one of them is.
        left, right = there(test.left), there(test.right)
        is_all = isinstance(test.operator, cst.And) is truth
        return left | right if is_all or (left and right) else set()
    if isinstance(test, cst.Comparison):
        return _of_comparison(source, test, truth=truth, depth=depth)
    if isinstance(test, cst.NamedExpr):
        return there(test.value)
    if isinstance(test, cst.Name) and test in source.index.scopes and depth < _MAX_DEPTH:
        held = last_value(source.index, test)
        return there(held, deeper=1) if held is not None and not isinstance(held, cst.Name) else set()
    return _of_call(source, test, depth) if truth and isinstance(test, cst.Call) else set()


def _of_comparison(source: Source, test: cst.Comparison, *, truth: bool, depth: int) -> set[cst.SimpleString]:
    """Return the names that ``getattr(m, name, None) is not None``, or ``name in dir(m)``, asks for."""
    if len(test.comparisons) != 1:
        return set()
    operator, other = test.comparisons[0].operator, test.comparisons[0].comparator
    if text_of(other) == "None" and isinstance(operator, (cst.Equal, cst.Is, cst.IsNot, cst.NotEqual)):
        is_there = isinstance(operator, (cst.IsNot, cst.NotEqual)) is truth
        return _there(source, test.left, truth=True, depth=depth) if is_there else set()
    if not isinstance(operator, cst.In if truth else cst.NotIn) or not isinstance(
        test.left, cst.SimpleString
    ):
        return set()
    is_call = isinstance(other, cst.Call) and dotted(other.func) in {"dir", "vars"} and len(other.args) == 1
    is_dict = isinstance(other, cst.Attribute) and other.attr.value in {"__dict__", "_modules"}
    return {test.left} if (is_call or is_dict) and _is_private(source, test.left) else set()


def _of_call(source: Source, call: cst.Call, depth: int) -> set[cst.SimpleString]:
    """Return the names that ``hasattr``, ``getattr`` with a default, or a function of these asks for."""
    func, args = dotted(call.func), call.args
    if func in {"getattr", "hasattr"} and len(args) >= 2:
        name = args[1].value
        is_asked = func == "hasattr" or (len(args) == 3 and text_of(args[2].value) in _FALSE)
        is_name = isinstance(name, cst.SimpleString) and _is_private(source, name)
        return {cst.ensure_type(name, cst.SimpleString)} if is_asked and is_name else set()
    if func in {"any", "bool", "callable"} and len(args) == 1:
        each = args[0].value
        part = each.elt if isinstance(each, (cst.GeneratorExp, cst.ListComp)) else each
        return _there(source, part, truth=True, depth=depth)
    return set(_of_functions(source, call, depth)) if depth < _MAX_DEPTH else set()


def _of_functions(source: Source, call: cst.Call, depth: int) -> Iterator[cst.SimpleString]:
    for function in source.models.guards.functions(call.func):
        given = [each.value for each in walk_for(function.body, cst.Return) if each.value is not None]
        if len(given) == 1:
            yield from _there(source, given[0], truth=True, depth=depth + 1)


def _is_private(source: Source, name: cst.SimpleString) -> bool:
    """Tell whether a string names what FSDP1's modules, or flat parameters, alone have."""
    text = str(name.evaluated_value)
    return text in _OF_MODULES | _OF_PARAMETERS and not privates.is_of_own_class(source, text)
