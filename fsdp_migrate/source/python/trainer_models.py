"""The model of Hugging Face's Trainer, where its arguments ask for FSDP: sharded by ``train()``.

Of its own methods, and of those of callbacks, some are run before that and some after it; which ones they are
is what transformers does, and held by a test against it. Composer's Trainer shards its model when it is made.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.held import BY, FLAT, attribute, put
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.source.python.scopes import Index


COMPOSED: Final = frozenset({"fsdp", "other", f"{BY}composer"})
"""What a name may be that Composer's Trainer was given with FSDP's settings: it shards what is in it."""
COMPOSERS: Final = frozenset(f"composer.{name}Trainer" for name in ("", "trainer.", "trainer.trainer."))
"""What Composer's Trainer is called."""
SETTINGS: Final = frozenset({"fsdp_config", "parallelism_config"})
"""The arguments that ask it for FSDP."""
SHARDED: Final = frozenset({"fsdp", "other", f"{BY}transformers"})
"""What the model of a Trainer may be, where it has been sharded."""
RUN_SHARDED: Final = frozenset(
    {
        "_maybe_log_save_evaluate",
        "_save",
        "_save_checkpoint",
        "compute_loss",
        "evaluate",
        "evaluation_loop",
        "log",
        "prediction_loop",
        "prediction_step",
        "save_model",
        "training_step",
    }
)
"""The methods that a Trainer runs once it has sharded ``self.model``."""
GIVEN_SHARDED: Final = frozenset({"_save_checkpoint", "compute_loss", "prediction_step", "training_step"})
"""Those of them that are given it as ``model``."""
MAKES_OPTIMIZER: Final = "create_optimizer"
"""It is run before FSDP2 shards, and was run after FSDP1 had."""
ON_INIT: Final = "on_init_end"
"""The method of a callback that is run before anything is sharded."""
SELF_MODELS: Final = frozenset({"self.model", "self.model_wrapped"})
_ARGUMENTS = re.compile(r"(?:\A|\.)\w*TrainingArguments\Z|\Atrl\..*Config\Z")
_TRAINER = re.compile(r"(?:\A|\.)\w*Trainer\Z")
_OFF = frozenset({"''", '""', "None", "False", "[]"})
_MODELS = frozenset({"model", "model_wrapped"})
_PLACES = ("model", "args")
TRAINER: Final = "trainer"
CALLBACK: Final = "callback"
"""What classes of a project are that Hugging Face's Trainer runs."""
Trained = tuple[cst.CSTNode | None, int]
"""The function in which a Trainer trains, and the place of that call."""


def of_itself(text: str, method: str) -> set[str]:
    """Return what ``self.model`` of a Trainer is in one of its methods.

    Example:
        >>> of_itself("self.model", "compute_loss") == SHARDED, of_itself("self.model", "__init__")
        (True, set())
    """
    if text not in SELF_MODELS:
        return set()
    if method == MAKES_OPTIMIZER:
        return {FLAT}
    return set(SHARDED) if method in RUN_SHARDED else set()


def holds_model() -> set[str]:
    """Return what a Trainer holds that has trained."""
    return {kind for name in _MODELS for kind in put(attribute(name), SHARDED)}


