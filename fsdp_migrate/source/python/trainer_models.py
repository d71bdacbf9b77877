"""The model of Hugging Face's Trainer, where its arguments ask for FSDP: sharded by ``train()``."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_ARGUMENTS = re.compile(r"(?:\A|\.)\w*TrainingArguments\Z|\Atrl\..*Config\Z")
_TRAINER = re.compile(r"(?:\A|\.)\w*Trainer\Z")
_OFF = frozenset({"''", '""', "None", "False", "[]"})
_MODELS = frozenset({"model", "model_wrapped"})
Trained = tuple[cst.CSTNode | None, int]
"""The function in which a Trainer trains, and the place of that call."""


@dataclass(eq=False)
class HFTrainers:
    """Answers for one source which names are models that a Trainer has sharded. Reads only."""

    index: Index

    def is_theirs(self, node: cst.Name | cst.Attribute) -> bool:
        """Tell whether it is such a model, in the function that trains it, and below that."""
        if not self._trained:
            return False
        found = self._trained.get(dotted(node) or "")
        if found is None or isinstance(self.index.parents[node], cst.AssignTarget):
            return False
        return self.index.function(node) is found[0] and self.index.order.get(node, 0) > found[1]

    @functools.cached_property
    def _trained(self) -> dict[str, Trained]:
        calls = [cst.ensure_type(node, cst.Call) for node in self.index.by_kind.get(cst.Call, ())]
        if not any(map(self._asks_for_fsdp, calls)):
            return {}
        found: dict[str, Trained] = {}
        for call in calls:
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "train":
                continue
            made = self._made(func.value)
            if made is not None:
                place = (self.index.function(call), self.index.order[call])
                for name in (*(f"{text_of(func.value)}.{each}" for each in _MODELS), _model_of(made)):
                    found.setdefault(name, place)
        found.pop("", None)
        return found

    def _asks_for_fsdp(self, call: cst.Call) -> bool:
        if not any(map(_ARGUMENTS.search, self.index.qualified(call.func))):
            return False
        given = (arg for arg in call.args if arg.keyword is not None and arg.keyword.value == "fsdp")
        return any(text_of(arg.value) not in _OFF for arg in given)

    def _made(self, trainer: cst.BaseExpression) -> cst.Call | None:
        """Return the call that makes a Trainer, as the name says."""
        values = (
            (each.value for each in self.index.bindings_of(trainer)) if isinstance(trainer, cst.Name) else ()
        )
        made = [each for each in values if isinstance(each, cst.Call)]
        is_one = len(made) == 1 and any(map(_TRAINER.search, self.index.qualified(made[0].func)))
        return made[0] if is_one else None


def _model_of(trainer: cst.Call) -> str:
    """Return the name of the model that a Trainer is given."""
    for place, arg in enumerate(trainer.args):
        name = (
            arg.keyword.value if arg.keyword is not None else "model" if place == 0 and not arg.star else ""
        )
        if name == "model" and isinstance(arg.value, (cst.Name, cst.Attribute)):
            return dotted(arg.value) or ""
    return ""
