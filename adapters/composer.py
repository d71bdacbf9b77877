"""Composer and llm-foundry: ``fsdp_config`` in their YAML, for Composer's own FSDP2.

Composer 0.32 takes a mapping for FSDP2 only with ``FSDP_VERSION=2`` in the environment, and then drops what
its ``FSDP2Config`` does not have with a warning (``Trainer._parse_parallelism_config``). What each means
under FSDP1 is in :mod:`fsdp_migrate.adapters.config_objects.composer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.config_objects.composer import COMPOSER_FIELDS, composer_fsdp1_config
from fsdp_migrate.adapters.document.nodes import Mapping, Reference, effective
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Key,
    Outcome,
    is_known,
    keep,
    keep_bool,
    lost,
    mapping_at,
    mappings_of,
    obsolete,
    plain_values,
    shown,
)
from fsdp_migrate.adapters.engine.claims import COMPOSER
from fsdp_migrate.adapters.engine.composer_version import sets_fsdp2
from fsdp_migrate.adapters.engine.ownership import has_hf_words, is_anothers
from fsdp_migrate.adapters.engine.shared_keys import (
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    drop_prefetch,
    freed,
    frees_after_forward,
    full_or_sharded,
)
from fsdp_migrate.adapters.engine.torch_objects import target_of
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.document.nodes import Node
    from fsdp_migrate.config import FSDP2Config


STRONG = frozenset(
    {
        "max_duration",
        "train_loader",
        "device_train_microbatch_size",
        "global_train_batch_size",
        "device_eval_batch_size",
        "icl_tasks",
        "icl_tasks_str",
    }
)
# Others use these words too: what has no more of Composer's may be anybody's.
MARKERS = STRONG | {
    "eval_interval",
    "max_seq_len",
    "save_folder",
    "algorithms",
    "dist_timeout",
    "train_dataset",
}
FSDP2_FIELDS = frozenset(
    {
        "reshard_after_forward",
        "activation_checkpointing",
        "activation_cpu_offload",
        "state_dict_type",
        "load_monolith_rank0_only",
        "mixed_precision",
        "verbose",
    }
)
FORMER = frozenset({"min_params", "flatten_parameters"})
CLIPPED_BY_VALUE = "value"
CALLBACK = "With fsdp-migrate's Composer callback the unchanged YAML keeps it."


def to_reshard(value: Any, block: Block) -> Outcome:
    """Turn the strategy, which Composer drops under FSDP2, into the boolean that it reads."""
    del block
    strategy = words.read_strategy(value, "value")
    frees = frees_after_forward(strategy)
    return freed(value, frees)


_HYBRID = {"HYBRID_SHARD": "FULL_SHARD", "_HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}


def keep_precision(value: Any, block: Block) -> Outcome:
    """Keep DEFAULT, PURE and FULL; a mapping of dtypes Composer's FSDP2 does not take."""
    if isinstance(value, dict):
        text = "Composer's FSDP2 takes DEFAULT, PURE or FULL, no mapping of dtypes."
        return Outcome("FM348", text, f"Write the word that fits. {CALLBACK}")
    word = words.bare_word(value).upper() if value is not None else "DEFAULT"
    if word not in {"DEFAULT", "PURE", "FULL"}:
        near = words.closest(word, ("DEFAULT", "PURE", "FULL"))
        msg = f"`value` is {value!r}; expected DEFAULT, PURE or FULL.{near}"
        raise ConfigError(msg, field="mixed_precision")
    if word == "FULL" or str(plain_values(block.owner).get("precision")).lower() == "fp32":
        return Outcome("FM340", "Kept: nothing is cast.")
    text = (
        f"{shown(value)}: kept. Parameters and gradients are cast alike; FSDP1 casts buffers too, and the "
        "inputs of the root alone, where Composer's FSDP2 leaves buffers in their own dtype and casts the "
        "inputs of every unit."
    )
    return Outcome("FM354", text, CALLBACK)


def keep_state_dict_type(value: Any, block: Block) -> Outcome:
    """Keep ``full`` and ``sharded``; ``local`` Composer has no more."""
    del block
    full_or_sharded(value)
    return Outcome("FM340", "Kept: it means the same.")


