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

from fsdp_migrate.source.python.heirs import (
    COMPOSERS,
    HUGGING_FACES,
    hands_on,
    is_made_by,
    is_of_its_own,
    led_to,
    makers,
    values_of,
)
from fsdp_migrate.source.python.held import BY, FLAT, attribute, put
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import (
    argument_of,
    dotted,
    given_by_name,
    last_name,
    named_arguments,
    text_of,
)
from fsdp_migrate.source.python.trained_names import TrainedNames, other_names


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from fsdp_migrate.source.python.scopes import Index


COMPOSED: Final = frozenset({"fsdp", "other", f"{BY}composer"})
"""What a name may be that Composer's Trainer was given with FSDP's settings: it shards what is in it."""
SETTINGS: Final = frozenset({"fsdp_config", "parallelism_config"})
"""The arguments that ask Composer's Trainer for FSDP."""
INSTANTIATES: Final = re.compile(r"(?:^|\.)instantiate$")
"""Hydra's function that makes what a config says."""
COMPOSERS_MODEL: Final = re.compile(r"^composer\b(?:\.\w+)*\.(?:Composer\w*|HuggingFaceModel)$")
"""Composer's own classes of models, of which each part is sharded by itself."""
SHARDED: Final = frozenset({"fsdp", "other", f"{BY}transformers"})
"""What the model of a Trainer may be, where it has been sharded."""
RUN_SHARDED: Final = frozenset(
    {
        *("_clip_grad_norm", "_evaluate", "_finalize_training", "_get_grad_norm", "_maybe_log_save_evaluate"),
        *("_prepare_inputs", "_run_epoch", "_save", "_save_checkpoint", "_save_optimizer_and_scheduler"),
        *("compute_loss", "evaluate", "evaluation_loop", "get_batch_samples", "log", "prediction_loop"),
        *("prediction_step", "save_model", "store_flos", "training_step"),
    }
)
"""The methods that a Trainer runs once it has sharded ``self.model``."""
GIVEN_SHARDED: Final = frozenset(
    {
        *("_clip_grad_norm", "_get_grad_norm", "_save_checkpoint", "compute_loss", "prediction_step"),
        "training_step",
    }
)
"""Those of them that are given it first."""
RUN_SHARDED_BY_TRL: Final = re.compile(
    r"^(?:_?generate\w*|_?get_batch_\w+|_calculate_rewards|_compute_loss|_move_model_to_vllm)$"
)
"""The methods that TRL's Trainers run in these."""
_RUN_BEFORE: Final = re.compile(
    r"^(?:__init__|_inner_training_loop|_wrap_model|create_\w+|train|_?get_\w*(?:dataloader|parameter_names|sampler))$"
)
MAKES_OPTIMIZER: Final = "create_optimizer"
"""It is run before FSDP2 shards, and was run after FSDP1 had."""
CHOOSES_OPTIMIZER: Final = "get_optimizer_cls_and_kwargs"
"""It gives the class that the optimizer is made of."""
OF_OPTIMIZERS: Final = frozenset(
    {MAKES_OPTIMIZER, CHOOSES_OPTIMIZER, "create_optimizer_and_scheduler", "get_decay_parameter_names"}
)
"""It, what it runs, and what runs it: with FSDP1 that was once the model was sharded."""
ON_INIT: Final = "on_init_end"
"""The method of a callback that is run before anything is sharded."""
OF_COMPOSERS_MODEL: Final = re.compile(
    r"^(?:loss|eval_forward|update_metric|get_metrics)$|^_*(?:dump|export|push|save|upload)(?:_|$)"
)
"""The methods of a ComposerModel that run outside of its parts, once these are sharded."""
TRAINS: Final = ("train", "_inner_training_loop")
"""The methods of a Trainer that shard its model."""
WRAPS: Final = "_wrap_model"
"""The method by which a Trainer shards."""
SELF_MODELS: Final = frozenset({"self.model", "self.model_wrapped"})
HELD_TRAINER: Final = re.compile(r"^self\._?(?:\w+_)?trainer$")
"""What a callback calls the Trainer that it was made with."""
_ARGUMENTS = re.compile(r"(?:\A|\.)\w*TrainingArguments\Z|\Atrl\..*Config\Z")
_TRAINER = re.compile(r"(?:\A|\.)\w*Trainer\Z")
_OFF = frozenset({"''", '""', "None", "False", "[]"})
_MODELS = frozenset({"model", "model_wrapped"})
_PLACES = ("model", "args")
_LOOK = frozenset({"bool", "callable", "hasattr", "id", "isinstance", "len", "print", "repr", "str", "type"})
_LOG = frozenset({"critical", "debug", "error", "exception", "info", "warning"})
TRAINER: Final = "trainer"
CALLBACK: Final = "callback"
"""What classes of a project are that Hugging Face's Trainer runs."""


