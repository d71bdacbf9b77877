"""``optim=`` of Hugging Face's arguments, where a config of the project asks its Trainer for FSDP.

Where ``fsdp=`` stands in the same call, :mod:`fsdp_migrate.source.rules.hf_arguments` says so of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.optimizer_names import said_of_optimizer
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.rules.hf_arguments import is_of_the_trainer
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "trainer-optimizers"
CODES = ("FM343",)

_MEANT = "where Hugging Face's Trainer runs FSDP2 with this optimizer, {}: {} {}"
_NAME = "optim"


def find(source: Source) -> Iterator[Found]:
    """Find names of optimizers that FSDP2 cannot step, in the Trainer's arguments."""
    if "transformers" not in source.links.frameworks:
        return
    for node, value in (*_given(source), *_defaults(source), *_set(source)):
        texts = (str(each.evaluated_value) for each in walk_for(value, cst.SimpleString))
        said = ((text, said_of_optimizer(text)) for text in texts)
        name, found = next(((text, each) for text, each in said if each is not None), ("", None))
        if found is not None:
            yield Found("FM343", node, _MEANT.format(name, *found), "commented")


def _given(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    for call in source.calls:
        named = {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}
        if _NAME in named and "fsdp" not in named and is_of_the_trainer(source, call):
            yield named[_NAME], named[_NAME].value


def _defaults(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield the defaults of classes that extend the Trainer's arguments."""
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        owner = cst.ensure_type(node, cst.ClassDef)
        names = [(dotted(base.value) or "").split(".")[-1] for base in owner.bases]
        for assign in walk_for(owner.body, cst.AnnAssign) if _are_arguments(names) else ():
            if text_of(assign.target) == _NAME and assign.value is not None:
                yield assign, assign.value


def _are_arguments(names: list[str]) -> bool:
    return any(name.endswith(("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")) for name in names)


def _set(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield what is set later: ``training_args.optim = "adafactor"``."""
    for assign in source.assignments:
        target = assign.targets[0].target
        owner = dotted(target.value) if isinstance(target, cst.Attribute) else None
        if owner is not None and text_of(target).endswith(f".{_NAME}") and "arg" in owner.lower():
            yield assign, assign.value
