"""HF Trainer: ``fsdp`` and ``fsdp_config`` of ``TrainingArguments``, or the JSON that ``fsdp_config`` names.

Read in the source of transformers 4.57 to 5.23 (``TrainingArguments._process_fsdp_args``). What is written
means as much as can be in each of them (:data:`~fsdp_migrate.adapters.engine.claims.TRANSFORMERS`): ``fsdp``
stays a string, as versions before 5.10 read it, and ``fsdp_config`` says the same to later ones.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.edits import Change, Edits
from fsdp_migrate.adapters.document.json_reader import read_json
from fsdp_migrate.adapters.document.nodes import Mapping, Node, Reference, effective, target
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Key,
    Outcome,
    bare,
    bare_values,
    by_name,
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
from fsdp_migrate.adapters.engine.claims import ACCELERATE, TRANSFORMERS
from fsdp_migrate.adapters.engine.optimizer_names import say_arguments
from fsdp_migrate.adapters.engine.ownership import has_hf_words, is_anothers, is_prefixed, may_be_fsdp_config
from fsdp_migrate.adapters.engine.rank0_loading import broadcasts_from_rank0, keep_ram_loading
from fsdp_migrate.adapters.engine.shared_embeddings import say_shared_embeddings
from fsdp_migrate.adapters.engine.shared_keys import (
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    drop_prefetch,
    frees_after_forward,
    is_empty,
    keep_wrap_policy,
    kept_or_freed,
    lost_sync,
    no_forward_prefetch,
    say_no_prefetch,
    shard_config,
    strategy_of,
)
from fsdp_migrate.adapters.engine.torch_objects import target_of
from fsdp_migrate.adapters.hf_environment import (
    STATE_DICT_TYPE,
    say_environment,
    state_type_in_environment,
)
from fsdp_migrate.adapters.hf_offload import say_offload
from fsdp_migrate.adapters.hf_versions import (
    FORMER,
    add_wanted,
    as_read,
    emit_fsdp,
    former_values,
    is_one,
    keep_layer_classes,
    keep_switch,
    refuse_xla,
    reshard_meant,
    say_count,
    say_default_sync,
    say_file,
    say_former,
    say_mesh,
    say_no_words,
    say_units,
    say_versions,
    state_type_as_it_ran,
    take_former,
    take_version,
    wanted_there,
)
from fsdp_migrate.adapters.hf_words import OPTIONS, items_of, strategy_in_fsdp
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.config import FSDP2Config


STRONG = frozenset(
    {
        "output_dir",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "num_train_epochs",
        "model_name_or_path",
        "save_strategy",
    }
)
# Others use these words too: what has no more of the Trainer's may be anybody's.
MARKERS = STRONG | {
    "gradient_accumulation_steps",
    "learning_rate",
    "max_steps",
    "gradient_checkpointing",
    "bf16",
    "fp16",
}


def take_strategy(value: Any, block: Block) -> Outcome:
    """Turn ``sharding_strategy``, which HF Trainer never read, into the boolean, unless ``fsdp`` decides."""
    frees = frees_after_forward(strategy_of(value))
    if _fsdp_decides(block) or "reshard_after_forward" in bare_values(block.node, HF_KEYS):
        return Outcome("FM342", f"{shown(value)}: HF Trainer reads `fsdp` instead.", remove=True)
    freed = "freed" if frees else "not freed"
    text = (
        f"{shown(value)}: HF Trainer's FSDP1 does not read it, and goes by `fsdp`, which is not known here. "
        f"Under FSDP2 units are {freed} after forward by this key, whatever `fsdp` says."
    )
    code, hint = ("FM341", None) if frees else ("FM343", "Write true if `fsdp` says full_shard.")
    return Outcome(code, text, hint, "reshard_after_forward", frees, has_value=True)


def take_reshard(value: Any, block: Block) -> Outcome:
    """Turn a strategy's name into the boolean of FSDP2; ``fsdp``, which FSDP1 reads first, decides."""
    meant, told = strategy_of(value), strategy_in_fsdp(block)
    fsdp = plain_values(block.owner).get("fsdp")
    is_default = isinstance(value, str) and told is None and is_known(fsdp) and bool(fsdp)
    if not is_default or frees_after_forward(meant):
        return kept_or_freed(value, frees_after_forward(told or meant))
    text = (
        f"{shown(value)}: `fsdp` names no strategy, and {ACCELERATE['reshard_unread'].says}, which is "
        "FULL_SHARD unless it is given. It becomes true, as it ran."
    )
    hint = "Write false if parameters should stay whole after forward."
    return Outcome("FM343", text, hint, value=True, has_value=True)


