"""``optim=`` and ``label_smoothing_factor=`` of Hugging Face's arguments, where a config asks for FSDP.

And what a Trainer's own ``create_optimizer`` gives its optimizer beside the model's parameters.

Where ``fsdp=`` stands in the same call, :mod:`fsdp_migrate.source.rules.hf_arguments` says so of both.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.optimizer_names import (
    OF_BITSANDBYTES,
    SHIFT_LABELS,
    SMOOTHED,
    SMOOTHING,
    said_of_optimizer,
)
from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.accelerators import UNWRAPS
from fsdp_migrate.source.python.last_values import last_value, values_set
from fsdp_migrate.source.python.nodes import args_by_name, dotted, last_name, short, text_of, walk_for
from fsdp_migrate.source.python.parameters import PARAMETERS
from fsdp_migrate.source.python.trainer_models import MAKES_OPTIMIZER, TRAINER
from fsdp_migrate.source.rules.hf_arguments import is_of_the_trainer
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "trainer-optimizers"
CODES = ("FM343", "FM449")

_OPTION = "optim"
_DEEPEST = 4
_HOLDS_MORE = (
    "the Trainer's FSDP2 stops at parameters in its optimizer that are none of its model's, as these of {} "
    "are: make it a part of the model above the Trainer, `model.extra = ...`, or give it an optimizer of its "
    "own."
)
_MODELS = re.compile(r"(?:^|[._])model(?:_wrapped)?(?:$|[.(_])|unwrap")
_MEANT = "where Hugging Face's Trainer runs FSDP2 with this {}, {}: {} {}"


def find(source: Source) -> Iterator[Found]:
    """Find names of optimizers that FSDP2 cannot step, and labels that are smoothed, in these arguments."""
    if "transformers" not in source.links.frameworks:
        return
    for name, said in _SAID.items():
        for node, value in (*_given(source, name), *_defaults(source, name), *_set(source, name)):
            found = said(value)
            if found is not None:
                yield Found("FM343", node, _MEANT.format(*found), "commented")
    for node, value in _handed_on(source):
        if (found := _said_of_optimizers(value)) is not None:
            yield Found("FM343", node, _MEANT.format(*found), "commented")
    for node in source.index.by_kind.get(cst.FunctionDef, ()):
        function = cst.ensure_type(node, cst.FunctionDef)
        if function.name.value == MAKES_OPTIMIZER:
            yield from _of_others(source, function)


def _of_others(source: Source, function: cst.FunctionDef) -> Iterator[Found]:
    """Find parameters of another module than the model, in a method of a Trainer that makes its optimizer."""
    if source.models.frameworks.trainers.kind_around(function) != TRAINER:
        return
    for call in walk_for(function.body, cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in PARAMETERS:
            continue
        owner = _within(source, func.value)
        if not isinstance(owner, cst.Attribute):
            continue
        if not text_of(owner).startswith("self.") or _is_of_model(source, owner):
            continue
        if _goes_to_its_optimizer(source, call):
            yield Found("FM449", call, _HOLDS_MORE.format(f"`{short(owner, 40)}`"), "commented")


def _within(source: Source, node: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Return the module that is asked: by a name, and within ``accelerator.unwrap_model(self.extra)``."""
    for _ in range(_DEEPEST):
        if isinstance(node, cst.Name):
            node = last_value(source.index, node)
        elif isinstance(node, cst.Call) and last_name(node.func) == UNWRAPS and node.args:
            node = node.args[0].value
        elif isinstance(node, cst.Attribute) and node.attr.value in catalog.WRAPPED:
            node = node.value
    return node


def _is_of_model(source: Source, owner: cst.Attribute) -> bool:
    """Tell whether an attribute of a Trainer is its model or a part of it, as its name or its value says."""
    values = values_set(source.index, owner)
    return any(_MODELS.search(text_of(each)) is not None for each in (owner, *values))