def is_run_sharded(method: str) -> bool:
    """Tell whether a Trainer runs a method once it has sharded its model, as far as its name tells.

    Example:
        >>> is_run_sharded("compute_loss"), is_run_sharded("get_batch_metrics"), is_run_sharded("train")
        (True, True, False)
    """
    return method in RUN_SHARDED or RUN_SHARDED_BY_TRL.match(method) is not None


def is_run_by_callbacks(method: str) -> bool:
    """Tell whether a method of a callback is run once the model is sharded.

    Example:
        >>> is_run_by_callbacks("on_save"), is_run_by_callbacks("on_init_end")
        (True, False)
    """
    return method.startswith("on_") and method != ON_INIT


def is_run_before(method: str) -> bool:
    """Tell whether a Trainer runs a method before, or also before, it shards its model."""
    return _RUN_BEFORE.match(method) is not None


def of_itself(text: str, method: str, own: Collection[str] = ()) -> set[str]:
    """Return what ``self.model`` of a Trainer is in one of its methods.

    ``own``: the methods of its own that those run which Trainers have.

    Example:
        >>> of_itself("self.model", "compute_loss") == SHARDED, of_itself("self.model", "__init__")
        (True, set())
    """
    if text not in SELF_MODELS:
        return set()
    if method == MAKES_OPTIMIZER:
        return {FLAT}
    return set(SHARDED) if is_run_sharded(method) or method in own else set()


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
    own_hooks: Mapping[str, Collection[str]] = field(default_factory=dict)
    """By such a class the methods of its own that run once the model is sharded."""

    def of_name(self, node: cst.Name | cst.Attribute) -> set[str]:
        """Return what a name is: such a model, below where it is trained, or what holds one."""
        if not self._trained.calls and not self.run_by_trainer:
            return set()
        if self._trained.is_sharded(node):
            return set(SHARDED)
        if self._trainers.is_sharded(node):
            return holds_model()
        if not self.run_by_trainer or isinstance(self.index.parents[node], cst.AssignTarget):
            return set()
        return self._of_itself(dotted(node) or "", node)

    def may_be_sharded(self, node: cst.BaseExpression) -> bool:
        """Tell whether a Trainer was given it, and it is not seen whether that has trained before."""
        return self._trained.may_be_sharded(node) or self._handed_on.is_sharded(node)

    def _of_itself(self, text: str, node: cst.Name | cst.Attribute) -> set[str]:
        function, owner = self.index.function(node), self.index.class_of(node)
        if function is None or owner is None or self.index.class_of(function) is not owner:
            return set()
        method, own = function.name.value, self.own_hooks.get(self.index.path_of(owner), ())
        if self.kind_around(node) == CALLBACK:
            is_run = is_run_by_callbacks(method) or method in own
            return holds_model() if is_run and HELD_TRAINER.search(text) else set()
        return of_itself(text, method, own) if self._is_trainers(node) else set()

    def kind_around(self, node: cst.CSTNode) -> str:
        """Return what the class around a place is: a Trainer, or a callback of one."""
        owner = self.index.class_of(node)
        return self.run_by_trainer.get(self.index.path_of(owner), "") if owner is not None else ""

    @functools.cached_property
    def _trained(self) -> TrainedNames:
        found = TrainedNames(self.index)
        for call, model in self.trainings:
            trainer = text_of(cst.ensure_type(call.func, cst.Attribute).value)
            for name in (*(f"{trainer}.{each}" for each in _MODELS), *([model] if model else [])):
                found.add(name, call)
        # A Trainer's own `train`, which is run before that shards, has the sharded model below.
        for call in (each for name in TRAINS for each in self.index.calls_of_method(name)):
            above = text_of(cst.ensure_type(call.func, cst.Attribute).value).startswith("super(")
            if above and self._is_trainers(call):
                for name in SELF_MODELS:
                    found.add(name, call)
        return found

    def wrapped(self, call: cst.Call) -> set[str]:
        """Return what ``self._wrap_model(..)`` of a Trainer gives: its model, which a loop has.

        A class that has a ``_wrap_model`` of its own is followed into that.
        """
        owner = self.index.class_of(call)
        if owner is None or dotted(call.func) != f"self.{WRAPS}" or not self._is_trainers(call):
            return set()
        own = (each.name.value for each in owner.body.body if isinstance(each, cst.FunctionDef))
        return set() if WRAPS in own else set(SHARDED)

    def _is_trainers(self, node: cst.CSTNode) -> bool:
        return self.kind_around(node) == TRAINER

    @functools.cached_property
    def _trainers(self) -> TrainedNames:
        found = TrainedNames(self.index)
        for call, _ in self.trainings:
            found.add(text_of(cst.ensure_type(call.func, cst.Attribute).value), call)
        return found

    @functools.cached_property
    def _handed_on(self) -> TrainedNames:
        """The models of Trainers that are given to functions, which may train: ``run(trainer)``."""
        found = TrainedNames(self.index)
        for call in self._calls if self.is_asked else ():
            for arg in () if _only_looks(call) else call.args:
                made = self.made(arg.value) if isinstance(arg.value, cst.Name) else None
                for name in self._names(arg.value, made) if made is not None else ():
                    found.add(name, call)
        return found

    @functools.cached_property
    def _calls(self) -> list[cst.Call]:
        return [cst.ensure_type(node, cst.Call) for node in self.index.by_kind.get(cst.Call, ())]

    @functools.cached_property
    def is_asked(self) -> bool:
        """Whether this source, or another file of the project, asks a Trainer for FSDP."""
        return self.is_told or any(map(self._asks_for_fsdp, self._calls))

    @functools.cached_property
    def trainings(self) -> list[tuple[cst.Call, str]]:
        """The calls of ``trainer.train()``, each with every name of the model that the Trainer was given."""
        found = []
        for call in self.index.calls_of_method("train") if self.is_asked else ():
            trainer = cst.ensure_type(call.func, cst.Attribute).value
            made = self.made(trainer)
            if made is not None:
                found += [(call, name) for name in dict.fromkeys(self._names(trainer, made)) or ("",)]
        return found

    def _names(self, trainer: cst.BaseExpression, made: cst.Call) -> Iterator[str]:
        """Yield what a Trainer's model is called where the Trainer is: as it was given, or in ``self``."""
        model = _given(self.index, made).get("model")
        text = dotted(model) if isinstance(model, (cst.Name, cst.Attribute)) else None
        if text is None:
            return
        names = [text, *other_names(self.index, text, made)]
        if self.index.function(made) is self.index.function(trainer):
            yield from names
            return
        yield from (name for name in names if name.startswith("self.") and isinstance(trainer, cst.Attribute))
        if isinstance(trainer, cst.Name):
            yield from given_beside(self.index, trainer, text)

    def _asks_for_fsdp(self, call: cst.Call) -> bool:
        if not any(map(_ARGUMENTS.search, self.index.qualified(call.func))):
            return False
        return any(text_of(each) not in _OFF for each in given_by_name(call, "fsdp"))

    def made(self, trainer: cst.BaseExpression) -> cst.Call | None:
        """Return the call that makes a Trainer, as its class or the name of that says."""
        made = list(makers(self.index, trainer)) if not isinstance(trainer, cst.Call) else []
        if len(made) != 1:
            return None
        func = made[0].func
        # A class of this source has no name that imports write. A project's own is one by its arguments.
        known = self.index.qualified(func) or {dotted(func) or ""}
        leads = led_to(self.index, func)
        if not any(map(_TRAINER.search, known | leads)) or is_of_its_own(self.index, func):
            return None
        is_its = any(map(HUGGING_FACES.match, leads - known))
        has_arguments = "args" in _given(self.index, made[0])
        return made[0] if is_its or not self.is_told or has_arguments else None


