"""Axolotl: ``fsdp`` (a list, deprecated) and ``fsdp_config`` in its YAML.

Read in the source of Axolotl 0.13 (``utils/schemas/fsdp.py``, ``utils/schemas/validation.py``) and in its
guide of migration (``docs/multi-gpu.qmd``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.edits import Change
from fsdp_migrate.adapters.document.nodes import Reference, effective
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Key,
    Outcome,
    bare_values,
    is_known,
    keep,
    keep_bool,
    keep_count,
    mapping_at,
    mappings_of,
    owner_of,
    plain_values,
    read_number,
    shown,
)
from fsdp_migrate.adapters.engine.claims import AXOLOTL_REFUSED_OPTIMIZERS, AXOLOTL_REFUSED_RL
from fsdp_migrate.adapters.engine.optimizer_names import say_optimizer
from fsdp_migrate.adapters.engine.rank0_loading import broadcasts_from_rank0, keep_ram_loading
from fsdp_migrate.adapters.engine.shared_keys import (
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    drop_prefetch,
    frees_after_forward,
    keep_classes,
    keep_state_dict_type,
    keep_wrap_policy,
    lost_sync,
    no_forward_prefetch,
    say_mixed_precision,
    say_no_prefetch,
    say_no_shard,
    say_units_by_size,
    shard_config,
    to_reshard,
    to_reshard_unless_second,
)
from fsdp_migrate.adapters.hf_words import items_of, strategy_in_fsdp
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.document.nodes import Mapping, Node
    from fsdp_migrate.config import FSDP2Config


MARKERS = frozenset(
    {
        "base_model",
        "sequence_len",
        "micro_batch_size",
        "dataset_prepared_path",
        "sample_packing",
        "val_set_size",
    }
)


def drop_version(value: Any, block: Block) -> Outcome:
    """Take out a version in ``fsdp_config``: it stands beside it."""
    del block
    return Outcome("FM341", f"{shown(value)}: `fsdp_version: 2` stands beside `fsdp_config`.", remove=True)


def drop_sync(value: Any, block: Block) -> Outcome:
    """Take out ``sync_module_states``, as Axolotl's guide does."""
    broadcasts = broadcasts_from_rank0(block, AXOLOTL_KEYS, default=False)
    if value is None or broadcasts or not words.read_bool(value, "value"):
        said = (
            "rank 0's weights are sent to all ranks when it alone loads them"
            if broadcasts
            else "nothing to send"
        )
        return Outcome("FM342", f"{shown(value)}: {said}.", remove=True)
    return lost_sync(value, "Ranks that load the same checkpoint hold the same weights anyhow.")


FORWARD_PREFETCH = no_forward_prefetch("Axolotl")
AXOLOTL_KEYS: tuple[Key, ...] = (
    Key("version", "`fsdp_version: 2` beside `fsdp_config`", drop_version),
    Key("sharding_strategy", "`reshard_after_forward`, true or false", to_reshard),
    Key("reshard_after_forward", "true or false", to_reshard_unless_second),
    Key("offload_params", "kept, without the prefix", keep_bool),
    Key("auto_wrap_policy", "kept, without the prefix", keep_wrap_policy),
    Key("transformer_layer_cls_to_wrap", "kept, without the prefix, as `A,B`", keep_classes),
    Key("min_num_params", "kept, without the prefix, as a whole number", keep_count),
    Key("state_dict_type", "kept, without the prefix; LOCAL becomes SHARDED", keep_state_dict_type),
    Key("final_state_dict_type", "kept, without the prefix", keep_state_dict_type),
    Key("cpu_ram_efficient_loading", "kept, without the prefix", keep_ram_loading),
    Key("cpu_offload_pin_memory", "kept, without the prefix", keep_bool),
    Key("activation_checkpointing", "kept, without the prefix", keep_bool),
    Key("mixed_precision_policy", "kept, without the prefix", keep()),
    Key("sync_module_states", "taken out: FSDP2 has none", drop_sync),
    ORIG_PARAMS,
    LIMIT_ALL_GATHERS,
    Key(
        "backward_prefetch",
        "taken out: FSDP2 prefetches as BACKWARD_PRE does",
        drop_prefetch,
        ("backward_prefetch_policy",),
    ),
    Key("forward_prefetch", "taken out: Axolotl's FSDP2 has none", FORWARD_PREFETCH),
)


