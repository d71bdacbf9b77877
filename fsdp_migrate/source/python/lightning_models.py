"""Lightning's Trainer as the holder of a sharded model: ``trainer.strategy.model``, ``self.trainer.model``.

Under ``FSDPStrategy`` these are FSDP1's; under another strategy they are not, which a source does not tell.
"""

from __future__ import annotations

import functools
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.asked_as_models import asked_as_models, is_model
from fsdp_migrate.source.python.heirs import LIGHTNINGS, is_made_by, led_to, makers
from fsdp_migrate.source.python.held import BY
from fsdp_migrate.source.python.nodes import argument_of, dotted, text_of, walk_for
from fsdp_migrate.source.python.reached_methods import reached
from fsdp_migrate.source.python.trained_names import TrainedNames, other_names


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from fsdp_migrate.source.python.scopes import Index


_MODEL = re.compile(r"(^|\.)(trainer|strategy)\.(model|lightning_module)$")
LIGHTNING: Final = f"{BY}lightning"
SHARDED: Final = frozenset({"fsdp", "other", LIGHTNING})
"""What a LightningModule, or a model that is a part of it, may be in these hooks."""
MODULE = re.compile(r"^(?:lightning|pytorch_lightning)(?:\.\w+)*\.LightningModule$")
# They run once the strategy has sharded the module; in a step the root's parameters are whole.
_HOOKS = re.compile(
    r"^(configure_(optimizers|gradient_clipping)|optimizer_(step|zero_grad)|on_(before|after)_(backward|\w+_step"
    r"|zero_grad)|on_(predict|sanity_check|test|train|validation)_(\w+_)?(start|end)"
    r"|on_(fit_end|fit_start|load_checkpoint|save_checkpoint))$"
)
# Lightning runs these by itself, when the parameters are whole, or before they are sharded.
_ELSEWHERE = re.compile(
    r"^(?:__init__|configure_\w+|forward|prepare_data|setup|teardown|\w+_dataloader|\w+_step)$"
)
_BEFORE = frozenset({"__init__", "configure_callbacks", "prepare_data", "setup"})
_RUN_BY_IT = re.compile(
    r"^(?:lightning|pytorch_lightning)(?:\.\w+)*\.(?:\w*Callback|\w*Checkpoint|LightningModule)$"
)
_TRAINING_STEP = re.compile(r"^training_step$")
_STEPS = re.compile(r"_step$|^forward$|loss|penalt|regulari[sz]")
UNITS = re.compile(r"\bauto_wrap_policy['\"]?\s*[:=](?!\s*(?:None|null)\b)|\bconfigure_sharded_model\b")
"""What a project names that Lightning's FSDP1 strategy makes units of."""
TRAINER = re.compile(r"(^|[._])trainer$", re.IGNORECASE)
"""What Lightning's Trainer is called."""
_OTHERS = re.compile(r"^(?:composer|sentence_transformers|transformers|trl)\.")
_PACKAGES = frozenset({"lightning", "pytorch_lightning"})
_WORD = re.compile(r"^['\"]fsdp(_native|_cpu_offload|_native_full_shard_offload)?['\"]$")

_STRATEGIES = ("FSDPStrategy", "DDPFullyShardedNativeStrategy")
_IMPORTS = re.compile(r"^[ \t]*(from|import)\s+(lightning|pytorch_lightning)\b", re.MULTILINE)
_ASKS = re.compile(
    r"\b\w*FSDPStrategy\b|\bDDPFullyShardedNativeStrategy\b|\bstrategy['\"]?\]?\s*[=:]\s*['\"]fsdp"
    r"|['\"]fsdp(?:_native|_cpu_offload|_native_full_shard_offload)?['\"]"
)
_IMPORTED = re.compile(
    r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import\b[ \t]*(?:\([^)]*\)|(?:[^\n\\]|\\\n)*)", re.MULTILINE
)
_LOOKS_UP = re.compile(r"\b(?:eval|globals|locals)\(")
_NAMED_BY_WORD = re.compile(r"\bTrainer\([^()]*\bstrategy\s*=\s*['\"]fsdp")
_MAKES_FABRIC = re.compile(r"\bFabric\(")
_MAKES_TRAINER = re.compile(r"\bTrainer\(|\bLightningCLI\(")
_OPTION = re.compile(r"['\"]--strategy['\"]")
_BY_NAME = re.compile(r"\bstrategy['\"]?\]?\s*(?::\s*[\w\[\], .|]+?)?[=:]\s*['\"]fsdp")
_READS = re.compile(r"\b(trainer|strategy)\.(model|lightning_module)\b")


def is_trainers_model(text: str) -> bool:
    """Tell whether a dotted name is what a Trainer, or its strategy, trains.

    Example:
        >>> is_trainers_model("self.trainer.strategy.model"), is_trainers_model("trainer.models")
        (True, False)
    """
    return _MODEL.search(text) is not None


def is_named_as_part(text: str, asked: Collection[str] = ()) -> bool:
    """Tell whether a dotted name is ``self``, or an attribute of it that is a model, as far as is seen.

    Example:
        >>> is_named_as_part("self.model"), is_named_as_part("self.loss")
        (True, False)
    """
    start, _, rest = text.partition(".")
    return start == "self" and (not rest or ("." not in rest and is_model(rest, asked)))


