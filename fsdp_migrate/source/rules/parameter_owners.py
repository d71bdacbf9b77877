"""FSDP1's flat parameters stood in units; FSDP2's stand in their layers, by which groups are made.

What goes through a model's modules after wrapping and takes what each holds itself, by the layer's type or
by the parameter's key there, as Megatron's ``get_param_groups_by_weight_decay`` does, decides differently.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.flat_parameters import flat_of, of_flat
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.rules.parameter_names import asked_of_name, chooses
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "parameter-owners"
CODES = ("FM318",)

_OWN = "which the unit's own module held as `_flat_param`, and no layer within; FSDP2's stand in their layers"
_WALKS = frozenset({"modules", "named_modules"})
_LISTS = frozenset({"named_parameters", "parameters"})
_PUTS = frozenset({"add", "append", "extend", "update"})
# Lightning, Fabric and Hugging Face's Trainer ask for use_orig_params=True.
_KEEP = frozenset({"fabric", "lightning", "transformers"})
# Of what is seldom a unit: of a unit all that stands below was the flat parameter, and is the same now.
_OF_LAYERS = re.compile(r"(?:Norm\w*|Conv\w*|Embedding|Linear)$")


class _Taken(NamedTuple):
    """What a loop takes of the parameters that a module holds."""

    place: cst.CSTNode
    """The loop through them, or the list itself, in the call that takes it whole."""
    is_direct: bool
    """Whether these are the module's own alone, and none of the modules within."""
    key: str
    """What the loop calls their keys."""


def find(source: Source) -> Iterator[Found]:
    """Find where parameters of a sharded model are chosen by what holds them."""
    flat = of_flat(source, _OWN)
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _WALKS:
            continue
        loop = next((each for each in source.index.ancestors(call) if _is_over(each, call)), None)
        model = whole_of(source, func.value) if loop is not None else None
        if loop is None or model is None or source.contexts.is_summoned(call):
            continue
        said = flat_of(source, model, flat, _OWN)
        if not said or source.models.sharded_by(model) in _KEEP:
            continue
        # One loop is one decision: what is said of its first question holds of the others.
        tests = sorted(_decide(source, loop), key=source.index.order.__getitem__)
        yield from (Found("FM318", test, said, "commented") for test in tests[:1])


def _is_over(node: cst.CSTNode, call: cst.Call) -> bool:
    return isinstance(node, (cst.For, cst.CompFor)) and call in walk_for(node.iter, cst.Call)