def take_offload(value: Any, block: Block) -> Outcome:
    """Take out ``offload_params``, which HF Trainer never read: ``offload`` in ``fsdp`` decided."""
    wanted = value is not None and words.read_bool(value, "value")
    text = f"{shown(value)}: HF Trainer reads `cpu_offload`; `offload_params` had no effect."
    if not wanted or "offload" in items_of(block) or "cpu_offload" in bare_values(block.node, HF_KEYS):
        return Outcome("FM342", text, remove=True)
    hint = "Write `cpu_offload: true` to offload, as `offload` in `fsdp` does."
    return Outcome("FM343", text, hint, remove=True)


def keep_policy(value: Any, block: Block) -> Outcome:
    """Keep the policy's name, and say so where ``auto_wrap`` in ``fsdp``, which FSDP1 reads, is another."""
    outcome = keep_wrap_policy(value, block)
    fsdp = plain_values(block.owner).get("fsdp")
    is_told = is_known(fsdp) and fsdp is not True
    if value is None and is_empty(block, "auto_wrap_policy"):
        policy = _policy(block, bare_values(block.node, HF_KEYS)) or "TRANSFORMER_BASED_WRAP"
        return as_read(outcome, value, policy)
    if value is None:
        return outcome
    word = words.bare_word(value).upper()
    outcome = as_read(outcome, value, word)
    wraps = word != "NO_WRAP"
    if wraps == ("auto_wrap" in items_of(block) if is_told else True):
        return outcome
    text = (
        f"{shown(value)}: read by transformers {TRANSFORMERS['auto_wrap_policy_read'].versions}. Before, "
        f"`fsdp` decides, with auto_wrap or without."
    )
    other = "NO_WRAP, as `fsdp` says" if wraps else "TRANSFORMER_BASED_WRAP, if `fsdp` says auto_wrap"
    hint = f"Write {other}, to keep the FSDP1 run's units; values are the same."
    return Outcome("FM358", text, hint, value=outcome.value, has_value=outcome.has_value)


def keep_size(value: Any, block: Block) -> Outcome:
    """Keep the size from which a module is wrapped; beside layers that are named it was none's that ran."""
    values = bare_values(block.node, HF_KEYS)
    is_by_size = words.bare_word(values.get("auto_wrap_policy") or "").upper() == "SIZE_BASED_WRAP"
    outcome = keep_count(value, block)
    if not value or not values.get("transformer_layer_cls_to_wrap") or is_by_size:
        return outcome
    stops = f"both stop the run with transformers {TRANSFORMERS['size_beside_layers_stops'].versions}"
    return Outcome("FM342", f"{shown(value)}: the layers that are named are wrapped; {stops}.", remove=True)


def keep_cpu_offload(value: Any, block: Block) -> Outcome:
    """Keep a boolean; a mapping with ``offload_params`` becomes one. FSDP1 may not have read it."""
    if isinstance(value, dict) and set(value) == {"offload_params"}:
        wanted = words.read_bool(value["offload_params"], "value")
        outcome = Outcome("FM341", f"Written as {shown(wanted)}.", value=wanted, has_value=True)
    else:
        outcome = keep_bool(value, block)
    wanted = outcome.value if outcome.has_value else value
    if wanted is not True or "offload" in items_of(block):
        return outcome
    text = (
        f"true: read by transformers {TRANSFORMERS['cpu_offload_read'].versions}. Before, `offload` in "
        "`fsdp` decides, and without it parameters stay on the GPU."
    )
    hint = "Take it out if the FSDP1 run did not offload."
    return Outcome("FM358", text, hint, value=outcome.value, has_value=outcome.has_value)


def drop_sync(value: Any, block: Block) -> Outcome:
    """Take out ``sync_module_states``, which FSDP2 has not."""
    broadcasts = broadcasts_from_rank0(block, HF_KEYS, default=False)
    if broadcasts or (value is not None and not words.read_bool(value, "value")):
        return Outcome("FM342", f"{shown(value)}: FSDP2 has no such option.", remove=True)
    hint = "Ranks that load the same checkpoint or start from the same seed hold the same weights anyhow."
    return lost_sync(value, hint)