def drop_reentrant(value: Any, block: Block) -> Outcome:
    """Take out the kind of recomputation: Composer's FSDP2 always takes the one that is not reentrant."""
    del block
    if value is None or words.read_bool(value, "value"):
        text = f"{shown(value)}: Composer's FSDP2 recomputes in the other way, which gives the same values."
        return Outcome("FM341", text, remove=True)
    return Outcome("FM342", f"{shown(value)}: Composer's FSDP2 always does so.", remove=True)


def drop_degree(value: Any, block: Block) -> Outcome:
    """Take out a degree: Composer's FSDP2 shards over all ranks."""
    if value is None or str(value) in {"-1", "1"}:
        return Outcome("FM342", f"{shown(value)}: nothing was asked for.", remove=True)
    if str(value) == str(block.settings.world_size):
        return Outcome("FM342", f"{shown(value)}: all ranks, as FSDP2 does.", remove=True)
    text = f"{shown(value)}: Composer's FSDP2 shards over all ranks. That is the same if there are no others."
    return Outcome("FM343", text, CALLBACK, remove=True)


def drop_prefix(value: Any, block: Block) -> Outcome:
    """Take out the folder's name: under FSDP2 it is always the default."""
    del block
    default = "ep{epoch}-ba{batch}"
    if value is None or value == default:
        return Outcome("FM342", f"{shown(value)}: Composer's FSDP2 always uses it.", remove=True)
    return Outcome("FM343", f"{value}: Composer's FSDP2 always uses {default}.", CALLBACK, remove=True)


def _gone(what: str, *harmless: Any) -> Any:
    return lost(f"Composer's FSDP2 has no {what}.", *harmless, hint=CALLBACK)


COMPOSER_KEYS: tuple[Key, ...] = (
    Key("sharding_strategy", "`reshard_after_forward`, true or false", to_reshard),
    Key("mixed_precision", "kept", keep_precision),
    Key("state_dict_type", "kept", keep_state_dict_type),
    Key("activation_checkpointing", "kept", keep_bool),
    Key("activation_checkpointing_reentrant", "taken out: FSDP2 is never reentrant", drop_reentrant),
    Key("activation_cpu_offload", "kept", keep_bool),
    Key("load_monolith_rank0_only", "kept", keep_bool),
    Key("verbose", "kept", keep_bool),
    Key("auto_wrap", "taken out: the model's marks decide", _gone("`auto_wrap: false`", True, "true")),
    Key("backward_prefetch", "taken out: FSDP2 prefetches as BACKWARD_PRE does", drop_prefetch),
    Key("backward_prefetch_limit", "taken out: FSDP2 prefetches one unit", _gone("other limit than 1", 1)),
    Key("forward_prefetch", "taken out: Composer's FSDP2 has none", _gone("forward prefetch", False, "no")),
    Key("forward_prefetch_limit", "taken out: Composer's FSDP2 has none", _gone("forward prefetch", 1)),
    Key(
        "cpu_offload", "taken out: Composer's FSDP2 has none", _gone("offloading of parameters", False, "no")
    ),
    Key("data_parallel_shard_degree", "taken out: FSDP2 shards over all ranks", drop_degree),
    Key("data_parallel_replicate_degree", "taken out: Composer's FSDP2 has no replicas", drop_degree),
    Key("ignored_modules", "taken out: Composer's FSDP2 has none", _gone("ignored modules")),
    Key(
        "keep_low_precision_grads",
        "taken out: FSDP2 casts gradients",
        _gone("gradients of low precision", False),
    ),
    LIMIT_ALL_GATHERS,
    Key("process_group", "taken out: FSDP2 shards over all ranks", _gone("groups", "self", "mod1")),
    Key(
        "sync_module_states",
        "taken out: obsolete, Composer sees to it",
        obsolete("Composer sees to it itself."),
    ),
    ORIG_PARAMS,
    Key(
        "te_checkpoint_wrapper",
        "taken out: Composer's FSDP2 has none",
        _gone("wrappers of TransformerEngine", False),
    ),
    Key("te_shard_fp8_weight", "taken out: Composer's FSDP2 has none", _gone("FP8 shards", False)),
    Key("load_planner", "taken out: Composer's FSDP2 has none", _gone("planners of its own")),
    Key("save_planner", "taken out: Composer's FSDP2 has none", _gone("planners of its own")),
    Key("sharded_ckpt_prefix_dir", "taken out: FSDP2 always uses the default", drop_prefix),
    Key(
        "min_params", "taken out: obsolete, Composer reads it no more", obsolete("Composer reads it no more.")
    ),
    Key(
        "flatten_parameters",
        "taken out: obsolete, FSDP2 flattens nothing",
        obsolete("FSDP2 flattens nothing."),
    ),
    Key("reshard_after_forward", "kept: it is FSDP2's own", keep("Kept: it is FSDP2's own.")),
)


