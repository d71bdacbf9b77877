"""Lightning's FSDP1 strategy where a source asks for it, and what is private to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.claims import LIGHTNING_FOLDERS, LIGHTNING_SETTINGS
from fsdp_migrate.source.python.accelerators import is_one
from fsdp_migrate.source.python.fabric_models import FABRICS
from fsdp_migrate.source.python.lightning_models import TRAINER
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.values import definition
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_ASKED = (
    "this asks for Lightning's FSDP1 strategy: ask for ModelParallelStrategy, and see what depends on it."
)
_RAYS = re.compile(r"^ray\.train\.lightning\.(\w+\.)*RayFSDPStrategy$")
_RAY_SAID = (
    "this is Lightning's FSDP1 strategy with Ray's devices and ranks: derive a class from "
    "ModelParallelStrategy with the same root_device and distributed_sampler_kwargs, and call "
    "prepare_fully_shard(self, {...}) in the module's configure_model, with the arguments that stand here."
)
_PRIVATE = re.compile(
    r"^(lightning|pytorch_lightning|lightning_fabric|lightning\.(pytorch|fabric))\.strategies\.fsdp\._\w+$"
)
_CONSOLIDATES = re.compile(r"^(?:lightning\.pytorch|pytorch_lightning)\.utilities\.consolidate_checkpoint\b")
_RUN = re.compile(
    r"(?:^|\s)(?:lightning\.pytorch|pytorch_lightning)\.utilities\.consolidate_checkpoint(?:\s|$)"
)
_OF_FSDP1 = "_fsdp_kwargs"
_METADATA = "_METADATA_FILENAME"
_METADATA_SAID = "import this name from lightning.fabric.utilities.load, as ModelParallelStrategy does."
_PRIVATE_SAID = (
    "this is private to Lightning's FSDP1 strategy: under ModelParallelStrategy the whole state is that of "
    "torch's get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), "
    "which every rank asks for."
)
_CHECKPOINTING = "_setup_activation_checkpointing"
_CHECKPOINTING_SAID = (
    "this is private to Lightning's FSDP1 strategy, and comes too late once FSDP2 has sharded the model: "
    "give prepare_fully_shard(..., activation_checkpointing=) the classes of layers, in configure_model."
)
_OTHER_SAID = (
    "this is private to Lightning's FSDP1 strategy, whose place ModelParallelStrategy takes: see what it is "
    "asked for here."
)
_KWARGS = (
    "Lightning's FSDP1 strategy alone has `_fsdp_kwargs`: where ModelParallelStrategy takes its place, "
    "ask isinstance(strategy, ModelParallelStrategy), or the other branch runs."
)
_BY_NAME = (
    "ModelParallelStrategy, which takes the place of Lightning's FSDP1 strategy, has no strategy_name, so "
    "that this raises: ask isinstance(strategy, ModelParallelStrategy)."
)
_NAME = "strategy_name"
_SETTING = (
    "Lightning's FSDP1 strategy alone has `{}`: ModelParallelStrategy, which takes its place, {}. Keep the "
    "setting in a name of your own, and ask that."
)
_RAISES = "raises AttributeError"
_DEFAULTS = "has none, so that what this gives is another thing, without an error"
_ASKS = frozenset({"getattr", "hasattr"})
# What a config says of a strategy is its own: `cfg.trainer.strategy.cpu_offload`.
_OF_CONFIGS = re.compile(r"(?:^|[._])(?:args|cfg|conf|config|hparams|opts?|params|settings)(?:[._]|$)")
_WORD = re.compile(r"fsdp(?:_native|_cpu_offload)?$")
_REFUSED = (
    "this refuses Lightning's FSDP1 strategy: see whether it has to refuse ModelParallelStrategy, which "
    "takes its place, as well."
)
_NAMES_FSDP2 = re.compile(r"fsdp_?v?2|fully_shard|modelparallel")


def privates(source: Source) -> Iterator[Found]:
    """Find what is private to the strategy: its contexts, and the attribute that tells it from others."""
    for node in (*source.loads, *source.attributes):
        names = list(filter(_PRIVATE.match, source.index.qualified(node)))
        if names:
            yield Found("FM319", node, _said_of_private(names[0]), "commented")
        elif any(map(_CONSOLIDATES.match, source.index.qualified(node))):
            yield Found("FM319", node, f"this is for FSDP1's folders: {LIGHTNING_FOLDERS}", "commented")
        elif any(map(_RAYS.match, source.index.qualified(node))):
            yield Found("FM319", node, _RAY_SAID, "commented")
        elif (
            isinstance(node, cst.Attribute) and node.attr.value == _OF_FSDP1 and dotted(node.value) != "self"
        ):
            yield Found("FM319", node, _KWARGS, "commented")
        elif isinstance(node, cst.Attribute) and _is_setting(source, node):
            yield Found("FM319", node, _SETTING.format(node.attr.value, _RAISES), "commented")
    yield from _asked_by_text(source)
    yield from _consolidated(source)
    for node in source.attributes:
        owner = dotted(node.value) or ""
        if node.attr.value != _NAME or not owner.endswith("strategy"):
            continue
        if source.models.frameworks.trains_by_lightning or _is_beside_word(source.index.parents[node]):
            yield Found("FM319", node, _BY_NAME, "commented")


def _asked_by_text(source: Source) -> Iterator[Found]:
    """Find ``getattr`` and ``hasattr`` of what FSDP1's strategy alone has."""
    for call in source.calls:
        name = call.args[1].value if len(call.args) > 1 and dotted(call.func) in _ASKS else None
        if isinstance(name, cst.SimpleString) and name.evaluated_value == _OF_FSDP1:
            yield Found("FM319", call, _KWARGS, "commented")
        elif isinstance(name, cst.SimpleString) and name.evaluated_value in LIGHTNING_SETTINGS:
            is_given = len(call.args) > 2 or dotted(call.func) == "hasattr"
            if _is_strategy(source, call.args[0].value):
                said = _SETTING.format(name.evaluated_value, _DEFAULTS if is_given else _RAISES)
                yield Found("FM319", call, said, "commented")


