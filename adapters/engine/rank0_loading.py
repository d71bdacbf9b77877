"""``cpu_ram_efficient_loading``: rank 0 alone loads, and which models Accelerate's FSDP2 then takes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.nodes import Reference
from fsdp_migrate.adapters.engine.base import (
    Outcome,
    bare,
    bare_values,
    is_known,
    keep_bool,
    plain_values,
    shown,
)
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.shared_keys import class_names, names_transformers_layer
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Block, Draft, Key


_LOADED_WITH_BUFFERS = re.compile(
    r"(?:(?:M|PL)?Bart|Marian|(?:BigBird)?Pegasus|Blenderbot(?:Small)?|LED|Mvp)(?:En|De)coderLayer\Z|EsmLayer\Z"
)
"""Layers of models of transformers with buffers in their state dicts: `final_logits_bias`, `inv_freq`."""
ASKS_FOR_PACKED = re.compile(
    r"^[ \t]*[\"']?(?:quantization_bit[\"']?:[ \t]*4"
    r"|(?:load_in_4bit|use_4bit_quantization)[\"']?:[ \t]*[Tt]rue|adapter[\"']?:[ \t]*[\"']?qlora)\b",
    re.MULTILINE,
)
"""What asks for weights in 4 bits in a file of settings: LLaMA-Factory's, TRL's, Axolotl's."""
_CALLED_PACKED = re.compile(r"qlora|(?<!\d)4[-_ ]?bit|nf4", re.IGNORECASE)
"""What a file's name says of them. `bnb` says nothing: its weights are in 8 bits as well."""
_CALLED_OTHERWISE = re.compile(
    rf"(?<![a-z])(?:non?|not|wo|without)[-_ ]?(?:{_CALLED_PACKED.pattern})", re.IGNORECASE
)
_SENDS = ACCELERATE["sends_no_4bit"].says
_TEARS = ACCELERATE["tears_ties"].says
LOADED_BY_RANK_0 = (
    f"But {ACCELERATE['loads_not_all'].says}, {_TEARS}, and {_SENDS}: write false for such a model"
)


def _bare(block: Block) -> dict[str, Any]:
    return {bare(name): value for name, value in plain_values(block.node).items()} if block.node else {}


def _loads_whole(block: Block) -> bool:
    """Tell whether what is to be wrapped can be of a model of transformers, as far as it stands here."""
    values = _bare(block)
    classes = block.settled(values.get("transformer_layer_cls_to_wrap"))
    if isinstance(classes, Reference):
        return True
    names = class_names(classes)
    if names:
        held = any(map(_LOADED_WITH_BUFFERS.match, names)) or any(map(block.settings.defines, names))
        return not held and names_transformers_layer(",".join(names))
    # By the classes that the model names itself, which is what models of transformers do.
    policy = words.bare_word(values.get("auto_wrap_policy") or "no_wrap")
    is_by_class = policy == "transformer_based_wrap" and not block.settings.lacks_transformers()
    return block.framework != "accelerate" or is_by_class


def torn_tie(block: Block) -> str:
    """Return where a tie of the project's own model is torn if rank 0 loads for all, or nothing."""
    is_read = block.framework in {"accelerate", "hf"} and not _loads_whole(block)
    return block.settings.ties() if is_read else ""


def _maybe_torn(block: Block) -> tuple[str, str]:
    """Say of a tie that is torn where the project's own model is trained, and what to do; or nothing.

    It may as well train a model of transformers, which has the method.
    """
    if not _loads_whole(block):
        return "", ""
    names_none = not class_names(_bare(block).get("transformer_layer_cls_to_wrap"))
    if names_none and (tie := block.settings.ties()):
        return _MAYBE_TORN.format(tie), _IF_TRAINED
    if held := block.settings.holds():
        return _MAYBE_HELD.format(held), _IF_HELD
    return "", ""


_STOPS = ACCELERATE["loads_not_all"].says
_STOPS_TOO = f"{_STOPS[0].upper()}{_STOPS[1:]}. {_TEARS[0].upper()}{_TEARS[1:]}."
_ALONE = "rank 0 alone loads the weights."
_LOADS_NOT_ALL = f"{_ALONE} {_STOPS_TOO}"
SENDS_NONE = (
    f"rank 0 alone loads the weights, but {_SENDS}, which FSDP1 sent: other ranks train on what they have, "
    "or stop at weights that are on the meta device."
)
LOAD_ON_ALL = "Write false for such a model."
_NOT_TORN = (
    "false, so that each rank shards what it has loaded itself: with true Accelerate's FSDP2 trains tied "
    "weights apart, without a word, where the model has no method `tie_weights`: {}."
)
_MAYBE_TORN = (
    "With it Accelerate's FSDP2 trains tied weights apart, without a word, "
    "where the model has no method `tie_weights`: {}."
)
_IF_TRAINED = (
    "If that model is trained, write false, or give it a method `tie_weights()` that ties them. Models of "
    "transformers have the method."
)
_MAYBE_HELD = (
    "With it Accelerate's FSDP2 trains tied weights apart, without a word, "
    "where the model that it is given has no method `tie_weights`: {}, a model of transformers, whose head "
    "may be tied to its embeddings (Gemma, GPT-2, small Llama and Qwen models)."
)
_IF_HELD = (
    "Write false, or give the class `def tie_weights(self)`, which calls that of the model within; unless "
    "nothing is tied there, or that class is not what is trained."
)
_OR_A_METHOD = "For true give the model a method `tie_weights()` that ties them."


