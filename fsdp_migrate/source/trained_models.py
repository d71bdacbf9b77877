"""Which models the optimizers of a source hold, and which it shows to be trained by none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.model_runs import OPTIMIZERS, TRAINS, frozen_models
from fsdp_migrate.source.python.accelerate_models import has_optimizer
from fsdp_migrate.source.python.last_values import last_value, seen_value
from fsdp_migrate.source.python.nodes import code, last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


_DEEPEST: Final = 3
_IS_NONE: Final = re.compile(r"sched|state|zero_grad")
# What takes a model to train it, or to put trained weights into it.
_TAKES_UP: Final = re.compile(rf"adapt|lora|peft|{TRAINS.pattern}|{OPTIMIZERS.pattern}")
_MAKES_MORE: Final = re.compile(rf"adapt|lora|peft|{OPTIMIZERS.pattern}")
_HOLDS: Final = frozenset(PARAMETERS) | {"add_adapter", "load_adapter", "train"}
"""What a model is asked for to be trained."""


def whose_parameters(source: Source, node: cst.CSTNode, depth: int = 0) -> Iterator[cst.BaseExpression]:
    """Yield whose parameters an expression holds, by the names in it too."""
    for each in walk_for(node, cst.Call):
        if isinstance(each.func, cst.Attribute) and each.func.attr.value in PARAMETERS:
            yield each.func.value
    for name in walk_for(node, cst.Name) if depth < _DEEPEST else ():
        value = last_value(source.index, name) if name in source.index.scopes else None
        if isinstance(value, (cst.List, cst.ListComp, cst.Call, cst.BinaryOperation)):
            yield from whose_parameters(source, value, depth + 1)
    owns: list[cst.Name | cst.Attribute] = [*walk_for(node, cst.Name), *walk_for(node, cst.Attribute)]
    for own in owns:
        value = seen_value(source.index, own)
        if isinstance(value, cst.Call) and text_of(value.func).rpartition(".")[2] == "Parameter":
            yield own


def held_together(source: Source, place: cst.CSTNode, text: str) -> list[list[str]]:
    """Return whose parameters each optimizer holds that is made where a model is known by a text.

    Of one that does not show it the list is empty.
    """
    made = (call for call in _around(source, place, text) if _makes_optimizer(call))
    return [list(dict.fromkeys(text_of(each) for each in whose_parameters(source, call))) for call in made]


def has_optimizer_beside(source: Source, place: cst.Call) -> bool:
    """Tell whether a model that a call is given has an optimizer where that stands, as words there say.

    That is in the function, or, of what an object keeps, in the class: another method may make another model.
    """
    home = source.index.function(place)
    if home is None or has_optimizer(code(home)):
        return has_optimizer(source.code)
    given = {text_of(arg.value) for arg in place.args}
    kept = given | {text for arg in place.args for text in _targets(source, place, arg.value)}
    return any(
        not owners or (_is_part_of(source, text, {*owners}) if text in given else _is_among(text, owners))
        for text in kept
        if text.startswith("self.")
        for owners in held_together(source, place, text)
    )


def is_not_trained(source: Source, place: cst.Call, model: cst.BaseExpression) -> bool:
    """Tell whether a source shows that it does not train a model which a call at a place is given.

    It freezes all of it, or switches it to ``eval()`` there for good, or makes its optimizers of others.
    """
    texts = {text_of(model), *_targets(source, place, model)}
    if any(_is_taken_up(source, place, text) for text in texts):
        return False
    frozen = {text_of(each) for each in frozen_models(source) if _is_beside(source, place, each)}
    if not frozen.isdisjoint(texts) or any(_is_evaluated(source, place, text) for text in texts):
        return True
    held = [owners for text in texts for owners in held_together(source, place, text)]
    owners = {owner for each in held for owner in each}
    return bool(held) and all(held) and not any(_is_part_of(source, text, owners) for text in texts)


def _targets(source: Source, place: cst.Call, model: cst.BaseExpression) -> list[str]:
    """Return what a model is called that a call gives back."""
    line = source.index.parents.get(place)
    if not isinstance(line, cst.Assign):
        return []
    targets = [each.target for each in line.targets]
    number = next((n for n, arg in enumerate(place.args) if arg.value is model), 0)
    return [
        text_of(target.elements[number].value if isinstance(target, cst.Tuple) else target)
        for target in targets
        if not isinstance(target, cst.Tuple) or number < len(target.elements)
    ]


def _around(source: Source, place: cst.CSTNode, text: str) -> Iterator[cst.Call]:
    """Yield the calls where a text is one object: ``self.model`` in the class, others in the function."""
    owner, home = source.index.class_of(place), source.index.function(place)
    is_kept = text.startswith("self.") and owner is not None
    for call in source.calls:
        if source.index.class_of(call) is owner if is_kept else source.index.function(call) is home:
            yield call


def _is_beside(source: Source, place: cst.CSTNode, node: cst.CSTNode) -> bool:
    if text_of(node).startswith("self."):
        return source.index.class_of(node) is source.index.class_of(place)
    return source.index.function(node) is source.index.function(place)


def _makes_optimizer(call: cst.Call) -> bool:
    name = (last_name(call.func) or "").lower()
    return OPTIMIZERS.search(name) is not None and _IS_NONE.search(name) is None


def _is_taken_up(source: Source, place: cst.Call, text: str) -> bool:
    """Tell whether a model is asked for its parameters around a place, or is given to what may train it."""
    held = held_together(source, place, text)
    for call in _around(source, place, text):
        func = call.func
        if isinstance(func, cst.Attribute) and text_of(func.value) == text:
            given = [text_of(each.value) for each in call.args]
            is_asked = func.attr.value in _HOLDS and not _freezes(source, call) and given != ["False"]
            if is_asked or (func.attr.value == "requires_grad_" and given != ["False"]):
                return True
        name = (last_name(func) or "").lower()
        if _takes(call, text) and _TAKES_UP.search(name) is not None and not _steps_by(call, name, held):
            return True
    return False


def _steps_by(call: cst.Call, name: str, held: list[list[str]]) -> bool:
    """Tell whether what trains is given its optimizer, of models that are seen: others only run in it."""
    if not held or not all(held):
        return False
    given = (text_of(each.value).rpartition(".")[2].lower() for each in call.args)
    return _MAKES_MORE.search(name) is None and any(
        OPTIMIZERS.search(each) is not None and _IS_NONE.search(each) is None for each in given
    )


def _freezes(source: Source, call: cst.Call) -> bool:
    """Tell whether a loop asks for parameters to freeze them: ``for p in model.parameters():``."""
    loop = source.index.parents.get(call)
    if not isinstance(loop, cst.For):
        return False
    lines = [text_of(each) for each in loop.body.body]
    return all(re.search(r"\.requires_grad(?:_\(False\)|=False)$", line.strip()) for line in lines)


def _takes(call: cst.Call, text: str) -> bool:
    return any(text_of(each.value) == text for each in call.args)


def _is_evaluated(source: Source, place: cst.Call, text: str) -> bool:
    """Tell whether a model is switched to ``eval()`` beside a place, before anything else is given it."""
    index, block = source.index, source.index.parents.get(source.index.statement(place))
    for call in _around(source, place, text):
        if text_of(call.func) != f"{text}.eval" or index.parents.get(index.statement(call)) is not block:
            continue
        first, last = sorted((index.order[place], index.order[call]))
        between = [each for each in _around(source, place, text) if first < index.order[each] < last]
        if not any(_takes(each, text) for each in between):
            return True
    return False


def _is_part_of(source: Source, text: str, owners: set[str]) -> bool:
    """Tell whether a model is held by an optimizer's, or one that it holds, or may be: by what makes them."""
    if _is_among(text, owners):
        return True
    made = [each for each in source.assignments if any(text_of(t.target) in owners for t in each.targets)]
    made_of = (walk_for(each.value, cst.Name) for each in made)
    return any(name.value == text.rpartition(".")[2] for names in made_of for name in names)


def _is_among(text: str, owners: Iterable[str]) -> bool:
    """Tell whether a name is one of some, holds one of them, or is held by one."""
    return any(text == each or each.startswith(f"{text}.") or text.startswith(f"{each}.") for each in owners)