HF_KEYS: tuple[Key, ...] = (
    Key("version", "`version: 2`", take_version),
    Key("sharding_strategy", "`reshard_after_forward`, true or false", take_strategy, is_read=False),
    Key("reshard_after_forward", "true or false", take_reshard),
    Key("transformer_layer_cls_to_wrap", "kept", keep_layer_classes),
    Key("min_num_params", "kept, as a whole number; taken out beside layers that are named", keep_size),
    Key("auto_wrap_policy", "kept", keep_policy),
    Key("backward_prefetch", "taken out: FSDP2 prefetches as BACKWARD_PRE does", drop_prefetch),
    Key("forward_prefetch", "taken out: HF Trainer's FSDP2 has none", no_forward_prefetch("HF Trainer")),
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    Key("sync_module_states", "taken out: FSDP2 has none", drop_sync),
    Key(
        "cpu_ram_efficient_loading",
        "kept; false where sources tie weights of a model without `tie_weights()`",
        keep_ram_loading,
    ),
    Key("cpu_offload", "kept, as a boolean", keep_cpu_offload),
    Key("offload_params", "taken out: HF Trainer never read it", take_offload, is_read=False),
    Key("activation_checkpointing", "kept", keep_switch),
    Key(
        "state_dict_type",
        "FULL_STATE_DICT, which FSDP1 saves before 5.10; with `version: 1` kept",
        state_type_as_it_ran,
    ),
    Key("xla", "refused if true", refuse_xla),
    Key("xla_fsdp_v2", "refused if true", refuse_xla),
    *(
        Key(name, "kept: without `xla` nothing reads it", keep("Kept: without `xla` nothing reads it."))
        for name in ("xla_fsdp_settings", "xla_fsdp_grad_ckpt")
    ),
)
_DISTINCTIVE = frozenset(
    {"transformer_layer_cls_to_wrap", "min_num_params", "xla", "xla_fsdp_settings", "xla_fsdp_v2"}
)


def _fsdp_decides(block: Block) -> bool:
    """Tell whether ``fsdp`` says the strategy, which it alone does; true is full_shard."""
    return plain_values(block.owner).get("fsdp") is True or strategy_in_fsdp(block) is not None