def _sends_none(block: Block) -> str | None:
    """Say that none are sent where a file has the weights in 4 bits of bitsandbytes, or is called by that."""
    said = _said_of_packed(block)
    if said is None or block.framework == "axolotl":
        return said
    # The project may train another model by it.
    more = _maybe_torn(block)[0] if _loads_whole(block) else _STOPS_TOO
    return f"{said} {more}".rstrip()


def _said_of_packed(block: Block) -> str | None:
    if _is_packed(block):
        return SENDS_NONE
    name = block.settings.file_name
    is_called = _CALLED_PACKED.search(_CALLED_OTHERWISE.sub("", name)) is not None
    # A name that was copied with the config: of a project that cannot load them it says nothing.
    if block.framework == "accelerate" and is_called and not block.settings.packs_none():
        return f"{SENDS_NONE} The model of `{name}` has such weights, as its name says."
    place = block.settings.packs() if block.framework in {"accelerate", "hf"} else ""
    return f"{SENDS_NONE} A source of this project has such weights: {place}." if place else None


def _is_packed(block: Block) -> bool:
    values = plain_values(block.owner)
    bits = str(values.get("quantization_bit"))  # LLaMA-Factory's
    loads = str(values.get("load_in_4bit")).lower()  # TRL's and Axolotl's
    return block.settings.is_packed or bits == "4" or loads == "true" or values.get("adapter") == "qlora"


def keep_ram_loading(value: Any, block: Block) -> Outcome:
    """Keep a boolean; where it is true, Accelerate's FSDP2 takes fewer models than FSDP1."""
    outcome = keep_bool(value, block)
    if value is None or not words.read_bool(value, "value"):
        return outcome
    if tie := torn_tie(block):
        message = f"{shown(value)}: becomes {_NOT_TORN.format(tie)}"
        return Outcome("FM343", message, _OR_A_METHOD, value=False, has_value=True)
    if said := _sends_none(block):
        return replace(outcome, code="FM343", message=f"{shown(value)}: {said}", hint=LOAD_ON_ALL)
    if block.framework == "axolotl":
        return outcome
    if not _loads_whole(block):
        message = f"{shown(value)}: {_LOADS_NOT_ALL}"
        return replace(outcome, code="FM343", message=message, hint=LOAD_ON_ALL)
    said, hint = _maybe_torn(block)
    if said:
        return replace(outcome, code="FM343", message=f"{shown(value)}: {_ALONE} {said}", hint=hint)
    return replace(outcome, message=f"{outcome.message} {LOADED_BY_RANK_0}.")


def say_ram_loading(block: Block, draft: Draft, keys: tuple[Key, ...], name: str) -> dict[str, bool]:
    """Say the same where nothing stands there, and the launcher takes true; return what is to be added."""
    if "cpu_ram_efficient_loading" in bare_values(block.node, keys):
        return {}
    if tie := torn_tie(block):
        text = f"Without it the launcher takes true. It becomes {_NOT_TORN.format(tie)}"
        draft.say("FM343", block.at(name), text, _OR_A_METHOD)
        return {name: False}
    if said := _sends_none(block):
        draft.say("FM343", block.at(name), f"Without it the launcher takes true: {said}", LOAD_ON_ALL)
    elif not _loads_whole(block):
        text = f"Without it the launcher takes true: {_LOADS_NOT_ALL}"
        draft.say("FM343", block.at(name), text, LOAD_ON_ALL)
    elif (told := _maybe_torn(block))[0]:
        draft.say("FM343", block.at(name), f"Without it the launcher takes true: {_ALONE} {told[0]}", told[1])
    else:
        draft.say("FM340", block.at(name), f"Without it the launcher takes true. {LOADED_BY_RANK_0}.")
    return {}


def broadcasts_from_rank0(block: Block, keys: tuple[Key, ...], *, default: bool) -> bool:
    """Tell whether rank 0 alone loads the weights, and so sends them to all ranks."""
    if torn_tie(block):
        return False  # it is written so
    loads = bare_values(block.node, keys).get("cpu_ram_efficient_loading")
    return words.read_bool(loads, "cpu_ram_efficient_loading") if is_known(loads) else default


def lost_default_sync(block: Block, keys: tuple[Key, ...], *, default: bool) -> str:
    """Say that FSDP2 does not send the weights that FSDP1 sent without being told; nothing where it does."""
    values = bare_values(block.node, keys)
    loads = values.get("cpu_ram_efficient_loading")
    if "sync_module_states" in values or isinstance(loads, Reference):
        return ""
    try:
        if broadcasts_from_rank0(block, keys, default=default):
            return ""
    except ConfigError:  # its own key says so
        return ""
    return (
        "Without it FSDP1 sends rank 0's weights to all ranks. FSDP2 does not, unless "
        "`cpu_ram_efficient_loading` is true; each rank shards what it has loaded itself."
    )
