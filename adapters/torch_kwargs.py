"""The keyword arguments of ``FullyShardedDataParallel`` in a file: a mapping that some code unpacks.

They become those of ``fully_shard``. What only code can do (which modules are units, meshes, prefetching) is
named; ``prepare_fully_shard`` takes the mapping as it was, and does all of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.nodes import Mapping, Node, Reference, effective, key_text, plain
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Handler,
    Key,
    Outcome,
    entries_of,
    lost,
    obsolete,
    plain_values,
    shown,
)
from fsdp_migrate.adapters.engine.shared_keys import (
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    freed,
    frees_after_forward,
)
from fsdp_migrate.adapters.engine.torch_objects import read_objects, target_of
from fsdp_migrate.config import FSDP1Config, MixedPrecision
from fsdp_migrate.mapping import map_config


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.config import FSDP2Config


FSDP2_KEYS = frozenset(
    {"reshard_after_forward", "mp_policy", "offload_policy", "ignored_params", "shard_placement_fn"}
)
_DISTINCTIVE = frozenset(
    {"sharding_strategy", "use_orig_params", "limit_all_gathers", "sync_module_states", "backward_prefetch"}
)
_FIELDS = {
    "mixed_precision": frozenset({*MixedPrecision.model_fields, "_module_classes_to_ignore"}),
    "cpu_offload": frozenset({"offload_params"}),
}
"""Arguments whose values are objects of torch, with the fields by which their mappings are known."""


def to_reshard(value: Any, block: Block) -> Outcome:
    """Turn the strategy into ``reshard_after_forward``; the mesh is made in code."""
    del block
    strategy = words.read_strategy(read_objects(value), "value")
    frees = frees_after_forward(strategy)
    return freed(value, frees)


def to_mp_policy(value: Any, block: Block) -> Outcome:
    """Turn ``mixed_precision`` into ``mp_policy``, dtypes by name."""
    del block
    if words.is_nothing(value) or value is False:
        return Outcome("FM342", f"{shown(value)}: nothing is cast.", remove=True)
    if value is True:
        text = (
            "true: the code that reads it decides the dtypes: kept. `fully_shard` takes them as `mp_policy`."
        )
        return Outcome("FM355", text, "Give its dtypes as `mp_policy` where the code says `mixed_precision`.")
    precision = FSDP1Config(mixed_precision=read_objects(value)).mixed_precision or MixedPrecision()
    policy = map_config(FSDP1Config(mixed_precision=precision))[0].mp_policy
    new: dict[str, Any] = {}
    if isinstance(value, dict) and "_target_" in value:
        new["_target_"] = "torch.distributed.fsdp.MixedPrecisionPolicy"
    new |= {"param_dtype": policy.param_dtype, "reduce_dtype": policy.reduce_dtype}
    new["cast_forward_inputs"] = policy.cast_forward_inputs
    text, code = "The dtypes are the same.", "FM341"
    if policy.param_dtype and not precision.cast_forward_inputs and precision.cast_root_forward_inputs:
        code = "FM355"
        text += " Inputs are cast at the root alone: give the root's `mp_policy` cast_forward_inputs true."
    if precision.buffer_dtype is not None:
        code = "FM343"
        text += f" FSDP2 has no `buffer_dtype` ({precision.buffer_dtype}): cast the buffers in code."
    if precision.keep_low_precision_grads:
        code = "FM343"
        text += " FSDP2 has no `keep_low_precision_grads`: gradients have the parameters' own dtype."
    return Outcome(code, text, key="mp_policy", value=new, has_value=True)


def to_offload_policy(value: Any, block: Block) -> Outcome:
    """Turn ``cpu_offload`` into ``offload_policy``."""
    del block
    read = read_objects(value)
    offload = FSDP1Config(cpu_offload=read).cpu_offload
    if offload is None or not offload.offload_params:
        return Outcome("FM342", f"{shown(value)}: nothing was asked for.", remove=True)
    new: dict[str, Any] = {"pin_memory": True}
    if isinstance(value, dict) and "_target_" in value:
        new = {"_target_": "torch.distributed.fsdp.CPUOffloadPolicy", **new}
    return Outcome("FM341", "`CPUOffloadPolicy`.", key="offload_policy", value=new, has_value=True)


def drop_prefetch(value: Any, block: Block) -> Outcome:
    """Take out the backward prefetch, which is set by a method under FSDP2."""
    del block
    prefetch = words.read_prefetch(read_objects(value), "value")
    if prefetch == "BACKWARD_PRE":
        return Outcome("FM342", f"{shown(value)}: FSDP2 does so without being told.", remove=True)
    text = f"{shown(value)}: FSDP2 prefetches before the gradient computation. Values are the same."
    hint = (
        None if prefetch else "`unit.set_modules_to_backward_prefetch([unit])` on each unit switches it off."
    )
    return Outcome("FM343", text, hint, remove=True)


def in_code(what: str) -> Handler:
    """Return a handler that keeps a key whose work is done in code under FSDP2."""

    def handle(value: Any, block: Block) -> Outcome:
        del block
        if words.is_nothing(value) or value is False:
            return Outcome("FM342", f"{shown(value)}: nothing was asked for.", remove=True)
        return Outcome("FM355", f"{shown(value)}: `fully_shard` takes no such argument: {what}.")

    return handle


TORCH_KEYS: tuple[Key, ...] = (
    Key(
        "sharding_strategy",
        "`reshard_after_forward`; a 2-D mesh in code for HYBRID_SHARD and NO_SHARD",
        to_reshard,
    ),
    Key("mixed_precision", "`mp_policy`; the buffers' dtype in code", to_mp_policy),
    Key("cpu_offload", "`offload_policy`", to_offload_policy),
    Key("backward_prefetch", "taken out: FSDP2 prefetches as BACKWARD_PRE does", drop_prefetch),
    Key(
        "forward_prefetch",
        "taken out: `set_modules_to_forward_prefetch` in code",
        lost("`set_modules_to_forward_prefetch` does it, in code.", False, "no", 0),
    ),
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    Key(
        "sync_module_states",
        "kept if true: rank 0's values are broadcast in code, before sharding",
        in_code("broadcast rank 0's parameters and buffers before sharding"),
    ),
    Key("device_id", "taken out: obsolete, the mesh says the device", obsolete("the mesh says the device.")),
    Key(
        "auto_wrap_policy",
        "kept: `fully_shard` on each of these modules, in code",
        in_code("call it on each unit"),
    ),
    Key(
        "ignored_modules",
        "kept: `ignored_params`, in code",
        in_code("pass their parameters as `ignored_params`"),
    ),
    Key(
        "ignored_states",
        "kept: `ignored_params`, in code",
        in_code("pass the parameters as `ignored_params`"),
    ),
    Key(
        "param_init_fn",
        "kept: called in code, after sharding",
        in_code("call it on what is on the meta device"),
    ),
    Key("process_group", "kept: a mesh, in code", in_code("make a mesh of it")),
    Key("device_mesh", "kept: `mesh`, in code", in_code("pass it as `mesh`")),
)


def _is_in_torchs_words(values: dict[str, Any]) -> bool:
    """Tell whether a document without a class says what FSDP1 takes, in no words of a project's own."""
    strategy = str(values.get("sharding_strategy", "")).removeprefix("ShardingStrategy.")
    own = (values.get(name) for name in ("mixed_precision", "cpu_offload", "auto_wrap_policy"))
    fields = {name for name, known in _FIELDS.items() if _has_only(values.get(name), known)}
    return (
        strategy.isupper()
        and len(values.keys() & _DISTINCTIVE | fields) > 1
        and not any(isinstance(value, (str, bool)) for value in own)
    )