class ComposerAdapter:
    """``fsdp_config`` of Composer's and llm-foundry's YAML, and ``parallelism_config: {fsdp: ...}``."""

    name = "composer"
    title = "Composer"
    keys = COMPOSER_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield each ``fsdp_config`` with Composer's keys, and ``fsdp`` in ``parallelism_config``."""
        known = {*COMPOSER_FIELDS, *FSDP2_FIELDS, *FORMER}
        for path, mapping in mappings_of(document):
            names = set(effective(mapping))
            node = mapping_at(mapping, "fsdp_config")
            key = "fsdp_config"
            if node is None and path and path[-1] == "parallelism_config":
                node, key = mapping_at(mapping, "fsdp"), "fsdp"
            # HF Trainer and Axolotl have an `fsdp_config` too, beside an `fsdp` with words of theirs.
            if node is None or has_hf_words(mapping):
                continue
            inner = set(effective(node))
            precision = str(plain_values(mapping).get("precision"))
            around = bool(names & MARKERS) or key == "fsdp" or precision.startswith("amp_")
            alone = bool(inner) and inner <= known and "fsdp" not in names and self._own(node)
            if alone or (around and len(inner & known) * 2 > len(inner)):
                block = self.at((*path, key), node, mapping, document)
                told = alone or key == "fsdp" or precision.startswith("amp_") or bool(names & STRONG)
                block.is_certain = told and not is_anothers(mapping, self.name)
                yield block

    def _own(self, node: Mapping) -> bool:
        """Tell whether only Composer writes so: a word for mixed precision, a type of state dicts."""
        values = plain_values(node)
        return str(values.get("mixed_precision")).upper() in {"DEFAULT", "PURE", "FULL"} or str(
            values.get("state_dict_type")
        ) in {"full", "sharded"}

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping for Composer's ``fsdp_config``."""
        block = Block(self.name, path, node, owner, document)
        names = set(effective(node))
        # Composer's FSDP1 stops at FSDP2's key. Beside a strategy it may be half converted.
        told = "reshard_after_forward" in names or (bool(names) and sets_fsdp2(document))
        block.is_fsdp2 = told and "sharding_strategy" not in names
        block.unread = tuple(sorted(names - FSDP2_FIELDS - {"device_mesh"}))
        if not names:
            block.unused = "it is empty"
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments that Composer makes of the block and of the Trainer's precision."""
        assert block.node is not None
        known = {*COMPOSER_FIELDS, *FORMER}
        values = {
            name: value
            for name, value in plain_values(block.node).items()
            if name in known and not isinstance(value, Reference)
        }
        precision = plain_values(block.owner).get("precision")
        given = None if isinstance(precision, Reference) or precision is None else precision
        if given is None and not isinstance(values.get("mixed_precision"), dict):
            # DEFAULT and PURE take their dtypes from the precision and cannot be read without; FULL can.
            values["mixed_precision"] = "FULL"
        config = composer_fsdp1_config(values, precision=given).config
        return {name: getattr(config, name) for name in config.model_fields_set}

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft the fields of Composer's ``FSDP2Config``, and say what else must be done."""
        assert block.node is not None
        names = set(effective(block.node))
        draft.table(block, COMPOSER_KEYS)
        if not {"sharding_strategy", "reshard_after_forward"} & names:
            text = "true, FULL_SHARD: the default of both; it marks the block as FSDP2's."
            draft.add(block.node, "reshard_after_forward", True, block.at("reshard_after_forward"), text)
        if "state_dict_type" not in names:
            text = "full, the default of FSDP1; that of FSDP2 is sharded."
            draft.add(block.node, "state_dict_type", "full", block.at("state_dict_type"), text)
        if "mixed_precision" not in names:
            outcome = keep_precision("DEFAULT", block)
            text = f"DEFAULT, which no key says. {outcome.message.removeprefix('DEFAULT: kept. ')}"
            draft.say(outcome.code, block.at("mixed_precision"), text, outcome.hint)
        if "backward_prefetch" not in names:
            text = (
                "Composer's default is BACKWARD_POST; FSDP2 prefetches earlier and holds one more unit in "
                "full."
            )
            draft.say("FM343", block.at("backward_prefetch"), text)
        if config.mesh != "shard":
            text = "Composer's FSDP2 has one mesh of all ranks: neither replicas (HYBRID_SHARD) nor NO_SHARD."
            draft.say("FM353", block.at("sharding_strategy"), text, CALLBACK)
        elif (given := str(plain_values(block.node).get("sharding_strategy")).upper()) in _HYBRID:
            text = (
                f"{given}: Composer makes {_HYBRID[given]} of it under FSDP1 too, without "
                "`data_parallel_replicate_degree`: there are no replicas."
            )
            draft.say("FM341", block.at("sharding_strategy"), text)
        text = (
            f"Composer {COMPOSER['fsdp2'].since} and later take this block for FSDP2, and only with "
            "`FSDP_VERSION=2` in the environment; otherwise it is FSDP1's."
        )
        hint = (
            "Export it where the run is started. fsdp-migrate's Composer callback needs neither this nor a "
            "new YAML."
        )
        if not sets_fsdp2(block.root):
            draft.say("FM355", block.name, text, hint)
        _say_microbatches(block, draft)
        _say_clipping(block, draft)
        _say_experts(block, draft)
        trainer = target_of(plain_values(block.owner)) or ""
        if block.path[-1] == "fsdp_config" and trainer.endswith("Trainer"):
            text = "Composer's Trainer with FSDP2 has no argument `fsdp_config`, and ends with an error."
            hint = "Move the block: `parallelism_config: {fsdp: ...}`."
            draft.say("FM355", block.beside("parallelism_config"), text, hint)