class AxolotlAdapter:
    """Axolotl's YAML: the list ``fsdp`` and the mapping ``fsdp_config``."""

    name = "axolotl"
    title = "Axolotl"
    keys = AXOLOTL_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield each mapping with ``fsdp`` or ``fsdp_config`` beside Axolotl's own keys."""
        for path, mapping in mappings_of(document):
            names = set(effective(mapping))
            if mapping_at(mapping, "fsdp") is not None:  # it is a list, or words
                continue
            if names & {"fsdp", "fsdp_config"} and len(MARKERS & names) >= (
                1 if "base_model" in names else 2
            ):
                node = mapping_at(mapping, "fsdp_config")
                yield self._judged(Block(self.name, (*path, "fsdp_config"), node, mapping, document))

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping for ``fsdp_config``, or for the one that holds it."""
        if set(effective(node)) & {"fsdp", "fsdp_config"}:
            config = mapping_at(node, "fsdp_config")
            return self._judged(Block(self.name, (*path, "fsdp_config"), config, node, document))
        return self._judged(Block(self.name, path, node, owner, document))

    def _judged(self, block: Block) -> Block:
        beside = plain_values(block.owner)
        inner = bare_values(block.node, AXOLOTL_KEYS)
        version = beside.get("fsdp_version", inner.get("version"))
        block.is_fsdp2 = read_number(version) == 2
        if not beside.get("fsdp") and not inner and not isinstance(beside.get("fsdp_config"), Reference):
            block.unused = "`fsdp` and `fsdp_config` are empty"
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments that ``fsdp`` and ``fsdp_config`` mean together."""
        values = bare_values(block.node, AXOLOTL_KEYS)
        items = items_of(block)
        for name, value in _implied(block, items).items():
            values.setdefault(name, value)
        if "sharding_strategy" not in values and strategy_in_fsdp(block):
            values["sharding_strategy"] = strategy_in_fsdp(block)
        arguments = shard_config(block, values)
        for flag in ("bf16", "fp16"):
            if plain_values(block.owner).get(flag) in (True, "auto") and "mixed_precision" not in arguments:
                arguments["mixed_precision"] = flag
        return arguments

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft ``fsdp_version: 2`` and ``fsdp_config`` without prefixes, and take out the list ``fsdp``."""
        try:
            items = items_of(block)
        except ConfigError as error:
            draft.say("FM348", block.beside("fsdp"), str(error), "Correct it, and convert again.")
            return
        if block.node is not None:
            draft.table(block, AXOLOTL_KEYS, rename=lambda written, new: new)
            _strip_prefixes(block, draft)
        _emit_list(block, items, draft)
        _add_implied(block, items, draft)
        _move_final_type(block, draft)
        names = set(effective(block.owner))
        beside = plain_values(block.owner)
        if isinstance(beside.get("fsdp_config"), Reference) and not items:
            return  # whether FSDP is on, and which, is said elsewhere
        is_elsewhere = isinstance(beside.get("fsdp"), Reference)
        if "fsdp" not in names or "fsdp_version" in names or is_elsewhere:
            subject, text = block.beside("fsdp_version"), "2: without it Axolotl runs FSDP1."
            draft.set(block.owner, "fsdp_version", 2, subject, text)
        flag = "bf16" if config.mp_policy.param_dtype == "bfloat16" else "fp16"
        say_mixed_precision(block, config, draft, flag)
        _emit_mesh(block, config, draft)
        say_no_prefetch(block, draft, AXOLOTL_KEYS, self.title)
        _say_quantized_rl(block, draft)
        optimizer = plain_values(block.owner).get("optimizer")
        if optimizer in AXOLOTL_REFUSED_OPTIMIZERS:
            text = f"{optimizer}: Axolotl refuses it with FSDP2, before the run starts."
            hint = "Axolotl names `adamw_torch_8bit` in its place; what that saved is not read from it."
            draft.say("FM343", block.beside("optimizer"), text, hint)
        else:
            say_optimizer(block, draft, "optimizer")


def _move_final_type(block: Block, draft: Draft) -> None:
    """Move the type of the final save into ``fsdp_config``, where Axolotl reads it since it has FSDP2."""
    key = "fsdp_final_state_dict_type"
    entry, inner = effective(block.owner).get(key), bare_values(block.node, AXOLOTL_KEYS)
    beside = plain_values(block.owner).get(key)
    if "final_state_dict_type" in inner:
        return
    if entry is None or block.node is None or not is_known(beside):
        kind = str(inner.get("state_dict_type") or "").upper()
        if kind.startswith("SHARDED"):
            text = (
                "Without it the model is saved at the end as `state_dict_type` says, sharded; before it had "
                "FSDP2 Axolotl saved FULL_STATE_DICT there."
            )
            hint = "Write `final_state_dict_type: FULL_STATE_DICT` in `fsdp_config` for one whole model."
            draft.say("FM343", block.at("final_state_dict_type"), text, hint)
        return
    draft.edits.change(owner_of(block.owner, entry), Change(entry, remove=True))
    draft.edits.add(block.node, "final_state_dict_type", beside)
    text = (
        f"{shown(beside)}: Axolotl reads it in `fsdp_config`, as `final_state_dict_type`, since it has FSDP2."
    )
    draft.say("FM341", block.beside(key), text)


def _say_quantized_rl(block: Block, draft: Draft) -> None:
    """Say what Axolotl refuses at its start: quantised base models in reinforcement learning.

    ``check_fsdp2_base_model_quant_rl`` in ``utils/schemas/validation.py``: ``fsdp_version`` 2, one of
    ``load_in_8bit`` and ``load_in_4bit``, and ``rl`` of dpo, kto, orpo or ipo: "FSDP2 does not support
    load_in_8bit or load_in_4bit with {rl}. Please use DeepSpeed or set `fsdp_version` to 1."
    """
    beside = plain_values(block.owner)
    quantised = [name for name in ("load_in_8bit", "load_in_4bit") if _is_on(beside.get(name))]
    trained = beside.get("rl")
    if not quantised or not (isinstance(trained, Reference) or _word(trained) in AXOLOTL_REFUSED_RL):
        return
    listed = ", ".join(sorted(AXOLOTL_REFUSED_RL))
    if isinstance(trained, Reference):
        text = f"{trained} is not set in this file. Axolotl refuses `{quantised[0]}` with FSDP2 for {listed}."
        draft.say("FM346", block.beside("rl"), text, "If it is one of these, stay with `fsdp_version: 1`.")
        return
    text = f"{trained} with `{quantised[0]}`: Axolotl refuses that with FSDP2, before the run starts."
    hint = "Stay with `fsdp_version: 1`, or train without quantisation, or with DeepSpeed, as Axolotl says."
    draft.say("FM343", block.beside("rl"), text, hint)


def _is_on(value: Any) -> bool:
    return value is True or (isinstance(value, str) and _word(value) in {"true", "yes", "on"})


def _word(value: Any) -> str:
    return str(value).strip().lower()


def _strip_prefixes(block: Block, draft: Draft) -> None:
    """Write keys without the prefix ``fsdp_``, as Axolotl wants them under FSDP2."""
    assert block.node is not None
    known = {key.name for key in AXOLOTL_KEYS}
    renamed = draft.rename_all(
        block.node,
        lambda written: written.removeprefix("fsdp_") if written.removeprefix("fsdp_") in known else written,
    )
    names = {block.at(written): new for written, new in renamed.items()}
    for index, finding in enumerate(draft.findings):
        name = names.get(finding.subject)
        if name is None or finding.code == "FM349":
            continue
        text = f"Written as `{name}`: Axolotl's keys have no prefix any more. It means the same."
        if finding.code != "FM340":
            text = f"{finding.message} It becomes `{name}`."
        code = "FM341" if finding.code == "FM340" else finding.code
        draft.findings[index] = make_finding(code, finding.subject, text, finding.hint)


def _implied(block: Block, items: tuple[str, ...]) -> dict[str, Any]:
    """Return what the list says that ``fsdp_config`` does not."""
    values = bare_values(block.node, AXOLOTL_KEYS)
    wanted: dict[str, Any] = {}
    strategy = strategy_in_fsdp(block)
    if strategy and not {"sharding_strategy", "reshard_after_forward"} & set(values):
        wanted["reshard_after_forward"] = frees_after_forward(strategy)
    if "offload" in items and "offload_params" not in values:
        wanted["offload_params"] = True
    if "auto_wrap" in items and "auto_wrap_policy" not in values:
        by_size = is_known(values.get("min_num_params"))
        wanted["auto_wrap_policy"] = "SIZE_BASED_WRAP" if by_size else "TRANSFORMER_BASED_WRAP"
    if "state_dict_type" not in values:
        wanted["state_dict_type"] = "FULL_STATE_DICT"
    return wanted


def _add_implied(block: Block, items: tuple[str, ...], draft: Draft) -> None:
    reasons = {
        "reshard_after_forward": "which the list `fsdp` says",
        "offload_params": "which the list `fsdp` says",
        "auto_wrap_policy": "which the list `fsdp` says",
        "state_dict_type": "the default of FSDP1; that of FSDP2 is SHARDED_STATE_DICT",
    }
    wanted = _implied(block, items)
    if block.node is None:
        if isinstance(plain_values(block.owner).get("fsdp_config"), Reference):
            draft.say("FM346", block.name, "It is not set in this file: kept.", "Convert what it stands for.")
        else:
            draft.set(block.owner, "fsdp_config", wanted, block.name, "What the list `fsdp` says.")
        return
    for name, value in wanted.items():
        draft.add(block.node, name, value, block.at(name), f"{shown(value)}, {reasons[name]}.")
    say_units_by_size(wanted.get("auto_wrap_policy"), block.at("auto_wrap_policy"), draft)


def _emit_list(block: Block, items: tuple[str, ...], draft: Draft) -> None:
    """Take out ``fsdp``, which Axolotl's FSDP2 has not; what it says stands in ``fsdp_config``."""
    entry = effective(block.owner).get("fsdp")
    if entry is None:
        return
    value = plain_values(block.owner)["fsdp"]
    if isinstance(value, Reference):
        text = f"{value} is not set in this file: kept. FSDP2 reads its strategy from `fsdp_config` alone."
        hint = "Take it out, and write `reshard_after_forward: false` if it says shard_grad_op."
        draft.say("FM346", block.beside("fsdp"), text, hint)
        return
    change = Change(entry, remove=True)
    if "fsdp_version" not in effective(block.owner):
        change = Change(entry, "fsdp_version", 2, has_value=True)
        draft.say("FM344", block.beside("fsdp_version"), "2: without it Axolotl runs FSDP1.")
    draft.edits.change(owner_of(block.owner, entry), change)
    text = f"{' '.join(items) or 'empty'}: deprecated; what it says stands in `fsdp_config`."
    draft.say("FM341", block.beside("fsdp"), text)


