"""What the configs of several frameworks have in common: keys, and what becomes of them under FSDP2."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Handler,
    Key,
    Outcome,
    bare_values,
    is_known,
    lost,
    obsolete,
    plain_values,
    shown,
    written_key,
)
from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.low_rank import trains_low_rank_alone
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from fsdp_migrate.config import FSDP2Config


WRAP_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICT_TYPES = {
    "full_state_dict": "FULL_STATE_DICT",
    "sharded_state_dict": "SHARDED_STATE_DICT",
    "local_state_dict": "LOCAL_STATE_DICT",
    "1": "FULL_STATE_DICT",
    "2": "LOCAL_STATE_DICT",
    "3": "SHARDED_STATE_DICT",
}


def no_forward_prefetch(framework: str) -> Handler:
    """Return the handler of ``forward_prefetch`` for a framework whose FSDP2 has none."""
    text = (
        f"{framework}'s FSDP2 does not prefetch in forward. Values are the same; communication overlaps less."
    )
    hint = "`set_modules_to_forward_prefetch` on the sharded model does it by hand."
    return lost(text, False, "no", 0, hint=hint)


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


def freed(value: Any, frees: bool) -> Outcome:
    """Return the outcome of a strategy: the boolean of FSDP2, which says whether units are freed."""
    text = (
        f"{shown(value)}: {'every unit but the root is freed' if frees else 'nothing is freed'} after "
        "forward."
    )
    return Outcome("FM341", text, key="reshard_after_forward", value=frees, has_value=True)


def kept_or_freed(value: Any, frees: bool) -> Outcome:
    """Return the outcome of a strategy where the boolean itself may stand."""
    return Outcome("FM340", "Kept: it is FSDP2's own.") if value is frees else freed(value, frees)


def to_reshard(value: Any, block: Block) -> Outcome:
    """Turn a strategy into the boolean of FSDP2; what it says about meshes is done elsewhere."""
    del block
    return kept_or_freed(value, frees_after_forward(strategy_of(value)))


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


def full_or_sharded(value: Any) -> str:
    """Read a kind of checkpoints that is one file or a folder, as Composer and Lightning name it.

    Raises:
        ConfigError: It is neither.
    """
    word = str(value).strip().lower() if value is not None else "full"
    if word not in {"full", "sharded"}:
        near = words.closest(word, ("full", "sharded"))
        msg = f"`value` is {value!r}; expected full or sharded.{near}"
        raise ConfigError(msg, field="state_dict_type")
    return word


def is_empty(block: Block, name: str) -> bool:
    """Tell whether nothing stands at a key, and not what is known only elsewhere."""
    written = written_key(block.node, name) if block.node is not None else None
    return block.node is not None and written is not None and plain_values(block.node)[written] is None


def keep_state_dict_type(value: Any, block: Block) -> Outcome:
    """Keep FULL and SHARDED; LOCAL, which FSDP2 has no more, becomes SHARDED."""
    if value is None and is_empty(block, "state_dict_type"):
        text = "null: FSDP1 takes FULL_STATE_DICT for it, and FSDP2 SHARDED_STATE_DICT. It is written out."
        return Outcome("FM341", text, value="FULL_STATE_DICT", has_value=True)
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


_BY_SIZE = (
    "Accelerate's FSDP2 wraps every module with that many parameters, those of its wrapped children counted "
    "too, where FSDP1 counts only what is left. There are more units; values are the same. But a ModuleList "
    "or ModuleDict of that size, which FSDP1 leaves out, is wrapped too, and stops the run: `fully_shard "
    "does not support containers that do not implement forward`."
)
EVERY_MODEL_HAS = (
    "Each model that is prepared must have every class that is named: else Accelerate stops with `Could not "
    "find the transformer layer class`. For models without a common class write NO_WRAP, which makes each "
    "model one unit, or shard by `prepare_fully_shard`."
)
_BY_CLASS = (
    "Write TRANSFORMER_BASED_WRAP with the layers' class: the same units in both, and no container. "
    f"{EVERY_MODEL_HAS}"
)


def say_units_by_size(policy: object, subject: str, draft: Draft) -> None:
    """Say what a policy by size, which FSDP1's settings only meant, does under Accelerate's FSDP2."""
    if policy == "SIZE_BASED_WRAP":
        draft.say("FM343", subject, f"{policy}: {_BY_SIZE}", _BY_CLASS)


_OF_TRANSFORMERS = re.compile(
    r"(?!(?!SwitchTransformers)\w*Transformer|Encoder|Decoder|Residual|Basic|Self|Cross|Attention|Parallel)"
    r"[A-Z]\w+(?:Layer|Block|Embeddings?|Attention|Stage)\Z"
)
"""Layers of transformers begin with their model's name, those of torch with what they are."""


