"""Accelerate: the YAML or JSON of ``accelerate config``, which ``accelerate launch`` reads.

What each key does was read in the source of Accelerate 1.15: ``FullyShardedDataParallelPlugin``,
``utils/launch.py`` and ``fsdp2_prepare_model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.base import (
    Block,
    Draft,
    Key,
    Outcome,
    bare_values,
    is_known,
    keep,
    keep_bool,
    keep_count,
    lost,
    mapping_at,
    mappings_of,
    obsolete,
    plain_values,
    read_number,
    shown,
    written_key,
)
from fsdp_migrate.adapters.nodes import effective
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.nodes import Mapping, Node
    from fsdp_migrate.config import FSDP2Config


MARKERS = frozenset({"distributed_type", "compute_environment", "main_training_function", "num_machines"})
WRAP_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICT_TYPES = {
    "full_state_dict": "FULL_STATE_DICT",
    "sharded_state_dict": "SHARDED_STATE_DICT",
    "local_state_dict": "LOCAL_STATE_DICT",
    "1": "FULL_STATE_DICT",
    "2": "LOCAL_STATE_DICT",
    "3": "SHARDED_STATE_DICT",
}


def strategy_of(value: Any, field: str = "value") -> str:
    """Read a sharding strategy as Accelerate does: a word in any case, or the number 1 to 5.

    Raises:
        ConfigError: There is no such strategy.
    """
    if isinstance(value, bool):
        return "FULL_SHARD" if value else "SHARD_GRAD_OP"
    word = words.bare_word(value)
    if word in {"true", "false"}:
        return "FULL_SHARD" if word == "true" else "SHARD_GRAD_OP"
    return words.read_strategy(value, field)


def frees_after_forward(strategy: str) -> bool:
    """Tell whether units are freed after their forward."""
    return strategy in {"FULL_SHARD", "HYBRID_SHARD"}


def to_reshard(value: Any, block: Block) -> Outcome:
    """Turn a strategy into the boolean of FSDP2; what it says about meshes is done elsewhere."""
    del block
    strategy = strategy_of(value)
    frees = frees_after_forward(strategy)
    if value is frees:
        return Outcome("FM340", "Kept: it is FSDP2's own.")
    text = (
        f"{shown(value)}: {'every unit but the root is freed' if frees else 'nothing is freed'} after "
        "forward."
    )
    return Outcome("FM341", text, key="reshard_after_forward", value=frees, has_value=True)


def to_reshard_unless_second(value: Any, block: Block) -> Outcome:
    """Turn the newer spelling of a strategy into the boolean; FSDP1 reads the older one where both stand."""
    assert block.node is not None
    first = written_key(block.node, "sharding_strategy")
    if first is None:
        return to_reshard(value, block)
    return Outcome("FM342", f"{shown(value)}: FSDP1 reads `{first}`, which stands beside it.", remove=True)


def drop_prefetch(value: Any, block: Block) -> Outcome:
    """Take out the backward prefetch: FSDP2 always prefetches, before the gradient computation."""
    del block
    prefetch = words.read_prefetch(value, "value")
    if prefetch == "BACKWARD_PRE":
        return Outcome("FM342", f"{shown(value)}: FSDP2 does so without being told.", remove=True)
    text = (
        f"{shown(value)}: FSDP2 prefetches before the gradient computation, whatever is asked for. One "
        "more unit "
        "is held in full during backward; values are the same."
    )
    return Outcome("FM343", text, remove=True)


def read_state_dict_type(value: Any) -> str:
    """Read the type of state dicts: a word in any case, or torch's number.

    Raises:
        ConfigError: There is no such type.
    """
    word = words.bare_word(value)
    word = word if word in STATE_DICT_TYPES else f"{word}_state_dict"
    if word not in STATE_DICT_TYPES:
        msg = f"`value` is {value!r}, which is no type of state dict.{words.closest(word, STATE_DICT_TYPES)}"
        raise ConfigError(msg, field="state_dict_type")
    return STATE_DICT_TYPES[word]


def keep_state_dict_type(value: Any, block: Block) -> Outcome:
    """Keep FULL and SHARDED; LOCAL, which FSDP2 has no more, becomes SHARDED."""
    del block
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    read = read_state_dict_type(value)
    if read != "LOCAL_STATE_DICT" and (read == str(value).upper() or str(value).isdigit()):
        return Outcome("FM340", "Kept: it means the same.")
    if read != "LOCAL_STATE_DICT":
        return Outcome("FM341", f"{shown(value)} is written as {read}.", value=read, has_value=True)
    text = (
        f"{shown(value)}: FSDP2 has no local state dicts. Sharded ones are saved, and loaded on any number "
        "of ranks."
    )
    hint = "Checkpoints of LOCAL_STATE_DICT do not load into FSDP2: save once more under FSDP1, as SHARDED."
    return Outcome("FM343", text, hint, value="SHARDED_STATE_DICT", has_value=True)


def keep_wrap_policy(value: Any, block: Block) -> Outcome:
    """Keep the policy's name; a policy by size wraps other modules under Accelerate's FSDP2."""
    del block
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    word = words.bare_word(value).upper()
    if word not in WRAP_POLICIES:
        near = words.closest(word, WRAP_POLICIES)
        msg = f"`value` is {value!r}; expected one of {', '.join(WRAP_POLICIES)}.{near}"
        raise ConfigError(msg, field="auto_wrap_policy")
    if word == "SIZE_BASED_WRAP":
        text = (
            f"{shown(value)}: Accelerate's FSDP2 wraps every module with that many parameters, those of "
            "its wrapped "
            "children counted too, where FSDP1 counts only what is left. There are more units; values are "
            "the same."
        )
        hint = "TRANSFORMER_BASED_WRAP with the layers' class gives the same units in both."
        return Outcome("FM343", text, hint)
    return Outcome("FM340", "Kept: the same modules are units.")


def keep_classes(value: Any, block: Block) -> Outcome:
    """Keep the classes, as ``A,B``: Accelerate looks for a class with the spaces that stand around a name."""
    del block
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    joined = ",".join(words.read_names(value, "value"))
    if joined == value:
        return Outcome("FM340", "Kept: the same classes are units.")
    return Outcome("FM341", f"Written as {joined}, as Accelerate reads it.", value=joined, has_value=True)


def drop_sync(value: Any, block: Block) -> Outcome:
    """Take out ``sync_module_states``, which FSDP2 has not; what rank 0 alone loads is sent to all."""
    wanted = value is None or words.read_bool(value, "value")
    values = bare_values(block.node, ACCELERATE_KEYS)
    loads = values.get("cpu_ram_efficient_loading")
    broadcasts = not is_known(loads) or words.read_bool(loads, "cpu_ram_efficient_loading")
    if not wanted or broadcasts:
        said = (
            "rank 0's weights are sent to all ranks when it alone loads them"
            if wanted
            else "nothing was asked for"
        )
        return Outcome("FM342", f"{shown(value)}: {said}.", remove=True)
    text = (
        "true: Accelerate's FSDP2 does not send rank 0's weights to the other ranks unless "
        "`fsdp_cpu_ram_efficient_loading` is true; each rank shards what it has itself."
    )
    hint = "See that all ranks load the same weights or start from the same seed, or set it to true."
    return Outcome("FM343", text, hint, remove=True)


def drop_orig_params(value: Any, block: Block) -> Outcome:
    """Take out ``use_orig_params``: FSDP2 always shows the original parameters."""
    del block
    off = value is not None and not words.read_bool(value, "value")
    hint = (
        "Code that counts parameters, or groups them by `ndim`, now sees the original ones." if off else None
    )
    return Outcome("FM342", f"{shown(value)}: FSDP2 always shows the original parameters.", hint, remove=True)


def drop_version(value: Any, block: Block) -> Outcome:
    """Say that the version becomes 2."""
    del block
    if read_number(value) not in {None, 1, 2}:
        msg = f"`value` is {value!r}; expected 1 or 2."
        raise ConfigError(msg, field="version")
    return Outcome("FM341", f"{shown(value)}: becomes 2.", value=2, has_value=True)


FORWARD_PREFETCH = lost(
    "the stack's FSDP2 does not prefetch in forward. Values are the same; communication overlaps less.",
    False,
    "no",
    0,
    hint="`set_modules_to_forward_prefetch` on the prepared model does it by hand.",
)

ACCELERATE_KEYS: tuple[Key, ...] = (
    Key("version", "`fsdp_version: 2`", drop_version),
    Key(
        "sharding_strategy",
        "`fsdp_reshard_after_forward`, true or false, and a `parallelism_config` for HYBRID_SHARD",
        to_reshard,
    ),
    Key("reshard_after_forward", "true or false", to_reshard_unless_second),
    Key(
        "backward_prefetch",
        "taken out: FSDP2 prefetches as BACKWARD_PRE does",
        drop_prefetch,
        ("backward_prefetch_policy",),
    ),
    Key("forward_prefetch", "taken out: Accelerate's FSDP2 has none", FORWARD_PREFETCH),
    Key("offload_params", "kept", keep_bool),
    Key("auto_wrap_policy", "kept", keep_wrap_policy),
    Key("transformer_layer_cls_to_wrap", "kept, as `A,B`", keep_classes, ("transformer_cls_to_wrap",)),
    Key("min_num_params", "kept, as a whole number", keep_count),
    Key("state_dict_type", "kept; LOCAL_STATE_DICT becomes SHARDED_STATE_DICT", keep_state_dict_type),
    Key("sync_module_states", "taken out: FSDP2 has none", drop_sync),
    Key(
        "use_orig_params", "taken out: obsolete, FSDP2 always shows the original parameters", drop_orig_params
    ),
    Key("cpu_ram_efficient_loading", "kept", keep_bool),
    Key("activation_checkpointing", "kept", keep_bool),
    Key("activation_checkpointing_offload", "kept: only FSDP2 has it", keep_bool),
    Key("ignored_modules", "kept: FSDP2 ignores their parameters (torch 2.7 and later)", keep()),
    Key(
        "limit_all_gathers",
        "taken out: obsolete, FSDP2 bounds its memory without it",
        obsolete("FSDP2 bounds its memory without it."),
    ),
)


def shard_config(block: Block, values: dict[str, Any]) -> dict[str, Any]:
    """Return the FSDP1 arguments of a block with Accelerate's keys, by their bare names."""
    arguments: dict[str, Any] = {}
    for name in ("sharding_strategy", "reshard_after_forward"):
        if is_known(values.get(name)):
            arguments["sharding_strategy"] = strategy_of(values[name], block.at(name))
            break
    plain_ones = {
        "offload_params": "cpu_offload",
        "forward_prefetch": "forward_prefetch",
        "limit_all_gathers": "limit_all_gathers",
        "use_orig_params": "use_orig_params",
        "sync_module_states": "sync_module_states",
    }
    for name, argument in plain_ones.items():
        if is_known(values.get(name)):
            arguments[argument] = values[name]
    prefetch = values.get("backward_prefetch")
    arguments["backward_prefetch"] = prefetch if is_known(prefetch) else None
    policy = words.bare_word(values.get("auto_wrap_policy") or "no_wrap")
    classes, count = values.get("transformer_layer_cls_to_wrap"), values.get("min_num_params")
    if policy == "transformer_based_wrap" and is_known(classes):
        arguments["auto_wrap_policy"] = {"transformer_layer_cls": classes}
    elif policy == "size_based_wrap" and is_known(count):
        arguments["auto_wrap_policy"] = {"min_num_params": count}
    return arguments