@dataclass(eq=False)
class HFTrainers:
    """Answers for one source which names are models that a Trainer has sharded. Reads only."""

    index: Index
    is_told: bool = False
    """Whether another file of the project asks for FSDP."""
    run_by_trainer: Mapping[str, str] = field(default_factory=dict)
    """The classes of this source that are Trainers themselves, or callbacks of theirs."""

    def of_name(self, node: cst.Name | cst.Attribute) -> set[str]:
        """Return what a name is: such a model, below where it is trained, or what holds one."""
        if not self._trained and not self.run_by_trainer:
            return set()
        text = dotted(node) or ""
        found = self._trained.get(text) or self._trained.get(f"{text}.model")
        if isinstance(self.index.parents[node], cst.AssignTarget):
            return set()
        if found is None:
            return self._of_itself(text, node) if self.run_by_trainer else set()
        if self.index.function(node) is not found[0] or self.index.order.get(node, 0) <= found[1]:
            return set()
        if isinstance(node, cst.Name) and self._is_bound_since(node, found[1]):
            return set()
        return set(SHARDED) if text in self._trained else holds_model()

    def _is_bound_since(self, node: cst.Name, trained: int) -> bool:
        """Tell whether a name is given another value behind the training, and above its use."""
        order = self.index.order
        bound = (order.get(each.node, 0) for each in self.index.bindings_of(node))
        return any(trained < place < order.get(node, 0) for place in bound)

    def _of_itself(self, text: str, node: cst.Name | cst.Attribute) -> set[str]:
        function, owner = self.index.function(node), self.index.class_of(node)
        if function is None or owner is None or self.index.class_of(function) is not owner:
            return set()
        return of_itself(text, function.name.value) if self.kind_around(node) == TRAINER else set()

    def kind_around(self, node: cst.CSTNode) -> str:
        """Return what the class around a place is: a Trainer, or a callback of one."""
        owner = self.index.class_of(node)
        return self.run_by_trainer.get(self.index.path_of(owner), "") if owner is not None else ""

    @functools.cached_property
    def _trained(self) -> dict[str, Trained]:
        found: dict[str, Trained] = {}
        for call, model in self.trainings:
            trainer = text_of(cst.ensure_type(call.func, cst.Attribute).value)
            place = (self.index.function(call), self.index.order[call])
            for name in (*(f"{trainer}.{each}" for each in _MODELS), model):
                found.setdefault(name, place)
        found.pop("", None)
        return found

    @functools.cached_property
    def trainings(self) -> list[tuple[cst.Call, str]]:
        """The calls of ``trainer.train()``, and what the model was called that the Trainer was given."""
        calls = [cst.ensure_type(node, cst.Call) for node in self.index.by_kind.get(cst.Call, ())]
        if not self.is_told and not any(map(self._asks_for_fsdp, calls)):
            return []
        found = []
        for call in calls:
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "train":
                continue
            made = self._made(func.value)
            if made is not None:
                model = _given(self.index, made).get("model")
                is_name = isinstance(model, (cst.Name, cst.Attribute))
                found.append((call, (dotted(model) or "") if model is not None and is_name else ""))
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
        if len(made) != 1:
            return None
        # A class of this source has no name that imports write. A project's own is one by its arguments.
        known = self.index.qualified(made[0].func) or {dotted(made[0].func) or ""}
        is_one = any(map(_TRAINER.search, known))
        has_arguments = "args" in _given(self.index, made[0])
        return made[0] if is_one and (not self.is_told or has_arguments) else None


def _given(index: Index, call: cst.Call) -> dict[str, cst.BaseExpression]:
    """Return what a Trainer is given by names, the first two places' too, and by a dict: ``**kwargs``."""
    found: dict[str, cst.BaseExpression] = {}
    for place, arg in enumerate(call.args):
        if arg.keyword is not None:
            found[arg.keyword.value] = arg.value
        elif not arg.star and place < len(_PLACES):
            found[_PLACES[place]] = arg.value
        elif arg.star == "**":
            found |= _items(index, arg.value)
    return found


def _items(index: Index, node: cst.BaseExpression) -> dict[str, cst.BaseExpression]:
    """Return the items of a dict, also by its name: ``{"model": net}``, ``dict(model=net)``."""
    held = last_value(index, node) if isinstance(node, cst.Name) and node in index.scopes else node
    if isinstance(held, cst.Dict):
        pairs = (each for each in held.elements if isinstance(each, cst.DictElement))
        return {
            str(each.key.evaluated_value): each.value
            for each in pairs
            if isinstance(each.key, cst.SimpleString)
        }
    if isinstance(held, cst.Call) and dotted(held.func) == "dict":
        return {arg.keyword.value: arg.value for arg in held.args if arg.keyword is not None}
    return {}


def given_to_composer(index: Index) -> dict[str, tuple[cst.CSTNode | None, int]]:
    """Return the names that Composer's Trainer is given to shard, each with the function and the place."""
    found: dict[str, tuple[cst.CSTNode | None, int]] = {}
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        named = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
        asked = (text_of(named[name]) for name in SETTINGS & named.keys())
        if not any(text != "None" for text in asked) or not COMPOSERS & index.qualified(call.func):
            continue
        placed = [arg.value for arg in call.args[:1] if arg.keyword is None and not arg.star]
        model = named.get("model", placed[0] if placed else None)
        if isinstance(model, cst.Name):
            found.setdefault(model.value, (index.function(call), index.order[call]))
    return found
