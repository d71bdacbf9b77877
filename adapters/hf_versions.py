"""HF Trainer's settings that not every version of transformers reads, or reads from another place."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.edits import Change
from fsdp_migrate.adapters.document.nodes import Reference, effective
from fsdp_migrate.adapters.engine.base import (
    Outcome,
    bare_values,
    is_known,
    keep_bool,
    mapping_at,
    owner_of,
    plain_values,
    read_number,
    shown,
    written_key,
)
from fsdp_migrate.adapters.engine.claims import TRANSFORMERS
from fsdp_migrate.adapters.engine.rank0_loading import lost_default_sync
from fsdp_migrate.adapters.engine.shared_keys import (
    frees_after_forward,
    is_empty,
    keep_state_dict_type,
    read_state_dict_type,
    say_no_shard,
    say_units_by_size,
)
from fsdp_migrate.adapters.hf_environment import HF_STRATEGIES, state_type_in_environment
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.versions import is_within


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.adapters.engine.base import Block, Draft, Key
    from fsdp_migrate.config import FSDP2Config


FORMER = {
    "fsdp_transformer_layer_cls_to_wrap": "transformer_layer_cls_to_wrap",
    "fsdp_min_num_params": "min_num_params",
}
"""Arguments of their own before ``fsdp_config`` had them, and what they are there."""
NOT_HERE = "`fsdp` is not in this file"
"""How what is said of a file without the words of ``fsdp`` begins."""
_TAKEN = frozenset({"auto_wrap", "full_shard", "offload", "shard_grad_op"})
_FILES = (".json", ".yaml", ".yml")
PRESUMED = {
    None: "",
    True: " `reshard_after_forward: true` is its full_shard: write false for shard_grad_op.",
    False: " `reshard_after_forward: false` is its shard_grad_op: write true for full_shard.",
}
"""What to say of ``fsdp`` that is not known, by whether units are freed after forward without it."""


def take_version(value: Any, block: Block) -> Outcome:
    """Say that the version becomes 2, under the name that every version of HF Trainer reads."""
    del block
    if read_number(value) not in {None, 1, 2}:
        msg = f"`value` is {value!r}; expected 1 or 2."
        raise ConfigError(msg, field="version")
    return Outcome("FM341", f"{shown(value)}: becomes 2.", key="version", value=2, has_value=True)


def is_one(values: Mapping[str, Any]) -> bool:
    """Tell whether settings ask for FSDP1 by its version, as from 5.10 on only they do."""
    return read_number(values.get("version")) == 1


def keep_layer_classes(value: Any, block: Block) -> Outcome:
    """Keep a list of classes, or a string of them; spaces around a name would hide the class."""
    del block
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    names = list(words.read_names(value, "value"))
    if value in (names, ",".join(names)):
        return Outcome("FM340", "Kept: the same classes are units.")
    return Outcome("FM341", f"Written as {names}.", value=names, has_value=True)


def keep_switch(value: Any, block: Block) -> Outcome:
    """Keep a boolean; nothing is false to versions that look for the key, and stops those that read it."""
    if value is None and is_empty(block, "activation_checkpointing"):
        return Outcome("FM341", "null: it is off. It is written as false.", value=False, has_value=True)
    return keep_bool(value, block)


def as_read(outcome: Outcome, value: Any, word: str) -> Outcome:
    """Write a policy as transformers reads it: in capitals, and not as nothing."""
    if value == word:
        return outcome
    since = TRANSFORMERS["auto_wrap_policy_read"].since
    message = f"{shown(value)}: transformers {since} and later refuse it. It is written as {word}."
    if outcome.code == "FM343":  # a policy by size: what it does is said
        message = outcome.message
    code = outcome.code if outcome.code == "FM343" else "FM341"
    return replace(outcome, code=code, message=message, value=word, has_value=True)


def say_units(block: Block, policy: str | None, draft: Draft, keys: tuple[Key, ...]) -> None:
    """Say which units FSDP1 had that was asked for by its version, where only older ones read ``fsdp``."""
    values = bare_values(block.node, keys)
    if not is_one(values) or "auto_wrap_policy" in values or policy not in {"NO_WRAP", "SIZE_BASED_WRAP"}:
        return
    since = TRANSFORMERS["auto_wrap_policy_read"].since
    text = (
        f"Without it transformers {since} and later wrap the layers, under `version: 1` too, whatever `fsdp` "
        f"and `min_num_params` say. To older ones it was {policy}."
    )
    hint = f"Write {policy} to keep the units of an older one; values are the same."
    draft.say("FM358", block.at("auto_wrap_policy"), text, hint)


def say_default_sync(block: Block, draft: Draft, keys: tuple[Key, ...]) -> None:
    """Say that FSDP2 sends no weights; ranks that load one checkpoint, or have one seed, hold the same."""
    text = lost_default_sync(block, keys, default=False)
    if text:
        same = "Ranks that load the same checkpoint or start from the same seed hold the same weights anyhow."
        draft.say("FM340", block.at("sync_module_states"), f"{text} {same}")


def state_type_as_it_ran(value: Any, block: Block) -> Outcome:
    """Write the type of state dicts that FSDP1 saved: before 5.10 the key had no effect.

    From 5.10 on FSDP1 runs only by ``version: 1``; ``Trainer.save_model`` writes weights for FULL alone.
    """
    outcome = keep_state_dict_type(value, block)
    if isinstance(value, int) or str(value).isdigit():
        word = read_state_dict_type(value)
        outcome = Outcome("FM341", f"{shown(value)} is written as {word}.", value=word, has_value=True)
    if value is None or read_state_dict_type(value) == "FULL_STATE_DICT":
        return outcome
    if state_type_in_environment(block) == "SHARDED_STATE_DICT":
        return outcome
    reads = TRANSFORMERS["state_dict_type_read"]
    unread = f"{shown(value)}: transformers before {reads.since} do not read it, and save FULL_STATE_DICT"
    none = "under SHARDED_STATE_DICT `trainer.save_model` writes no weights."
    version = written_key(block.node, "version") if block.node is not None else None
    if block.node is not None and version and read_number(plain_values(block.node)[version]) == 1:
        text = f"{unread}; {reads.versions} read it under FSDP1 too. It stays."
        hint = (
            f"Where the FSDP1 run had transformers {reads.since} or newer there is nothing to do. Write "
            f"FULL_STATE_DICT if an older one ran it: {none}"
        )
        installed = block.settings.transformers()
        if not is_within(installed, reads.since, ""):
            return Outcome("FM358", text, hint, value=outcome.value, has_value=outcome.has_value)
        # Then FSDP1 ran by `version: 1` alone, and read it.
        return replace(outcome, message=f"{text} {installed} is installed here.", hint=hint)
    text = f"{unread}. It becomes FULL_STATE_DICT, as it ran: {none}"
    hint = "Write SHARDED_STATE_DICT to save checkpoints in parts, and see to the final model yourself."
    return Outcome("FM343", text, hint, value="FULL_STATE_DICT", has_value=True)


def refuse_xla(value: Any, block: Block) -> Outcome:
    """Refuse PyTorch/XLA's FSDP, which is another one."""
    del block
    if value is None or not words.read_bool(value, "value"):
        return Outcome("FM340", "Kept: off in both.")
    text = "PyTorch/XLA's FSDP is another one; FSDP2 (`fully_shard`) does not run on it."
    return Outcome("FM350", text, "On TPUs, stay with XLA's own (`xla_fsdp_v2`).")