def is_run_sharded(hook: str) -> bool:
    """Tell whether a hook is run once the strategy has sharded the LightningModule.

    Example:
        >>> is_run_sharded("on_train_batch_end"), is_run_sharded("setup")
        (True, False)
    """
    return _HOOKS.match(hook) is not None


def is_run_elsewhere(method: str) -> bool:
    """Tell whether Lightning runs a method of a LightningModule at another time than its hooks.

    Example:
        >>> is_run_elsewhere("validation_step"), is_run_elsewhere("log_norms")
        (True, False)
    """
    return _ELSEWHERE.match(method) is not None


def is_within_a_module(
    index: Index,
    node: cst.Name | cst.Attribute,
    mixins: Collection[str] = (),
    own_hooks: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> bool:
    """Tell whether it is ``self``, or a model that is a part of it, where a LightningModule is sharded.

    ``own_hooks``: by class the methods of its own that hooks run, also those that stand in other files.
    """
    owner = index.class_of(node)
    if owner is None:
        return False
    methods = _with(run_in(owner, _HOOKS), own_hooks.get(index.path_of(owner), ()))
    if is_part_within(index, node, MODULE, methods, mixins):
        return True
    return _optimizes_itself(owner) and is_part_within(index, node, MODULE, _optimizing(owner))


def is_in_a_step(index: Index, node: cst.Name | cst.Attribute) -> bool:
    """Tell whether a step goes through parameters of a LightningModule: those of units are sharded there."""
    above: cst.CSTNode = node
    while isinstance(index.parents[above], cst.Attribute):
        above = index.parents[above]
    is_list = isinstance(above, cst.Attribute) and above.attr.value in {"parameters", "named_parameters"}
    owner = index.class_of(node) if is_list else None
    return owner is not None and is_part_within(index, node, MODULE, run_in(owner, _STEPS))


@functools.lru_cache(maxsize=64)
def run_in(owner: cst.ClassDef, methods: re.Pattern[str]) -> re.Pattern[str]:
    """Return the methods of a class that have such names, or of its own that those run."""
    calls: dict[str, set[str]] = {}
    for each in walk_for(owner, cst.FunctionDef):
        asked = (dotted(node) or "" for node in walk_for(each, cst.Attribute))
        names = (text.removeprefix("self.") for text in asked if text.startswith("self."))
        calls.setdefault(each.name.value, set()).update(names)
    return _with(methods, reached(calls, methods.search, _ELSEWHERE.match))


def _with(methods: re.Pattern[str], names: Collection[str]) -> re.Pattern[str]:
    more = (f"^{re.escape(each)}$" for each in sorted(names))
    return re.compile("|".join((methods.pattern, *more))) if names else methods


def is_before_sharding(index: Index, node: cst.CSTNode) -> bool:
    """Tell whether it stands in a method that Lightning runs before its strategy shards the module."""
    function, owner = index.function(node), index.class_of(node)
    if function is None or owner is None or index.class_of(function) is not owner:
        return False
    if function.name.value not in _BEFORE:
        return False
    return any(_RUN_BY_IT.match(name) for base in owner.bases for name in led_to(index, base.value))


def is_part_within(
    index: Index,
    node: cst.Name | cst.Attribute,
    above: re.Pattern[str],
    methods: re.Pattern[str],
    mixins: Collection[str] = (),
) -> bool:
    """Tell whether it is ``self``, or a model that is a part of it, in some methods of some classes.

    ``mixins``: classes that such ones derive from.
    """
    if not is_named_as_part(text_of(node), asked_as_models(index, or_called=False)):
        return False
    if not isinstance(index.parents[node], (cst.Arg, cst.Attribute, cst.Subscript)):
        return False
    function, owner = index.function(node), index.class_of(node)
    if function is None or owner is None or index.class_of(function) is not owner:
        return False
    if methods.search(function.name.value) is None:
        return False
    if owner.name.value in mixins:
        return True
    return any(above.match(name) for base in owner.bases for name in led_to(index, base.value))


@functools.lru_cache(maxsize=64)
def _optimizing(owner: cst.ClassDef) -> re.Pattern[str]:
    """Return ``training_step``, and the methods that it may leave the backward to: ``sam_step``."""
    methods = (each for each in owner.body.body if isinstance(each, cst.FunctionDef))
    names = {
        each.name.value
        for each in methods
        if any(dotted(call.func) == "self.manual_backward" for call in walk_for(each, cst.Call))
    }
    return _with(_TRAINING_STEP, names)


@functools.lru_cache(maxsize=64)
def _optimizes_itself(owner: cst.ClassDef) -> bool:
    """Tell whether a LightningModule clips and steps in its ``training_step``."""
    assigns = walk_for(owner, cst.Assign)
    return any(
        text_of(each.value) == "False" and "automatic_optimization" in text_of(each.targets[0].target)
        for each in assigns
    )


def fitted(index: Index) -> TrainedNames:
    """Return the names that Lightning's ``trainer.fit(model)`` is given, whatever the Trainer is called."""
    found = TrainedNames(index)
    for call in index.calls_of_method("fit"):
        if not is_trainer(index, cst.ensure_type(call.func, cst.Attribute).value):
            continue
        given = argument_of(call, 0, {"model"})
        text = dotted(given) if given is not None else None
        for name in (text, *other_names(index, text, call)) if text else ():
            found.add(name, call)
    return found


def is_trainer(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether it is Lightning's Trainer: by its class, or by its name where that is not seen."""
    if is_made_by(index, node, LIGHTNINGS) or any(map(LIGHTNINGS.match, led_to(index, node))):
        return True
    if TRAINER.search(text_of(node)) is None:
        return False
    return not any(_is_seen(index, call.func) for call in makers(index, node))


def _is_seen(index: Index, func: cst.BaseExpression) -> bool:
    """Tell whether what makes an object is a class of this source, or another framework's."""
    names = led_to(index, func)
    is_class = isinstance(func, cst.Name) and any(each.kind == "class" for each in index.bindings_of(func))
    return (is_class and not names) or any(map(_OTHERS.match, names))


def trains_by_fsdp1(index: Index, *, is_told: bool) -> bool:
    """Tell whether a source uses Lightning and asks for its FSDP1 strategy, or ``is_told`` that others do.

    What it imports of the project may be a class that derives from Lightning's Trainer.
    """
    if is_told:
        return True
    bindings = ((name, each) for name, found in index.scope.bindings.items() for each in found)
    known = {(name, each.qualified) for name, each in bindings if each.qualified is not None}
    names = {qualified for _, qualified in known}
    above = (name for each in index.heirs.values() for name in each)
    if not any(name.split(".")[0] in _PACKAGES for name in names) and not any(map(LIGHTNINGS.match, above)):
        return False
    theirs = {each for each in known if each[1].endswith(_STRATEGIES) or _is_fsdp1(each[1])}
    if theirs and _uses(index.module.code, {name for name, full in theirs if "fabric" not in full}):
        return True
    texts = index.by_kind.get(cst.SimpleString, ())
    is_named = any(_WORD.match(cst.ensure_type(each, cst.SimpleString).value) for each in texts)
    return is_named and not _is_fabrics(index.module.code)


def _is_fsdp1(name: str) -> bool:
    return catalog.fsdp1_name(name) == catalog.FSDP


def _uses(text: str, names: Collection[str]) -> bool:
    """Tell whether a text has one of some names outside of its imports, or may look names up."""
    below = _IMPORTED.sub("", text)
    used = any(re.search(rf"\b{re.escape(name)}\b", below) for name in names)
    return used or (bool(names) and _LOOKS_UP.search(text) is not None)


def using_lightning(texts: Mapping[Path, str]) -> list[Path]:
    """Return the files that import Lightning."""
    # A word is found a hundred times as fast as an expression.
    return [path for path, text in texts.items() if "lightning" in text and _IMPORTS.search(text)]


def asking_for_fsdp1(texts: Mapping[Path, str], *, or_fabric: bool = False) -> list[Path]:
    """Return the files that ask Lightning's Trainer for its FSDP1 strategy, or a Fabric for its own.

    An import alone is no strategy, and Fabric's is none for the Trainer, which refuses it.
    """
    users = (path for path in using_lightning(texts) if _ASKS.search(texts[path]))
    return [path for path in users if _asks(texts[path]) and (or_fabric or not _is_fabrics(texts[path]))]


def _asks(text: str) -> bool:
    """Tell whether a text asks for the strategy outside of its imports, or may look names of these up."""
    return _LOOKS_UP.search(text) is not None or _ASKS.search(_IMPORTED.sub("", text)) is not None


def _is_fabrics(text: str) -> bool:
    """Tell whether the strategy that a text asks for goes to a Fabric: its class, or a word for one."""
    homes = {each[1] for each in _IMPORTED.finditer(text) if _STRATEGIES[0] in each[0]}
    if homes:
        return all("fabric" in home for home in homes) and not _NAMED_BY_WORD.search(text)
    return _MAKES_FABRIC.search(text) is not None and _MAKES_TRAINER.search(text) is None


def has_option(text: str) -> bool:
    """Tell whether a text has an option, or a setting, by which Lightning's FSDP1 strategy may be chosen.

    Example:
        >>> has_option('add("--strategy", choices=["fsdp"])'), has_option('strategy: str = "fsdp"')
        (True, True)
    """
    return "fsdp" in text and (_OPTION.search(text) is not None or _BY_NAME.search(text) is not None)


def trained_elsewhere(texts: Mapping[Path, str], of_others: Collection[Path] = ()) -> set[Path]:
    """Return the files that train by Lightning's FSDP1, and those that ask such a Trainer for its model.

    ``of_others``: the files that have a Trainer of another one, which may be that which asks.
    """
    asking = set(asking_for_fsdp1(texts))
    if not asking:
        return set()
    fitting = {path for path in asking.union(of_others) if ".fit(" in texts[path]}
    return fitting | {path for path in using_lightning(texts) if _READS.search(texts[path])}