def _consolidated(source: Source) -> Iterator[Found]:
    """Find commands that run Lightning's tool for FSDP1's folders, as texts that a call is given."""
    for node in source.index.by_kind.get(cst.SimpleString, ()):
        text = str(cst.ensure_type(node, cst.SimpleString).evaluated_value)
        above = (each for each in source.index.ancestors(node) if isinstance(each, (cst.Call, cst.Expr)))
        if _RUN.search(text) and not isinstance(next(above, None), cst.Expr):
            yield Found("FM319", node, f"this is for FSDP1's folders: {LIGHTNING_FOLDERS}", "commented")


def _is_setting(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a setting of FSDP1's strategy is asked for: ``trainer.strategy.sharding_strategy``."""
    return node.attr.value in LIGHTNING_SETTINGS and _is_strategy(source, node.value)


def _is_strategy(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is what a Trainer or a Fabric has as its strategy, also by a name."""
    made = definition(source, node) if isinstance(node, cst.Name) else node
    if not isinstance(made, cst.Attribute) or made.attr.value not in {"strategy", "_strategy"}:
        return False
    owner = dotted(made.value) or ""
    if _OF_CONFIGS.search(owner):
        return False
    return TRAINER.search(owner) is not None or is_one(FABRICS, owner, source.index)


def _is_beside_word(above: cst.CSTNode) -> bool:
    """Tell whether a test asks for FSDP1's word: ``strategy.strategy_name == "fsdp"``."""
    words = walk_for(above, cst.SimpleString) if isinstance(above, cst.Comparison) else ()
    return any(_WORD.match(str(each.evaluated_value)) for each in words)


def _said_of_private(name: str) -> str:
    if name.endswith(_METADATA):
        return _METADATA_SAID
    if name.endswith(_CHECKPOINTING):
        return _CHECKPOINTING_SAID
    return _PRIVATE_SAID if "state_dict" in name or "_context" in name else _OTHER_SAID


def said_of_check(source: Source, node: cst.CSTNode) -> str | None:
    """Return what is said where a source asks for the strategy; None where it asks for nothing.

    Of a check that refuses it nothing is said, the text empty, where what it raises names FSDP2.
    """
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Annotation):
            return _ASKED
        if isinstance(above, cst.Call):
            is_check = dotted(above.func) in {"isinstance", "issubclass"} and node is not above.func
            return _of_check(source, above) if is_check else None
    return None


def _of_check(source: Source, check: cst.Call) -> str:
    """Return what is said of a check, which may refuse the strategy: by ``raise``, or by ``assert not``."""
    above = source.index.parents[check]
    refuses: cst.CSTNode | None = None
    if isinstance(above, cst.If) and above.test is check:
        last = above.body.body[-1] if above.body.body else None
        small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        refuses = small if isinstance(small, cst.Raise) else None
    elif isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
        statement = source.index.parents[above]
        refuses = statement if isinstance(statement, cst.Assert) else None
    if refuses is None:
        return _ASKED
    return "" if _NAMES_FSDP2.search(text_of(refuses).lower()) else _REFUSED