def former_values(block: Block) -> dict[str, Any]:
    """Return what arguments beside ``fsdp_config`` say that now stand in it."""
    if block.node is block.owner:
        return {}
    beside = plain_values(block.owner)
    given = {new: beside.get(old) for old, new in FORMER.items()}
    return {new: value for new, value in given.items() if is_known(value) or isinstance(value, Reference)}


def take_former(block: Block, draft: Draft, keys: tuple[Key, ...]) -> dict[str, tuple[Any, str]]:
    """Take these arguments out, and return what to write into ``fsdp_config``, each with why."""
    wanted: dict[str, tuple[Any, str]] = {}
    if block.node is block.owner:
        return wanted
    inside = bare_values(block.node, keys)
    beside = plain_values(block.owner)
    for old, new in FORMER.items():
        entry = effective(block.owner).get(old)
        if entry is None:
            continue
        subject = block.beside(old)
        try:
            value = _read(new, beside[old])
        except ConfigError as error:
            draft.say("FM348", subject, str(error), "Correct it, and convert again.")
            continue
        versions = TRANSFORMERS["wrap_arguments"].versions
        if new in inside and value and _read(new, inside[new]) != value:
            text = f"It does not agree with `{block.at(new)}`; transformers {versions} read both."
            draft.say("FM348", subject, text, f"Put it into `{block.at(new)}`, and convert again.")
            continue
        draft.edits.change(owner_of(block.owner, entry), Change(entry, remove=True))
        text = (
            f"It moves into `{block.name}`: only transformers {versions} have it as an argument of its own."
        )
        draft.say("FM341", subject, text)
        if value and new not in inside:
            wanted[new] = (value, f"`{old}`, where every version reads it.")
    return wanted