def _only_looks(call: cst.Call) -> bool:
    """Tell whether a call looks at what it is given, and runs nothing of it."""
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value in _LOG
    return dotted(call.func) in _LOOK


def given_beside(index: Index, trainer: cst.Name, model: str) -> Iterator[str]:
    """Yield what is called as a function's model is that gives both: ``net, trainer = build()``."""
    for binding in index.bindings_of(trainer):
        call = binding.value
        if binding.index is None or not isinstance(call, cst.Call):
            continue
        above = index.parents.get(call)
        target = above.targets[0].target if isinstance(above, cst.Assign) else None
        for element in target.elements if isinstance(target, (cst.Tuple, cst.List)) else ():
            name = element.value
            if isinstance(name, cst.Name) and any(dotted(each) == model for each in values_of(index, name)):
                yield name.value


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
        return named_arguments(held)
    return {}


def given_to_composer(index: Index, *, is_told: bool) -> TrainedNames:
    """Return the names that Composer's Trainer is given to shard.

    ``is_told``: whether the project asks for it, so that what a call does not show may do so.
    """
    found = TrainedNames(index)
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        named = named_arguments(call)
        if not _asks_composer(index, call, named, is_told=is_told):
            continue
        model = argument_of(call, 0, {"model"})
        text = dotted(model) if isinstance(model, (cst.Name, cst.Attribute)) else None
        for name in (text, *other_names(index, text, call)) if text is not None else ():
            found.add(name, call)
    return found