def _emit_mesh(block: Block, config: FSDP2Config, draft: Draft) -> None:
    values = bare_values(block.node, AXOLOTL_KEYS)
    subject = block.at("sharding_strategy") if "sharding_strategy" in values else block.beside("fsdp")
    nodes, ranks = block.settings.nodes, block.settings.world_size
    beside = plain_values(block.owner)
    if config.mesh == "replicate":
        say_no_shard(draft, subject, "No `fsdp_config` at all")
    elif config.mesh != "hybrid":
        return
    elif is_known(beside.get("dp_replicate_size")):
        draft.say("FM341", subject, "HYBRID_SHARD: `dp_replicate_size`, which stands there already, says it.")
    elif nodes == 1:
        draft.say("FM341", subject, "HYBRID_SHARD on one node is one shard group: full sharding, the same.")
    elif nodes is None or ranks is None or ranks % nodes or ranks == nodes:
        text = (
            "HYBRID_SHARD needs `dp_replicate_size` and `dp_shard_size`, and the file does not say the nodes."
        )
        draft.say("FM352", subject, text, "Give `--nodes N` and `--world-size N`.")
    else:
        text = f"HYBRID_SHARD: {nodes} replicas, each sharded over {ranks // nodes} ranks, as in FSDP1."
        draft.set(block.owner, "dp_replicate_size", nodes, block.beside("dp_replicate_size"), text)
        draft.set(block.owner, "dp_shard_size", ranks // nodes, block.beside("dp_shard_size"), text)