def _read(name: str, value: Any) -> Any:
    if isinstance(value, Reference) or not is_known(value):
        return value if isinstance(value, Reference) else None
    return words.read_count(value, name) if name == "min_num_params" else list(words.read_names(value, name))


def say_versions(block: Block, items: tuple[str, ...], draft: Draft, keys: tuple[Key, ...]) -> None:
    """Say which versions of transformers do what the outcome says."""
    values = bare_values(
        block.node if block.node is not None else mapping_at(block.owner, "fsdp_config"), keys
    )
    reads, state = TRANSFORMERS["version_read"], TRANSFORMERS["state_dict_type_read"]
    text = f"`version: 2` is read by transformers {reads.versions}; older ones stay with FSDP1."
    if not _writes_sharded(block, values):
        text += (
            f" `state_dict_type` is read by {state.versions}: {reads.since} to {_before(state.since)} save "
            "SHARDED_STATE_DICT instead of FULL_STATE_DICT."
        )
    if str(values.get("cpu_offload")).lower() == "true" and "offload" not in items:
        text += f" So is `cpu_offload`: give `offload` in `fsdp` to versions before {state.since}."
    if (HF_STRATEGIES - {"full_shard"}) & set(items):
        text += (
            f" {TRANSFORMERS['one_is_full_shard'].versions} ran FSDP1 as full_shard, whatever `fsdp` names."
        )
    if block.settings.adds_json:
        since = TRANSFORMERS["json_on_command_line"].since
        text += f" Before {since} `--fsdp_config` takes the name of a file alone, and they stop."
    hint = f"With transformers {state.since} or newer there is nothing to do: it does all that this says."
    installed, code = block.settings.transformers(), "FM358"
    if is_within(installed, state.since, "") and not (HF_STRATEGIES - {"full_shard"}) & set(items):
        text = f"It is for transformers {state.versions}; {installed} is installed here."
        hint, code = "If the run has that too, there is nothing to do.", "FM340"
    if items:
        gone = TRANSFORMERS["words_deprecated"]
        hint += f" {gone.versions} warn that words in `fsdp` will go: `fsdp: true` says the same to them."
    draft.say(code, block.name, text, hint)


def _writes_sharded(block: Block, values: Mapping[str, Any]) -> bool:
    """Tell whether SHARDED_STATE_DICT is what is written, which versions that do not read it save too."""
    is_exported = state_type_in_environment(block) == "SHARDED_STATE_DICT"
    if "state_dict_type" not in values:
        return is_exported
    return (is_one(values) or is_exported) and "SHARD" in str(values["state_dict_type"]).upper()


def refuse_file(fsdp: Any) -> None:
    """Raise where ``fsdp`` names a file."""
    if isinstance(fsdp, str) and fsdp.endswith(_FILES):
        msg = f"`fsdp` is {fsdp!r}, a file: HF Trainer reads none, ms-swift does. Convert that."
        raise ConfigError(msg, field="fsdp")