def _has_only(value: Any, known: frozenset[str]) -> bool:
    return isinstance(value, dict) and bool(value) and value.keys() <= known


class TorchAdapter:
    """A mapping of FSDP1's own keyword arguments."""

    name = "torch"
    title = "torch"
    keys = TORCH_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield the whole document where it holds FSDP1's arguments and nothing else."""
        if isinstance(document, Mapping):
            names = set(effective(document)) - {"_target_", "_partial_"}
            known = {key.name for key in TORCH_KEYS}
            target = target_of(plain_values(document)) or ""
            fsdp = target.rpartition(".")[2] in {"FullyShardedDataParallel", "FSDP", "fully_shard"}
            if target and not fsdp:  # arguments of something else, which may have the same names
                return
            is_fsdp2 = bool(names & FSDP2_KEYS) and names <= known | FSDP2_KEYS
            if is_fsdp2 or (names <= known and (fsdp or _DISTINCTIVE & names)):
                block = self.at((), document, document, document)
                block.is_certain = is_fsdp2 or fsdp or _is_in_torchs_words(plain_values(document))
                yield block

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take any mapping for FSDP1's arguments."""
        block = Block(self.name, path, node, owner, document)
        names = set(effective(node))
        block.is_fsdp2 = bool(names & FSDP2_KEYS) and not names & _DISTINCTIVE
        if not node.entries:
            block.unused = "it is empty"
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the arguments, objects of torch as words; what is no argument is left to its finding."""
        assert block.node is not None
        values = {name: read_objects(value) for name, value in plain_values(block.node).items()}
        known = {key.name for key in TORCH_KEYS}
        return {name: v for name, v in values.items() if name in known and not isinstance(v, Reference)}

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft the arguments of ``fully_shard``, and name what only code can do."""
        assert block.node is not None
        self._rename_target(block, draft)
        draft.table(block, TORCH_KEYS, ignore=frozenset({"_target_", "_partial_", "class_path", "init_args"}))
        subject = block.at("sharding_strategy")
        meshes = {"hybrid": "(replicate, shard), named", "replicate": "(world size, 1), named"}
        if config.mesh in meshes:
            text = (
                f"The mesh of this strategy is {meshes[config.mesh]}: make it in code and pass it as `mesh`."
            )
            draft.say("FM355", subject, text)
        text = "These are arguments of `fully_shard`, which code calls on each unit and last on the model."
        hint = (
            "`prepare_fully_shard(model, arguments)` takes the mapping as it was, unconverted, and does "
            "all of it."
        )
        if any(finding.code == "FM345" for finding in draft.findings):
            hint += " It refuses the keys that are not known: take them out of what it is given."
        draft.say("FM355", block.name, text, hint)

    def _rename_target(self, block: Block, draft: Draft) -> None:
        assert block.node is not None
        for owner, entry in entries_of(block.node):
            if key_text(entry) == "_target_" and "FullyShardedDataParallel" in str(plain(entry.value)):
                outcome = Outcome(
                    "FM341", "`fully_shard`.", value="torch.distributed.fsdp.fully_shard", has_value=True
                )
                draft.take(owner, entry, outcome, block.at("_target_"))