class AccelerateAdapter:
    """Accelerate's own config files."""

    name = "accelerate"
    title = "Accelerate"
    keys = ACCELERATE_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield each mapping with ``fsdp_config`` and Accelerate's own keys beside it."""
        for path, mapping in mappings_of(document):
            node = mapping_at(mapping, "fsdp_config")
            if node is not None and MARKERS & set(effective(mapping)):
                yield self.at((*path, "fsdp_config"), node, mapping, document)
            elif node is None and _runs_by_default(mapping):
                yield Block(self.name, (*path, "fsdp_config"), None, mapping, document)

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping for Accelerate's ``fsdp_config``."""
        block = Block(self.name, path, node, owner, document)
        values = bare_values(node, self.keys)
        block.is_fsdp2 = read_number(values.get("version")) == 2
        kind = plain_values(owner).get("distributed_type")
        if is_known(kind) and words.bare_word(kind) != "fsdp":
            block.unused = f"`distributed_type` is {shown(kind)}, so Accelerate does not read it"
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments that the block means; mixed precision stands beside it."""
        arguments = shard_config(block, bare_values(block.node, self.keys))
        precision = plain_values(block.owner).get("mixed_precision")
        word = words.bare_word(precision) if is_known(precision) else "no"
        if word in {"bf16", "fp16"}:
            arguments["mixed_precision"] = word
        return arguments

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft ``fsdp_version: 2`` and what goes with it."""
        if block.node is None:
            text = (
                "Added: without it Accelerate runs FSDP1, with its defaults. The type of state dicts is "
                "that of FSDP1."
            )
            wanted = {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"}
            draft.set(block.owner, "fsdp_config", wanted, block.name, text)
            say_mixed_precision(block, config, draft)
            return
        node = block.node
        draft.table(block, self.keys, rename=_prefixed)
        if written_key(node, "version") is None:
            draft.add(
                node, "fsdp_version", 2, block.at("fsdp_version"), "2: without it Accelerate runs FSDP1."
            )
        if written_key(node, "state_dict_type") is None:
            text = "FULL_STATE_DICT, the default of FSDP1; that of FSDP2 is SHARDED_STATE_DICT."
            key = "fsdp_state_dict_type"
            draft.add(node, key, "FULL_STATE_DICT", block.at(key), text)
        if written_key(node, "backward_prefetch", "backward_prefetch_policy") is None:
            text = (
                "Without it FSDP1 does not prefetch in Accelerate. FSDP2 always does: one more unit is "
                "held in full."
            )
            draft.say("FM343", block.at("fsdp_backward_prefetch"), text)
        say_mixed_precision(block, config, draft)
        _emit_mesh(block, config, draft)


def _runs_by_default(mapping: Mapping) -> bool:
    """Tell whether Accelerate runs FSDP1 without being told more than that."""
    values = plain_values(mapping)
    kind = values.get("distributed_type")
    given = is_known(kind) and words.bare_word(kind) == "fsdp"
    return given and values.get("fsdp_config") is None


def say_mixed_precision(
    block: Block, config: FSDP2Config, draft: Draft, key: str = "mixed_precision"
) -> None:
    """Say how Accelerate's FSDP2 applies mixed precision otherwise than its FSDP1."""
    if config.mp_policy.param_dtype is None:
        return
    dtype = config.mp_policy.param_dtype
    text = (
        f"{dtype}: Accelerate's FSDP2 leaves buffers in their own dtype where FSDP1 casts them, casts the "
        "inputs of "
        f"every unit where FSDP1 casts the root's, and casts outputs to {dtype}. Parameters and gradients "
        "are cast alike."
    )
    hint = "Where buffers matter, such as rotary frequencies, the new run is the more exact one."
    draft.say("FM354", block.beside(key), text, hint)


def _prefixed(written: str, new: str) -> str:
    return f"fsdp_{new}" if written.startswith("fsdp_") else new


def _emit_mesh(block: Block, config: FSDP2Config, draft: Draft) -> None:
    """Give HYBRID_SHARD its mesh, and say what NO_SHARD becomes."""
    assert block.node is not None
    strategy = written_key(block.node, "sharding_strategy", "reshard_after_forward")
    subject = block.at(strategy or "fsdp_sharding_strategy")
    if config.mesh == "replicate":
        say_no_shard(draft, subject, "`distributed_type: MULTI_GPU`, without `fsdp_config`")
    elif config.mesh == "hybrid":
        _emit_hybrid(block, draft, subject)


def say_no_shard(draft: Draft, subject: str, ddp: str) -> None:
    """Say what NO_SHARD becomes where a stack's FSDP2 always shards."""
    text = (
        "NO_SHARD: this FSDP2 cannot keep whole parameters on every rank between steps. It shards them and "
        "frees nothing "
        "after forward, as SHARD_GRAD_OP does: less memory, other communication, the same values."
    )
    draft.say("FM353", subject, text, f"{ddp}, is DistributedDataParallel, which is what NO_SHARD does.")


def _emit_hybrid(block: Block, draft: Draft, subject: str) -> None:
    beside = plain_values(block.owner)
    nodes = block.settings.nodes or read_number(beside.get("num_machines", 1))
    ranks = block.settings.world_size or read_number(beside.get("num_processes"))
    if mapping_at(block.owner, "parallelism_config") is not None:
        text = (
            "HYBRID_SHARD: `parallelism_config`, which stands there already, says how the ranks are divided."
        )
        draft.say("FM341", subject, text)
    elif nodes == 1:
        text = "HYBRID_SHARD on one node is one shard group: full sharding, the same."
        draft.say("FM341", subject, text)
    elif nodes is None or ranks is None or ranks % nodes:
        text = (
            "HYBRID_SHARD needs `parallelism_config` with the number of nodes and of ranks on each; the "
            "file says "
            f"num_machines {shown(beside.get('num_machines'))}, num_processes "
            f"{shown(beside.get('num_processes'))}."
        )
        draft.say("FM352", subject, text, "Give `--nodes N` and `--world-size N`.")
    elif ranks == nodes:
        text = (
            "HYBRID_SHARD with one rank on each node only replicates, and Accelerate's FSDP2 then shards "
            "over all."
        )
        draft.say("FM353", subject, text, "`distributed_type: MULTI_GPU` only replicates.")
    else:
        sizes = {"dp_replicate_size": nodes, "dp_shard_size": ranks // nodes, "tp_size": 1, "cp_size": 1}
        value = {f"parallelism_config_{name}": size for name, size in sizes.items()}
        text = (
            f"HYBRID_SHARD: {nodes} replicas, one on each node, each sharded over {ranks // nodes} ranks, "
            "as in FSDP1."
        )
        draft.add(block.owner, "parallelism_config", value, block.beside("parallelism_config"), text)