def emit_fsdp(block: Block, items: tuple[str, ...], draft: Draft, frees: bool | None = None) -> None:
    """Write the words of ``fsdp`` that FSDP2 knows in place of those that it does not."""
    entry = effective(block.owner).get("fsdp")
    subject = block.beside("fsdp")
    if entry is None and _is_given_elsewhere(block, subject, draft, frees):
        return
    if entry is None:
        text = (
            f"{NOT_HERE}, and was not looked at. FSDP2 takes full_shard, shard_grad_op, "
            "auto_wrap and offload there as they are; hybrid_shard and no_shard have to be changed."
        )
        hint = "Convert where it stands, or a command with `--command`."
        draft.say("FM356", subject, text + PRESUMED[frees], hint)
        return
    value = plain_values(block.owner)["fsdp"]
    if isinstance(value, Reference):
        text = (
            f"{value} is not set in this file: kept. FSDP2 knows full_shard, shard_grad_op, auto_wrap, "
            "offload."
        )
        draft.say("FM346", subject, text + PRESUMED[frees])
        return
    if value is True:
        text = (
            "true: nothing but the root was a unit in transformers before 5.10; later ones, and FSDP2, wrap "
            "the layers unless `auto_wrap_policy` is NO_WRAP."
        )
        draft.say("FM358", subject, text, "Values are the same; less memory is used.")
        return
    new = {"hybrid_shard": "full_shard", "hybrid_shard_zero2": "shard_grad_op", "no_shard": "shard_grad_op"}
    after = list(dict.fromkeys(new.get(word, word) for word in items))
    if after == list(items):
        draft.say("FM340", subject, "Kept: under `version: 2` it means the same.")
        return
    text = f"{' '.join(items)}: HF Trainer refuses this strategy under FSDP2; `{' '.join(after)}` stands in."
    written = after if isinstance(value, list) else " ".join(after)
    draft.edits.change(owner_of(block.owner, entry), Change(entry, value=written, has_value=True))
    draft.say("FM341", subject, text)


def _given_elsewhere(block: Block) -> tuple[frozenset[str], str, str]:
    """Return the words that launch lines which name this file give as ``fsdp``, as written, and where.

    No words, where no line is seen, or FSDP2 does not take them as they are.
    """
    given, place = block.settings.words_given(block.settings.file_name) or ("", "")
    items = frozenset(given.replace(",", " ").split())
    return (items, given, place) if items <= _TAKEN else (frozenset(), "", "")


def _is_given_elsewhere(block: Block, subject: str, draft: Draft, frees: bool | None) -> bool:
    """Say what the launch line that names this file gives as ``fsdp``; tell whether one is seen."""
    items, given, place = _given_elsewhere(block)
    if not items:
        return False
    frees_there = "shard_grad_op" not in items
    text = f"{NOT_HERE}: {place} gives `{given}`"
    if frees is None or frees == frees_there:
        draft.say("FM340", subject, f"{text}, which FSDP2 takes as it is.")
    else:
        hint = f"Write `reshard_after_forward: {str(frees_there).lower()}` into this file."
        told = (
            f"FSDP2 goes by `reshard_after_forward: {str(frees).lower()}` of this file, and not by that word."
        )
        draft.say("FM356", subject, f"{text}. {told}", hint)
    return True


def wanted_there(block: Block, items: tuple[str, ...], frees: bool) -> str:
    """Return what is to be written into the file that ``fsdp_config`` names, as its words do not say it.

    Also where that file's own conversion writes it: it may have the key already, with another value.
    """
    wanted = [] if frees else ["`reshard_after_forward: false`"]
    if items and "auto_wrap" not in items and plain_values(block.owner).get("fsdp") is not True:
        wanted.append("`auto_wrap_policy: NO_WRAP`")
    if not wanted:
        return ""
    versions = TRANSFORMERS["state_dict_type_read"].versions
    return (
        f", and write {' and '.join(wanted)} there: transformers {versions} take it from there, whatever "
        "`fsdp` says"
    )


def say_file(block: Block, name: str, items: tuple[str, ...], frees: bool, draft: Draft) -> None:
    """Say of a file that ``fsdp_config`` names that it is to be converted, and what ``fsdp`` means for it."""
    text = f"{name} is another file, which is not converted with this one."
    hint = f"`fsdp-migrate config {name} --from hf`{wanted_there(block, items, frees)}."
    if not name.endswith(_FILES) and "/" not in name:
        text = f"HF Trainer reads a file {name}. If there is none, the script's own code knows the name."
        hint = f"{hint[:-1]}, if it is a file. Otherwise the settings need `version: 2` in that code."
    draft.say_elsewhere(name, block.settings, block.name, text, hint)
    say_former(block, name, draft)


def say_former(block: Block, name: str, draft: Draft) -> None:
    """Say of arguments that 5.0 took out that they belong into the file that ``fsdp_config`` names."""
    for former in FORMER.keys() & set(plain_values(block.owner)):
        versions = TRANSFORMERS["wrap_arguments"].versions
        text = f"It belongs into {name}: only transformers {versions} have it as an argument of its own."
        draft.say("FM356", block.beside(former), text, "Move it there by hand.")