def _goes_to_its_optimizer(source: Source, call: cst.Call) -> bool:
    """Tell whether parameters may go into ``self.optimizer``, and are not gone through, or another's."""
    line = source.index.statement(call)
    if isinstance(line, (cst.For, cst.If, cst.While, cst.With)):
        return False
    targets = [text_of(each.target) for each in walk_for(line, cst.AssignTarget)]
    return not any(each.startswith("self.") and each != "self.optimizer" for each in targets)


def _said_of_optimizers(value: cst.BaseExpression) -> tuple[str, ...] | None:
    texts = (str(each.evaluated_value) for each in walk_for(value, cst.SimpleString))
    said = ((text, said_of_optimizer(text)) for text in texts)
    return next((("optimizer", text, *each) for text, each in said if each is not None), None)


def _said_of_smoothing(value: cst.BaseExpression) -> tuple[str, ...] | None:
    numbers: list[cst.Float | cst.Integer] = [*walk_for(value, cst.Float), *walk_for(value, cst.Integer)]
    number = next((each.value for each in numbers if each.evaluated_value > 0), None)
    return None if number is None else (SMOOTHING, number, SMOOTHED, SHIFT_LABELS)


_SAID: dict[str, Callable[[cst.BaseExpression], tuple[str, ...] | None]] = {
    "optim": _said_of_optimizers,
    SMOOTHING: _said_of_smoothing,
}
"""By the argument what is said of its value: what that is, its text, what FSDP2 does, and what to do."""


def _given(source: Source, name: str) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    for call in source.calls:
        named = args_by_name(call)
        if name in named and "fsdp" not in named and is_of_the_trainer(source, call):
            yield named[name], named[name].value


def _defaults(source: Source, name: str) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the defaults of classes that extend the Trainer's arguments."""
    for owner in _classes(source):
        for assign in walk_for(owner.body, cst.AnnAssign) if _extends_arguments(owner) else ():
            if text_of(assign.target) == name and assign.value is not None:
                yield assign, assign.value


def _classes(source: Source) -> Iterator[cst.ClassDef]:
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        yield cst.ensure_type(node, cst.ClassDef)


def _extends_arguments(owner: cst.ClassDef) -> bool:
    names = [last_name(base.value) for base in owner.bases]
    return any(name.endswith(("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")) for name in names)


def _handed_on(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the defaults of a script's own options that can be meant for the Trainer alone, by their names.

    ``parser.add_argument("--optim", default="adamw_bnb_8bit")``, a field of a dataclass, ``{"optim": ...}``.
    """
    for call in source.calls:
        default = args_by_name(call).get("default")
        if default is not None and last_name(call.func) != "field" and _is_of_bitsandbytes(default.value):
            yield default, default.value
    for owner in _classes(source):
        for assign in walk_for(owner.body, cst.AnnAssign) if not _extends_arguments(owner) else ():
            if assign.value is not None and _OPTION in text_of(assign.target) and _holds_one(assign.value):
                yield assign, assign.value
    for node in source.index.by_kind.get(cst.DictElement, ()):
        element = cst.ensure_type(node, cst.DictElement)
        if text_of(element.key).strip("'\"") == _OPTION and _holds_one(element.value):
            yield element, element.value


def _holds_one(value: cst.BaseExpression) -> bool:
    return any(map(_is_of_bitsandbytes, [value, *walk_for(value, cst.SimpleString)]))


def _is_of_bitsandbytes(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.SimpleString) and value.evaluated_value in OF_BITSANDBYTES


def _set(source: Source, name: str) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield what is set later: ``training_args.optim = "adafactor"``."""
    for assign in source.assignments:
        target = assign.targets[0].target
        owner = dotted(target.value) if isinstance(target, cst.Attribute) else None
        if owner is not None and text_of(target).endswith(f".{name}") and "arg" in owner.lower():
            yield assign, assign.value
