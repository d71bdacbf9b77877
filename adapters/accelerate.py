"""Accelerate: the YAML or JSON of ``accelerate config``, which ``accelerate launch`` reads.

What each key does was read in the source of Accelerate 1.15: ``FullyShardedDataParallelPlugin``,
``utils/launch.py`` and ``fsdp2_prepare_model``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.nodes import effective
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Key,
    Outcome,
    bare_values,
    by_name,
    is_known,
    keep_bool,
    keep_count,
    mapping_at,
    mappings_of,
    plain_values,
    read_number,
    shown,
    written_key,
)
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.rank0_loading import (
    broadcasts_from_rank0,
    keep_ram_loading,
    lost_default_sync,
    say_ram_loading,
    torn_tie,
)
from fsdp_migrate.adapters.engine.shared_embeddings import say_shared_embeddings
from fsdp_migrate.adapters.engine.shared_keys import (
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    drop_prefetch,
    ignore_nothing,
    keep_classes,
    keep_state_dict_type,
    keep_wrap_policy,
    lost_sync,
    no_forward_prefetch,
    say_mixed_precision,
    say_no_prefetch,
    say_no_shard,
    shard_config,
    strategy_of,
    to_reshard,
    to_reshard_unless_second,
)
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.document.nodes import Mapping, Node
    from fsdp_migrate.config import FSDP2Config


# What `accelerate launch` takes beside FSDP's flags; a mapping that has more is a project's own.
_LAUNCH_GROUPS = ("fsdp_", "use_", "dynamo_", "deepspeed_", "megatron_lm_", "parallelism_config_", "rdzv_")
_LAUNCH = frozenset(
    {
        *("config_file", "mixed_precision", "multi_gpu", "gpu_ids", "cpu", "tpu", "debug", "quiet", "env"),
        *("num_processes", "num_machines", "num_cpu_threads_per_process", "enable_cpu_affinity"),
        *("machine_rank", "main_process_ip", "main_process_port", "same_network", "downcast_bf16"),
        *("log_dir", "tee", "role", "max_restarts", "monitor_interval", "module", "no_python"),
        *("main_training_function", "training_script", "training_script_args"),
    }
)
MARKERS = frozenset({"distributed_type", "compute_environment", "main_training_function", "num_machines"})


_HERE = "LOCAL_MACHINE"
_SAME_WEIGHTS = "See that all ranks load the same weights or start from the same seed"


def drop_sync(value: Any, block: Block) -> Outcome:
    """Take out ``sync_module_states``, which FSDP2 has not; what rank 0 alone loads is sent to all."""
    wanted = value is None or words.read_bool(value, "value")
    if not wanted or broadcasts_from_rank0(block, ACCELERATE_KEYS, default=True):
        said = (
            "rank 0's weights are sent to all ranks when it alone loads them"
            if wanted
            else "nothing was asked for"
        )
        return Outcome("FM342", f"{shown(value)}: {said}.", remove=True)
    return lost_sync(value, _same_weights(block))


def _same_weights(block: Block) -> str:
    return f"{_SAME_WEIGHTS}." if torn_tie(block) else f"{_SAME_WEIGHTS}, or set it to true."


def drop_version(value: Any, block: Block) -> Outcome:
    """Say that the version becomes 2."""
    del block
    if read_number(value) not in {None, 1, 2}:
        msg = f"`value` is {value!r}; expected 1 or 2."
        raise ConfigError(msg, field="version")
    return Outcome("FM341", f"{shown(value)}: becomes 2.", value=2, has_value=True)


def reshard_as_it_ran(value: Any, block: Block) -> Outcome:
    """Turn the key of FSDP2 into what ran: Accelerate's FSDP1 reads the strategy's own key, and no other."""
    done = to_reshard_unless_second(value, block)
    if done.remove or value is None or strategy_of(value) == "FULL_SHARD":
        return done
    text = (
        f"{shown(value)}: {ACCELERATE['reshard_unread'].says}, which is FULL_SHARD unless it is given. It "
        "becomes true, as it ran."
    )
    hint = "Write false if parameters should stay whole after forward."
    return Outcome("FM343", text, hint, value=True, has_value=True)


def drop_prefetch_policy(value: Any, block: Block) -> Outcome:
    """Take out the name that the backward prefetch had in older versions."""
    assert block.node is not None
    prefetch = words.read_prefetch(value, "value")
    unread = ACCELERATE["prefetch_policy_unread"].since
    newer = written_key(block.node, "backward_prefetch")
    if newer is not None:
        text = f"{shown(value)}: Accelerate {unread} and later read `{newer}`, which stands beside it."
        return Outcome("FM342", text, remove=True)
    text = (
        f"{shown(value)}: Accelerate {unread} and later do not read this name: their FSDP1 does not prefetch."
    )
    if block.settings.is_command:
        text = f"{shown(value)}: Accelerate {unread} and later refuse this flag; older ones prefetched by it."
    if prefetch is None:
        text = f"{shown(value)}: FSDP1 does not prefetch."
    held = "" if block.settings.is_command and prefetch is not None else " one more unit is held in full;"
    text += f" FSDP2 always does, as BACKWARD_PRE:{held} values are the same."
    return Outcome("FM343", text, remove=True)


def keep_offload(value: Any, block: Block) -> Outcome:
    """Keep a boolean; older versions make no process group for gradients that are on the CPU."""
    done = keep_bool(value, block)
    if value is None or not words.read_bool(value, "value"):
        return done
    needed = ACCELERATE["gloo_by_variables"].since
    text = f"{done.message} Clipping needs Accelerate {needed}: older ones make no gloo group for the CPU."
    return replace(done, message=text)


def keep_ignored(value: Any, block: Block) -> Outcome:
    """Keep what is ignored; where rank 0 loads for all, FSDP2 shards it all the same."""
    if words.is_nothing(value) or not broadcasts_from_rank0(block, ACCELERATE_KEYS, default=True):
        return Outcome("FM340", "Kept: it means the same.")
    return ignore_nothing("fsdp_cpu_ram_efficient_loading")


def keep_unread(value: Any, block: Block) -> Outcome:
    """Keep the name that the variable in the environment has: the launcher has no such flag."""
    del block
    text = (
        f"{shown(value)}: kept, without effect as before: Accelerate reads "
        "`fsdp_transformer_layer_cls_to_wrap`, and without it the classes that the model names itself."
    )
    return Outcome("FM345", text)


FORWARD_PREFETCH = no_forward_prefetch("Accelerate")

ACCELERATE_KEYS: tuple[Key, ...] = (
    Key("version", "`fsdp_version: 2`", drop_version),
    Key(
        "sharding_strategy",
        "`fsdp_reshard_after_forward`, true or false, and a `parallelism_config` for HYBRID_SHARD",
        to_reshard,
    ),
    Key("reshard_after_forward", "true: FSDP1 reads `sharding_strategy` alone", reshard_as_it_ran),
    Key("backward_prefetch", "taken out: FSDP2 prefetches as BACKWARD_PRE does", drop_prefetch),
    Key(
        "backward_prefetch_policy",
        "taken out: Accelerate 1.0 and later do not read it",
        drop_prefetch_policy,
        is_read=False,
    ),
    Key("forward_prefetch", "taken out: Accelerate's FSDP2 has none", FORWARD_PREFETCH),
    Key("offload_params", "kept", keep_offload),
    Key("auto_wrap_policy", "kept", keep_wrap_policy),
    Key("transformer_layer_cls_to_wrap", "kept, as `A,B`", keep_classes),
    Key(
        "transformer_cls_to_wrap",
        "kept: Accelerate does not read it",
        keep_unread,
        aliases=("transformer_cls_names_to_wrap",),  # the plugin's own name
        is_read=False,
    ),
    Key("min_num_params", "kept, as a whole number", keep_count),
    Key("state_dict_type", "kept; LOCAL_STATE_DICT becomes SHARDED_STATE_DICT", keep_state_dict_type),
    Key("sync_module_states", "taken out: FSDP2 has none", drop_sync),
    ORIG_PARAMS,
    Key(
        "cpu_ram_efficient_loading",
        "kept; false where sources tie weights of a model without `tie_weights()`",
        keep_ram_loading,
    ),
    Key("activation_checkpointing", "kept", keep_bool),
    Key("activation_checkpointing_offload", "kept: only FSDP2 has it", keep_bool),
    Key(
        "ignored_modules",
        "kept: FSDP2 ignores their parameters (torch 2.7 and later), if `cpu_ram_efficient_loading` is false",
        keep_ignored,
    ),
    replace(LIMIT_ALL_GATHERS, is_read=False),
)


class AccelerateAdapter:
    """Accelerate's own config files."""

    name = "accelerate"
    title = "Accelerate"
    keys = ACCELERATE_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield each mapping with ``fsdp_config`` and Accelerate's own keys beside it."""
        for path, mapping in mappings_of(document):
            node = mapping_at(mapping, "fsdp_config")
            if _are_launch_flags(path, mapping):
                yield self._launch_flags(path, mapping, document)
            elif node is not None and MARKERS & set(effective(mapping)):
                yield self.at((*path, "fsdp_config"), node, mapping, document)
            elif node is None and _runs_by_default(mapping):
                yield Block(self.name, (*path, "fsdp_config"), None, mapping, document)

    def _launch_flags(self, path: tuple[str, ...], mapping: Mapping, document: Node) -> Block:
        """Return a mapping of flags of ``accelerate launch`` as a block."""
        block = Block(self.name, path, mapping, mapping, document)
        block.is_fsdp2 = read_number(plain_values(mapping).get("fsdp_version")) == 2
        if plain_values(mapping).get("use_fsdp") is False:
            block.unused = "`use_fsdp` is false"
        return block

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping for Accelerate's ``fsdp_config``."""
        block = Block(self.name, path, node, owner, document)
        values = bare_values(node, self.keys)
        block.is_fsdp2 = read_number(values.get("version")) == 2
        beside = plain_values(owner)
        kind = beside.get("distributed_type")
        if "distributed_type" in beside and (
            kind is None or (is_known(kind) and words.bare_word(kind) != "fsdp")
        ):
            block.unused = f"`distributed_type` is {shown(kind)}, so Accelerate does not read it"
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments that the block means; mixed precision stands beside it."""
        values = bare_values(block.node, self.keys)
        # Without FSDP2's key, which Accelerate's FSDP1 does not read: `reshard_as_it_ran` says what ran.
        read = {name: value for name, value in values.items() if name != "reshard_after_forward"}
        arguments = shard_config(block, read)
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
            wanted |= say_ram_loading(block, draft, self.keys, "fsdp_cpu_ram_efficient_loading")
            draft.set(block.owner, "fsdp_config", wanted, block.name, text)
            say_mixed_precision(block, config, draft)
            return
        node = block.node
        names = set(effective(node))
        # Flags of the launcher stand among others of its own, which are no keys of FSDP's.
        ignored = (
            frozenset(name for name in names if not name.startswith("fsdp_"))
            if node is block.owner
            else frozenset()
        )
        draft.table(block, self.keys, rename=_prefixed, ignore=ignored)
        _say_environment(block, draft)
        config_file = plain_values(block.owner).get("config_file")
        is_flags = node is block.owner and _are_launch_flags(block.path, node)
        if is_flags and plain_values(node).get("use_fsdp") is not True:
            config_file = config_file or "Another file"
        if not words.is_nothing(config_file):
            text = (
                f"{config_file} says the rest, which is not converted with this one: nothing is added here."
            )
            hint = "Convert it too: `fsdp-migrate config`, with its name."
            draft.say_elsewhere(str(config_file), block.settings, block.beside("config_file"), text, hint)
            return
        if written_key(node, "version") is None:
            text = f"2: without it Accelerate runs FSDP1. It needs Accelerate {ACCELERATE['fsdp2'].since}"
            full = ACCELERATE["full_state_dict"].since
            text += f", and {full} for FULL_STATE_DICT."
            draft.add(node, "fsdp_version", 2, block.at("fsdp_version"), text)
        if written_key(node, "state_dict_type") is None:
            text = "FULL_STATE_DICT, the default of FSDP1; that of FSDP2 is SHARDED_STATE_DICT."
            key = "fsdp_state_dict_type"
            draft.add(node, key, "FULL_STATE_DICT", block.at(key), text)
        if written_key(node, "backward_prefetch_policy") is None:
            say_no_prefetch(block, draft, self.keys, self.title, "fsdp_backward_prefetch")
        say_shared_embeddings(block, draft)
        for name, value in say_ram_loading(block, draft, self.keys, "fsdp_cpu_ram_efficient_loading").items():
            draft.edits.add(node, name, value)
        text = lost_default_sync(block, self.keys, default=True)
        if text:
            draft.say("FM343", block.at("fsdp_sync_module_states"), text, _same_weights(block))
        say_mixed_precision(block, config, draft)
        _emit_mesh(block, config, draft)


def _are_launch_flags(path: tuple[str, ...], mapping: Mapping) -> bool:
    """Tell whether a mapping holds flags of ``accelerate launch``, as launchers of others take them."""
    flags = [name for name in effective(mapping) if name.startswith("fsdp_")]
    known = by_name(ACCELERATE_KEYS)
    named = bool(path) and path[-1] in {"accelerate_launch_args", "accelerate_args"}
    names = set(effective(mapping))
    # The launcher's keys alone: settings of a project's own have `use_fsdp` among others.
    given = "use_fsdp" in names and all(name.startswith(_LAUNCH_GROUPS) or name in _LAUNCH for name in names)
    return (named or given) and any(name.removeprefix("fsdp_") in known for name in flags)


def _runs_by_default(mapping: Mapping) -> bool:
    """Tell whether Accelerate runs FSDP1 without being told more than that."""
    values = plain_values(mapping)
    kind = values.get("distributed_type")
    given = is_known(kind) and words.bare_word(kind) == "fsdp"
    return given and values.get("fsdp_config") in (None, [])


def _prefixed(written: str, new: str) -> str:
    return f"fsdp_{new}" if written.startswith("fsdp_") else new


def _say_environment(block: Block, draft: Draft) -> None:
    """Say of a name for where it runs that Accelerate stops at it, whichever FSDP stands below."""
    given = plain_values(block.owner).get("compute_environment")
    if block.node is not block.owner and is_known(given) and str(given) != _HERE:
        text = (
            f"{given}: Accelerate takes every value but {_HERE} for SageMaker's config, which has no "
            "`fsdp_config`, and stops before it starts anything."
        )
        draft.say("FM343", block.beside("compute_environment"), text, f"Write {_HERE}.")


def _emit_mesh(block: Block, config: FSDP2Config, draft: Draft) -> None:
    """Give HYBRID_SHARD its mesh, and say what NO_SHARD becomes."""
    assert block.node is not None
    strategy = written_key(block.node, "sharding_strategy", "reshard_after_forward")
    subject = block.at(strategy or "fsdp_sharding_strategy")
    if config.mesh == "replicate":
        say_no_shard(draft, subject, "`distributed_type: MULTI_GPU`, without `fsdp_config`")
    elif config.mesh == "hybrid":
        _emit_hybrid(block, draft, subject)


def _emit_hybrid(block: Block, draft: Draft, subject: str) -> None:
    beside = plain_values(block.owner)
    is_said = block.settings.nodes is not None or not words.is_nothing(beside.get("num_machines"))
    nodes = block.settings.nodes or read_number(beside.get("num_machines"))
    ranks = block.settings.world_size or read_number(beside.get("num_processes"))
    if mapping_at(block.owner, "parallelism_config") is not None:
        text = (
            "HYBRID_SHARD: `parallelism_config`, which stands there already, says how the ranks are divided."
        )
        draft.say("FM341", subject, text)
    elif not is_said:
        text = (
            "HYBRID_SHARD: the number of nodes is not said here. On one it is full sharding, the same; on "
            "several Accelerate's FSDP2 shards over all of them."
        )
        draft.say("FM355", subject, text, "For several nodes convert with `--nodes N --world-size N`.")
    elif nodes == 1:
        text = (
            "HYBRID_SHARD on one node is one shard group: full sharding, the same. If the run is started on "
            "several (`accelerate launch --num_machines N`), convert with `--nodes N --world-size N`."
        )
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
        if block.node is block.owner:  # flags, one below the other
            value = {"use_parallelism_config": True, **value}
            for name, flag in value.items():
                draft.add(block.owner, name, flag, block.at(name), f"{shown(flag)}, for HYBRID_SHARD.")
            return
        text = (
            f"HYBRID_SHARD: {nodes} replicas, one on each node, each sharded over {ranks // nodes} ranks, "
            "as in FSDP1."
        )
        draft.add(block.owner, "parallelism_config", value, block.beside("parallelism_config"), text)