def say_no_words(block: Block, error: str, draft: Draft) -> None:
    """Say of an ``fsdp`` that holds no words of HF Trainer's what it is: ms-swift reads a file there."""
    subject, value = block.beside("fsdp"), str(plain_values(block.owner).get("fsdp"))
    if not value.endswith(_FILES):
        draft.say("FM348", subject, error, "Correct it, and convert again.")
        return
    text = (
        f"{value} is a file, which ms-swift reads and HF Trainer does not. ms-swift runs FSDP2 of it, unless "
        "its `fsdp_config` says `fsdp_version: 1`."
    )
    hint = f"If it does: `fsdp-migrate config {value} --from hf`."
    draft.say_elsewhere(value, block.settings, subject, text, hint)


def add_wanted(block: Block, wanted: Mapping[str, tuple[Any, str]], draft: Draft) -> None:
    """Add keys to ``fsdp_config``, which is there, each with why."""
    assert block.node is not None
    for key, (value, text) in wanted.items():
        draft.add(block.node, key, value, block.at(key), text)


def say_count(
    block: Block,
    items: tuple[str, ...],
    draft: Draft,
    keys: tuple[Key, ...],
    wanted: Mapping[str, tuple[Any, str]],
) -> None:
    """Say what a policy by size does, and what a number that is known only elsewhere needs beside it."""
    say_units_by_size(wanted.get("auto_wrap_policy", ("",))[0], block.at("auto_wrap_policy"), draft)
    values = bare_values(block.node, keys) | former_values(block)
    decides = "auto_wrap" in items and not is_known(values.get("auto_wrap_policy"))
    if isinstance(values.get("min_num_params"), Reference) and decides:
        since = TRANSFORMERS["size_needs_policy"].since
        text = "It is not set in this file, and decides whether modules are wrapped by size."
        hint = f"Unless it is 0, transformers {since} needs `auto_wrap_policy: SIZE_BASED_WRAP` beside it."
        draft.say("FM346", block.at("min_num_params"), text, hint)


def reshard_meant(block: Block, strategy: str | None) -> tuple[bool, str]:
    """Return what a missing ``reshard_after_forward`` means; not every version takes it for that."""
    versions = TRANSFORMERS["missing_reshard_is_false"].versions
    if strategy is not None:
        text = f"{strategy}, in FSDP2's word; transformers {versions} take a missing key for false."
        return frees_after_forward(strategy), text
    fsdp = plain_values(block.owner).get("fsdp")
    items, given, place = _given_elsewhere(block) if fsdp is None else (frozenset[str](), "", "")
    if "shard_grad_op" in items:
        read = TRANSFORMERS["state_dict_type_read"].versions
        return False, f"false, as {place} gives `{given}`: transformers {read} go by this key alone."
    text = f"true, as FULL_SHARD is; transformers {versions} take a missing key for false."
    if fsdp is None or isinstance(fsdp, Reference):
        text += " Write false if `fsdp`, which is not known here, says shard_grad_op."
    return True, text


def _before(version: str) -> str:
    major, _, minor = version.partition(".")
    return f"{major}.{int(minor) - 1}"


def say_mesh(block: Block, strategy: str | None, config: FSDP2Config, draft: Draft) -> None:
    """Say what the strategies become that need a mesh, or none."""
    subject = block.beside("fsdp") if strategy else block.at("reshard_after_forward")
    if config.mesh == "replicate":
        say_no_shard(draft, subject, "No `fsdp` at all, under torchrun")
    elif config.mesh == "hybrid" and block.settings.nodes == 1:
        draft.say("FM341", subject, "HYBRID_SHARD on one node is one shard group: full sharding, the same.")
    elif config.mesh == "hybrid":
        text = (
            "HYBRID_SHARD: HF Trainer takes no mesh from a file, and FSDP2 shards over all ranks of all "
            "nodes."
        )
        hint = (
            "On one node that is the same. Otherwise give "
            "`parallelism_config=ParallelismConfig(dp_replicate_size="
            "<nodes>, dp_shard_size=<ranks of a node>)` to TrainingArguments."
        )
        draft.say("FM355", subject, text, hint)