def _say_microbatches(block: Block, draft: Draft) -> None:
    """Say that Composer's FSDP2 looks for no size of microbatches: it stops in ``State._apply_fsdp``.

    Its assertion says "auto_microbatching is not supported with FSDP2" (composer/core/state.py).
    """
    name = "device_train_microbatch_size"
    around = [block.owner, *([block.root] if isinstance(block.root, Mapping) else [])]
    given = next((value for each in around if (value := plain_values(each).get(name)) is not None), None)
    if isinstance(given, str) and given.strip().lower() == "auto":
        text = "auto: Composer's FSDP2 does not look for a size that fits, and stops before the first step."
        hint = (
            "Write a number, as the log of the FSDP1 run tells it, or use fsdp-migrate's Composer callback."
        )
        draft.say("FM343", block.beside(name) if around[0] is not block.root else name, text, hint)


def _say_clipping(block: Block, draft: Draft) -> None:
    """Say that Composer's FSDP2 clips each element by ``value``, which FSDP1 took for the greatest of all."""
    name = "algorithms"
    around = [block.owner, *([block.root] if isinstance(block.root, Mapping) else [])]
    for each in around:
        if CLIPPED_BY_VALUE in set(_clipping_types(plain_values(each).get(name))):
            where = "algorithms.gradient_clipping.clipping_type"
            text = (
                "value: Composer's FSDP1 scales the whole gradient down until its greatest element is the "
                "threshold; its FSDP2 cuts each element off at it."
            )
            draft.say("FM343", where if each is block.root else block.beside(where), text, CALLBACK)
            return


def _say_experts(block: Block, draft: Draft) -> None:
    """Say that Composer's FSDP2 shards no unit over a mesh of its own, which llm-foundry gives to experts.

    It hands the mark's `device_mesh` on to `fully_shard`, which has none (composer/distributed/fsdp2.py).
    """
    name = "moe_world_size"
    for path, mapping in mappings_of(block.root):
        given = plain_values(mapping).get(name)
        if is_known(given) and str(given) != "1":
            text = (
                f"{given}: llm-foundry gives the experts a mesh of their own, which Composer's FSDP2 hands "
                "on to torch's `fully_shard`: it stops before the first step, at an unexpected `device_mesh`."
            )
            hint = "Write 1, with which every rank holds a shard of every expert, or stay with FSDP1."
            draft.say("FM343", ".".join((*path, name)), text, hint)


def _clipping_types(value: Any) -> Iterator[str]:
    """Yield what algorithms say of how gradients are clipped, in a mapping by name or a list of them."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(each, dict):
            yield str(each.get("clipping_type"))
            yield from _clipping_types([inner for inner in each.values() if isinstance(inner, dict)])