class HFTrainerAdapter:
    """Arguments of HF Trainer in YAML or JSON, and the JSON that ``fsdp_config`` names."""

    name = "hf"
    title = "HF Trainer"
    keys = HF_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield each mapping with ``fsdp`` or ``fsdp_config`` beside arguments of the Trainer."""
        for path, mapping in mappings_of(document):
            values = plain_values(mapping)
            config = mapping_at(mapping, "fsdp_config")
            own = {name for name in values if name.startswith("fsdp_")} - {"fsdp_config", *FORMER}
            foreign = is_anothers(mapping, self.name) or own  # HF Trainer refuses arguments that it has not
            if not path and self._stands_alone(mapping):
                yield self.at((), mapping, mapping, document)
            elif not path and may_be_fsdp_config(set(effective(mapping)), set(by_name(HF_KEYS))):
                block = self.at((), mapping, mapping, document)
                block.is_certain = False
                yield block
            elif ("fsdp" in values or "fsdp_config" in values) and self._is_arguments(values, config):
                block = Block(self.name, (*path, "fsdp_config"), config, mapping, document)
                block.is_certain = not foreign and (has_hf_words(mapping) or bool(STRONG & set(values)))
                yield self._judged(block)

    def _is_arguments(self, values: dict[str, Any], config: Mapping | None) -> bool:
        fsdp = values.get("fsdp")
        if isinstance(fsdp, dict) or (
            config is None and isinstance(fsdp, bool) and not MARKERS & set(values)
        ):
            return False
        named = fsdp if isinstance(fsdp, list) else str(fsdp or "").split()
        if named and not isinstance(fsdp, bool) and not isinstance(fsdp, Reference):
            return any(words.bare_word(word) in OPTIONS for word in named) or bool(MARKERS & set(values))
        return bool(MARKERS & set(values)) or fsdp is True

    def _stands_alone(self, mapping: Mapping) -> bool:
        known = by_name(HF_KEYS)
        names = [name for name in effective(mapping) if not name.startswith("_")]
        bare_names = [bare(name) for name in names]
        share = sum(name in known for name in bare_names)
        prefixed = share == len(names) and is_prefixed(names)
        distinctive = prefixed or bool(_DISTINCTIVE & set(bare_names))
        if any(
            target_of(plain_values(inner)) or "_component_" in effective(inner)
            for _, inner in mappings_of(mapping)
        ):
            return False  # what instantiates classes is no file for `fsdp_config`
        return distinctive and 2 * share >= len(names) and "fsdp" not in names and "fsdp_config" not in names

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping for the content of ``fsdp_config``, or for arguments that hold it."""
        values = plain_values(node)
        if "fsdp" in values or "fsdp_config" in values:
            config = mapping_at(node, "fsdp_config")
            return self._judged(Block(self.name, (*path, "fsdp_config"), config, node, document))
        # A mapping that is called `fsdp` itself is none of the Trainer's words beside it.
        entries = [each for each in owner.entries if target(each.value) is not node]
        beside = replace(owner, entries=entries) if path and mapping_at(owner, "fsdp") is node else owner
        return self._judged(Block(self.name, path, node, beside if path else node, document))

    def _judged(self, block: Block) -> Block:
        values, beside = bare_values(block.node, HF_KEYS), plain_values(block.owner)
        # ms-swift's word for its FSDP2 settings of HF Trainer, which itself has no such word.
        block.is_fsdp2 = read_number(values.get("version")) == 2 or beside.get("fsdp") == "fsdp2"
        if block.node is not block.owner and not block.is_fsdp2:
            if "fsdp" in beside and (not beside["fsdp"] or not str(beside["fsdp"]).strip()):
                block.unused = f"`fsdp` is {shown(beside['fsdp']) or 'empty'}, so HF Trainer does not read it"
            elif "fsdp" not in beside and MARKERS & set(beside) and values.get("xla") is not True:
                block.unused = "there is no `fsdp` beside it, so HF Trainer reads at most `xla` of it"
                given = beside.get("fsdp_config")
                if isinstance(given, str) and given.endswith(".json"):
                    block.unused += f"; if code sets `fsdp`, convert {given} with `--from hf`"
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments that ``fsdp`` and ``fsdp_config`` mean together."""
        values = bare_values(block.node, HF_KEYS)
        items = items_of(block)
        values.pop("offload_params", None)
        strategy = strategy_in_fsdp(block)
        if strategy:
            values["sharding_strategy"] = strategy
        elif _fsdp_decides(block):
            values.pop("sharding_strategy", None)
        if "offload" in items:
            values["offload_params"] = True
        elif isinstance(values.get("cpu_offload"), bool):
            values["offload_params"] = values["cpu_offload"]
        policy = _policy(block, values)
        if policy is not None:
            values["auto_wrap_policy"] = policy
        values.setdefault("use_orig_params", True)
        arguments = shard_config(block, values)
        for flag in ("bf16", "fp16"):
            if plain_values(block.owner).get(flag) is True:
                arguments["mixed_precision"] = flag
        return arguments

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft ``version: 2`` and what goes with it, in ``fsdp_config``."""
        try:
            items = items_of(block)
        except ConfigError as error:
            say_no_words(block, str(error), draft)
            return
        if block.node is not block.owner and block.node is None and _elsewhere(block, items, draft):
            file = str(plain_values(block.owner).get("fsdp_config"))
            if block.settings.refusal(file) is not None:
                return
            emit_fsdp(block, items, draft)
            say_environment(block, items, draft)
            say_offload(block, items, HF_KEYS, draft)
            if not block.settings.is_converted(file):
                say_arguments(block, config, draft)
                say_mesh(block, strategy_in_fsdp(block), config, draft)
            return
        if block.node is not None:
            draft.table(block, HF_KEYS, rename=_prefixed)
        wanted = {**_wanted(block, items), **take_former(block, draft, HF_KEYS)}
        if block.node is None:
            text = "Added: without `version: 2` HF Trainer runs FSDP1 before 5.10."
            draft.set(block.owner, "fsdp_config", {k: v for k, (v, _) in wanted.items()}, block.name, text)
        else:
            add_wanted(block, wanted, draft)
        say_units(block, _policy_meant(block), draft, HF_KEYS)
        is_given = "reshard_after_forward" in bare_values(block.node, HF_KEYS)
        frees, _ = wanted.get("reshard_after_forward", (config.reshard_after_forward is not False, ""))
        emit_fsdp(block, items, draft, None if is_given else frees)
        say_environment(block, items, draft)
        say_count(block, items, draft, HF_KEYS, wanted)
        say_versions(block, items, draft, HF_KEYS)
        say_no_prefetch(block, draft, HF_KEYS, self.title)
        say_default_sync(block, draft, HF_KEYS)
        say_shared_embeddings(block, draft)
        say_offload(block, items, HF_KEYS, draft)
        say_arguments(block, config, draft)
        say_mesh(block, strategy_in_fsdp(block), config, draft)


def _prefixed(written: str, new: str) -> str:
    return f"fsdp_{new}" if written.startswith("fsdp_") and new != "version" else new