def names_transformers_layer(names: str) -> bool:
    """Tell whether one of several classes, with commas between, can be a layer of transformers.

    Example:
        >>> names_transformers_layer("LlamaDecoderLayer, A"), names_transformers_layer("TransformerLayer")
        (True, False)
    """
    return any(_OF_TRANSFORMERS.match(name.strip()) for name in names.split(","))


def class_names(value: Any) -> tuple[str, ...]:
    """Return the classes that a value names; none where it means nothing, which its own key says."""
    try:
        return words.read_names(value, "value") if is_known(value) else ()
    except ConfigError:
        return ()


def _meant_policy(word: str, block: Block) -> str:
    """Say which policy one that there is not may be: the nearest word, or what the keys beside it are for."""
    near = words.closest(word, WRAP_POLICIES)
    if near:
        return near
    count = written_key(block.node, "min_num_params") if block.node is not None else None
    if count:
        return f" With `{count}` it is SIZE_BASED_WRAP."
    return " With the layers' class, or a model that names them itself, it is TRANSFORMER_BASED_WRAP."


def ignore_nothing(name: str) -> Outcome:
    """Return the outcome of ignored modules where rank 0 loads for all: FSDP2 shards new parameters."""
    text = f"Kept, and lost: {ACCELERATE['ignores_nothing'].says}, without an error."
    return Outcome("FM343", text, f"Write `{name}: false`; the launcher takes true where nothing is said.")


def keep_wrap_policy(value: Any, block: Block) -> Outcome:
    """Keep the policy's name; a policy by size wraps other modules under Accelerate's FSDP2."""
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    word = words.bare_word(value).upper()
    if word not in WRAP_POLICIES:
        near = _meant_policy(word, block)
        msg = f"`value` is {value!r}; expected one of {', '.join(WRAP_POLICIES)}.{near}"
        raise ConfigError(msg, field="auto_wrap_policy")
    if word == "SIZE_BASED_WRAP":
        return Outcome("FM343", f"{shown(value)}: {_BY_SIZE}", _BY_CLASS)
    text = (
        f"Kept: the same modules are units, and from Accelerate {ACCELERATE['embeddings_apart'].since} on "
        "the embeddings, and the head with the last norm. Values are the same."
    )
    return Outcome("FM341", text)


def keep_classes(value: Any, block: Block) -> Outcome:
    """Keep the classes, as ``A,B``: Accelerate looks for a class with the spaces that stand around a name."""
    del block
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    joined = ",".join(words.read_names(value, "value"))
    if joined == value:
        return Outcome("FM340", "Kept: the same classes are units.")
    return Outcome("FM341", f"Written as {joined}, as Accelerate reads it.", value=joined, has_value=True)


def _decays(block: Block) -> bool | None:
    """Tell whether HF Trainer, or Axolotl that is one, decays parameters that it picks by name.

    None where ``weight_decay`` is not seen: in a file of ``fsdp_config`` alone, or known only elsewhere. Of
    low-rank matrices each is decayed.
    """
    values = plain_values(block.owner)
    if block.framework == "accelerate":
        return False if block.settings.decays_alike() else None
    if block.framework not in {"hf", "axolotl"} or trains_low_rank_alone(values):
        return False
    given = values.get("weight_decay")
    if words.is_nothing(given):
        is_alone = block.node is block.owner and "output_dir" not in values
        return None if is_alone and not block.settings.decays_alike() else False
    try:
        return float(str(given)) != 0
    except ValueError:  # a reference to what is known only elsewhere
        return None