def _decide(source: Source, loop: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what decides on the parameters that a loop over modules takes of each: types and keys."""
    assert isinstance(loop, (cst.For, cst.CompFor))
    names = [each.value for each in walk_for(loop.target, cst.Name)]
    around: cst.CSTNode = loop
    while isinstance(around, cst.CompFor):
        around = source.index.parents[around]
    if not names:
        return
    taken = list(_taken(source, around, names[-1]))
    for one in taken:
        for test in _tests(one.place) if one.key else ():
            yield from (part for part, _ in asked_of_name(test, {one.key}))
    for test, choice in _choices(around) if taken else ():
        below = [one for one in taken if _is_below(source, one.place, choice)]
        is_direct = any(one.is_direct for one in below)
        yield from _of_types(source, test, names[-1], is_direct=is_direct) if below else ()


def _taken(source: Source, around: cst.CSTNode, module: str) -> Iterator[_Taken]:
    """Yield what a loop over modules takes of the parameters that each holds, or freezes."""
    held: list[tuple[cst.BaseExpression, bool]] = [
        (node, True) for node in walk_for(around, cst.Attribute) if dotted(node) == f"{module}._parameters"
    ]
    for call in walk_for(around, cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or dotted(func.value) != module:
            continue
        if func.attr.value in _LISTS:
            held.append((call, any(dotted(arg.value) == "False" for arg in call.args)))
        elif func.attr.value == "requires_grad_":
            yield _Taken(call, is_direct=False, key="")
    for node, is_direct in held:
        for above in source.index.ancestors(node):
            if isinstance(above, (cst.For, cst.CompFor)) and _holds(above.iter, node):
                # What is asked of the names that a module gives is found by `parameter-names`.
                by_key = isinstance(node, cst.Attribute)
                yield from _of_loop(source, above, is_direct=is_direct, by_key=by_key)
                break
            called = above.func if isinstance(above, cst.Call) else None
            is_put = isinstance(called, cst.Attribute) and called.attr.value in _PUTS
            if is_put or isinstance(above, cst.AugAssign):
                yield _Taken(node, is_direct, "")
                break
            if above is around or isinstance(above, cst.BaseStatement):
                break


def _holds(iterated: cst.BaseExpression, node: cst.CSTNode) -> bool:
    return node in {*walk_for(iterated, cst.Attribute), *walk_for(iterated, cst.Call)}


def _of_loop(
    source: Source, loop: cst.For | cst.CompFor, *, is_direct: bool, by_key: bool
) -> Iterator[_Taken]:
    names = [each.value for each in walk_for(loop.target, cst.Name)]
    around: cst.CSTNode = loop
    while isinstance(around, cst.CompFor):
        around = source.index.parents[around]
    is_one = isinstance(around, (cst.For, cst.ListComp, cst.GeneratorExp, cst.SetComp))
    if names and is_one and chooses(around, names[-1]):
        yield _Taken(around, is_direct, names[0] if by_key and len(names) == 2 else "")


def _tests(around: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    yield from (test for test, _ in _choices(around))


def _choices(around: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, cst.CSTNode]]:
    """Yield the tests in a loop, each with what it decides on."""
    yield from ((each.test, each) for each in walk_for(around, cst.If))
    yield from ((each.test, each) for each in walk_for(around, cst.IfExp))
    if isinstance(around, cst.BaseComp):
        yield from ((each.test, around) for each in walk_for(around, cst.CompIf))


def _is_below(source: Source, place: cst.CSTNode, choice: cst.CSTNode) -> bool:
    """Tell whether a place stands in a choice, or below one that goes on without it."""
    index = source.index
    if place is choice or choice in index.ancestors(place) or place in index.ancestors(choice):
        return True
    if isinstance(choice, cst.IfExp):  # `(plain if isinstance(m, LayerNorm) else decayed).extend(...)`
        return index.statement(choice) is index.statement(place)
    return isinstance(choice, cst.If) and leaves(choice.body)


def _of_types(
    source: Source, test: cst.BaseExpression, module: str, *, is_direct: bool
) -> Iterator[cst.BaseExpression]:
    """Yield the questions for a module's type: ``isinstance(m, LayerNorm)``, ``type(m) in kinds``."""
    for call in walk_for(test, cst.Call):
        if dotted(call.func) == "isinstance" and len(call.args) == 2 and dotted(call.args[0].value) == module:
            asked = call.args[1].value
            if is_direct or _are_layers(asked):
                yield from () if _is_wrapper(source, asked) else (call,)
    for part in walk_for(test, cst.Comparison):
        other = part.comparisons[0].comparator
        sides = {text_of(part.left), text_of(other)}
        is_asked = any(each.startswith((f"type({module})", f"{module}.__class__")) for each in sides)
        if is_asked and (is_direct or _are_layers(other)):
            yield part


def _are_layers(asked: cst.BaseExpression) -> bool:
    """Tell whether types are those of layers that hold weights themselves, and are no units."""
    every = [*walk_for(asked, cst.Name), *walk_for(asked, cst.Attribute)]
    return any(_OF_LAYERS.search(last_name(each)) for each in every)


def _is_wrapper(source: Source, asked: cst.BaseExpression) -> bool:
    every = [*walk_for(asked, cst.Name), *walk_for(asked, cst.Attribute)]
    return any(source.index.fsdp1(each) == catalog.FSDP for each in every)