def _policy(block: Block, values: dict[str, Any]) -> str | None:
    """Return the wrap policy that FSDP1 uses, or None where nothing here tells."""
    if is_known(values.get("auto_wrap_policy")):
        return str(values["auto_wrap_policy"])
    fsdp = plain_values(block.owner).get("fsdp")
    is_told = is_known(fsdp) and fsdp is not True
    if is_told and "auto_wrap" not in items_of(block):
        return "NO_WRAP"
    count, is_named = values.get("min_num_params"), bool(values.get("transformer_layer_cls_to_wrap"))
    if is_known(count) and not is_named and words.read_count(count, block.at("min_num_params")) > 0:
        return "SIZE_BASED_WRAP"
    # `auto_wrap` may stand elsewhere: who names layers has asked for it.
    return "TRANSFORMER_BASED_WRAP" if is_told or "transformer_layer_cls_to_wrap" in values else None


def _policy_meant(block: Block) -> str | None:
    """Return the wrap policy that FSDP1 uses; None also where a value means nothing, which its key says."""
    try:
        return _policy(block, bare_values(block.node, HF_KEYS) | former_values(block))
    except ConfigError:
        return None


def _wanted(block: Block, items: tuple[str, ...]) -> dict[str, tuple[Any, str]]:
    """Return the keys to add to ``fsdp_config``, each with why."""
    values = bare_values(block.node, HF_KEYS) | former_values(block)
    wanted: dict[str, tuple[Any, str]] = {}
    if "version" not in values:
        wanted["version"] = (2, "2: without it HF Trainer runs FSDP1 before 5.10.")
    strategy = strategy_in_fsdp(block)
    by_strategy = "sharding_strategy" in values and not _fsdp_decides(block)
    if "reshard_after_forward" not in values and not by_strategy:
        wanted["reshard_after_forward"] = reshard_meant(block, strategy)
    policy = _policy_meant(block)
    if policy in {"NO_WRAP", "SIZE_BASED_WRAP"} and "auto_wrap_policy" not in values and not is_one(values):
        since = TRANSFORMERS["auto_wrap_policy_read"].since
        said = "`min_num_params`" if policy == "SIZE_BASED_WRAP" else "`fsdp`"
        wanted["auto_wrap_policy"] = (
            policy,
            f"{policy}, as {said} says; transformers {since} needs it here.",
        )
    if "offload" in items and "cpu_offload" not in values:
        wanted["cpu_offload"] = (True, "`offload`, where later versions read it.")
    given = state_type_in_environment(block)
    if "state_dict_type" not in values and given:
        wanted["state_dict_type"] = (given, f"{given}, as {STATE_DICT_TYPE} says, which FSDP1 took.")
    elif "state_dict_type" not in values:
        text = "FULL_STATE_DICT, the default of FSDP1; that of Accelerate's FSDP2 is SHARDED_STATE_DICT."
        wanted["state_dict_type"] = ("FULL_STATE_DICT", text)
    return wanted


def _elsewhere(block: Block, items: tuple[str, ...], draft: Draft) -> bool:
    """Handle an ``fsdp_config`` that is no mapping; tell whether there is nothing more to do."""
    value = plain_values(block.owner).get("fsdp_config")
    strategy = strategy_in_fsdp(block)
    frees = strategy is None or frees_after_forward(strategy)
    if not is_known(value):
        if isinstance(value, Reference):
            text = f"{value} is not set in this file: kept."
            there = wanted_there(block, items, frees)
            draft.say("FM346", block.name, text, f"Convert what it stands for{there}.")
            say_former(block, str(value), draft)
        return isinstance(value, Reference)
    if str(value).lstrip().startswith("{"):
        _emit_inline(block, str(value), draft)
    else:
        say_file(block, str(value), items, frees, draft)
    return True


def _emit_inline(block: Block, text: str, draft: Draft) -> None:
    """Convert an ``fsdp_config`` that is JSON in a string."""
    try:
        node = read_json(text)
    except ConfigError as error:
        draft.say("FM348", block.name, f"It is a string that starts as JSON does. {error}")
        return
    assert isinstance(node, Mapping)
    inner = Draft(Edits(text, is_json=True), draft.findings)
    within = Block(block.framework, block.path, node, block.owner, block.root, settings=block.settings)
    inner.table(within, HF_KEYS, rename=_prefixed)
    wanted = {**_wanted(within, items_of(block)), **take_former(within, draft, HF_KEYS)}
    add_wanted(within, wanted, inner)
    say_count(within, items_of(block), inner, HF_KEYS, wanted)
    entry = effective(block.owner)["fsdp_config"]
    result = inner.edits.apply()
    json.loads(result)
    draft.edits.change(owner_of(block.owner, entry), Change(entry, value=result, has_value=True))