_ONE_GROUP = (
    "In FSDP1's checkpoints the optimizer has one group then, and in the new run two: what is resumed "
    "from them as they are gives a group settings that are not its own, without an error."
)
_GIVE_ONE_GROUP = (
    "To train, and to resume, as before give the Trainer an optimizer with one group of all parameters."
)


def drop_orig_params(value: Any, block: Block) -> Outcome:
    """Take out ``use_orig_params``: FSDP2 always shows the original parameters."""
    off = value is not None and not words.read_bool(value, "value")
    decays = _decays(block) if off else False
    if decays is None:
        text = (
            f"{shown(value)}: where weight decay is chosen by names of parameters, as HF Trainer and TRL do "
            "if `weight_decay` is not 0, norms and biases were decayed too: FSDP1's flat parameters have no "
            f"such names. Under FSDP2 they are not. {_ONE_GROUP} A loop that gives its optimizer all "
            "parameters in one group trains as before."
        )
        return Outcome("FM343", text, _GIVE_ONE_GROUP, remove=True)
    if decays:
        text = (
            f"{shown(value)}: HF Trainer chose by name what `weight_decay` is for, and FSDP1's flat "
            "parameters have no such names: norms and biases were decayed too. Under FSDP2 they are not. "
            f"{_ONE_GROUP}"
        )
        return Outcome("FM343", text, _GIVE_ONE_GROUP, remove=True)
    hint = (
        "Code that counts parameters, or groups them by `ndim`, now sees the original ones." if off else None
    )
    return Outcome("FM342", f"{shown(value)}: FSDP2 always shows the original parameters.", hint, remove=True)


def lost_sync(value: Any, hint: str) -> Outcome:
    """Return the outcome of ``sync_module_states`` where the framework's FSDP2 sends nothing."""
    text = (
        f"{shown(value)}: FSDP2 does not send rank 0's weights to the other ranks unless "
        "`cpu_ram_efficient_loading` is true; each rank shards what it has loaded itself."
    )
    return Outcome("FM343", text, hint, remove=True)


ORIG_PARAMS = Key(
    "use_orig_params", "taken out: obsolete, FSDP2 always shows the original parameters", drop_orig_params
)
LIMIT_ALL_GATHERS = Key(
    "limit_all_gathers",
    "taken out: obsolete, FSDP2 bounds its memory without it",
    obsolete("FSDP2 bounds its memory without it."),
)


def shard_config(block: Block, values: dict[str, Any]) -> dict[str, Any]:
    """Return the FSDP1 arguments of a block with Accelerate's keys, by their bare names."""
    arguments: dict[str, Any] = {}
    # The first that is given: where both stand FSDP1 reads the strategy's own key.
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
    # None without the key: these frameworks hand FSDP1 no prefetch then, whose own default is BACKWARD_PRE.
    prefetch = values.get("backward_prefetch")
    arguments["backward_prefetch"] = prefetch if is_known(prefetch) else None
    policy = words.bare_word(values.get("auto_wrap_policy") or "no_wrap")
    classes, count = values.get("transformer_layer_cls_to_wrap"), values.get("min_num_params")
    if policy == "transformer_based_wrap" and is_known(classes):
        arguments["auto_wrap_policy"] = {"transformer_layer_cls": classes}
    elif policy == "size_based_wrap" and is_known(count):
        arguments["auto_wrap_policy"] = {"min_num_params": count}
    return arguments


CAST_BUFFERS = (
    "cast them above `accelerator.prepare`, or the Trainer, as FSDP1 did: "
    "`for name, buffer in model.named_buffers(): if name.endswith(('_u', '_v')): buffer.data = "
    "buffer.data.to(torch.{})`."
)