def _asks_composer(
    index: Index, call: cst.Call, named: Mapping[str, cst.BaseExpression], *, is_told: bool
) -> bool:
    """Tell whether a call makes Composer's Trainer and asks for FSDP, or may, by ``**`` or a config."""
    asked = [text_of(named[name]) for name in SETTINGS & named.keys()]
    if asked:
        return any(text != "None" for text in asked) and is_made_by(index, call, COMPOSERS)
    if not is_told:
        return False
    if "model" in named and INSTANTIATES.search(text_of(call.func)):
        return any("trainer" in text_of(arg.value).lower() for arg in call.args[:1])
    is_open = any(arg.star == "**" for arg in call.args) or not hands_on(index, call.func)
    return is_open and is_made_by(index, call, COMPOSERS)


def is_composers_model(text: str) -> bool:
    """Tell whether a dotted name is the model of Composer's Trainer.

    Example:
        >>> is_composers_model("self.trainer.state.model"), is_composers_model("state.model")
        (True, False)
    """
    return text.endswith("trainer.state.model")


def is_composers_ddp(test: cst.BaseExpression, truth: bool) -> bool:
    """Tell whether what is known of a test shows that Composer shards nothing: ``state.is_model_ddp``."""
    last = last_name(test)
    return last in {"deepspeed_enabled", "is_model_ddp"} if truth else last == "fsdp_enabled"