AUTOCAST = "`model.forward = accelerator.autocast()(model.forward)`"
"""What puts the autocast around a model in which Accelerate's FSDP1 ran it."""
FLOAT_OUTPUTS = (
    "`model.forward = accelerate.utils.convert_outputs_to_fp32(model.forward); "
    "plugin = accelerator.state.fsdp_plugin; plugin.mixed_precision_policy = dataclasses.replace("
    "plugin.mixed_precision_policy, output_dtype=None)`"
)
"""What leaves a model's outputs in float32, and those of inner units as they are, as under FSDP1.

``output_dtype=torch.float32`` would cast the outputs of each unit.
"""
CAST_ALL_BUFFERS = (
    "`for buffer in filter(torch.is_floating_point, model.buffers()): buffer.data = buffer.data.to(torch.{})`"
)
"""What casts the buffers of a model as FSDP1 did, above the sharding."""
ROUNDED_IN_EVALUATION = (
    "In an evaluation losses are rounded too: where the best model, or an early stop, is chosen by them "
    "(`metric_for_best_model`), two may be equal that were not, and another one is kept."
)
"""What outputs that are cast do to losses that decide."""


def say_mixed_precision(
    block: Block, config: FSDP2Config, draft: Draft, key: str = "mixed_precision"
) -> None:
    """Say how Accelerate's FSDP2 applies mixed precision otherwise than its FSDP1."""
    if config.mp_policy.param_dtype is None:
        return
    dtype = config.mp_policy.param_dtype
    text = (
        f"{dtype}: Accelerate's FSDP2 runs the model without autocast, in which its FSDP1 runs it. It casts "
        f"the inputs of every unit, leaves buffers in their own dtype, and casts outputs to {dtype}, the "
        "loss that a model returns too. Parameters and gradients are cast alike."
    )
    hint = (
        f"To go on as before write {AUTOCAST} above `accelerator.prepare`, or the Trainer's `train()`, where "
        f"it is `trainer.accelerator`. Outputs, the loss too, stay {dtype}; for float32 write below that "
        f"line {FLOAT_OUTPUTS}. For the model's own buffers, such as rotary frequencies, write above both "
        f"{CAST_ALL_BUFFERS.format(dtype)}; left in their own dtype they are more exact. Else norms, softmax "
        f"and losses are computed in {dtype}, those of an evaluation too, and a float32 tensor that meets "
        "weights within the model raises. Where an output meets float32 tensors, that may raise: write "
        "`.float()` on it. `fsdp-migrate explain FM354` has more. A model that `prepare_fully_shard` shards "
        "is cast as under FSDP1."
    )
    draft.say("FM354", block.beside(key), text, hint)
    if place := block.settings.spectral():
        said = f"{dtype}: {ACCELERATE['casts_no_buffers'].says}: {place}."
        draft.say(
            "FM354", block.beside(key), said, f"Where that model is prepared, {CAST_BUFFERS.format(dtype)}"
        )


def say_no_prefetch(
    block: Block, draft: Draft, keys: tuple[Key, ...], title: str, name: str = "backward_prefetch"
) -> None:
    """Say that FSDP2 prefetches where FSDP1 was not told to, and so did not."""
    if "backward_prefetch" in bare_values(block.node, keys):
        return
    text = f"Without it FSDP1 does not prefetch in {title}. FSDP2 always does: one more unit is held in full."
    draft.say("FM343", block.at(name), text)


def say_no_shard(draft: Draft, subject: str, ddp: str) -> None:
    """Say what NO_SHARD becomes where a framework's FSDP2 always shards."""
    text = (
        "NO_SHARD: this FSDP2 cannot keep whole parameters on every rank between steps. It shards them and "
        "frees nothing "
        "after forward, as SHARD_GRAD_OP does: less memory, other communication, the same values."
    )
    draft.say("FM353", subject, text, f"{ddp}, is DistributedDataParallel, which is what NO_SHARD does.")
