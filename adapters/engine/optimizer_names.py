"""Arguments of Hugging Face's Trainer beside FSDP's: optimizers that FSDP2 cannot step, precision, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.adapters.engine.base import is_known, plain_values
from fsdp_migrate.adapters.engine.shared_keys import say_mixed_precision


if TYPE_CHECKING:
    from fsdp_migrate.adapters.engine.base import Block, Draft
    from fsdp_migrate.config import FSDP2Config


OF_BITSANDBYTES = frozenset(
    {
        "adamw_bnb_8bit",
        "adamw_8bit",
        "ademamix",
        "ademamix_8bit",
        "lion_32bit",
        "lion_8bit",
        "paged_adamw_32bit",
        "paged_adamw_8bit",
        "paged_ademamix_32bit",
        "paged_ademamix_8bit",
        "paged_lion_32bit",
        "paged_lion_8bit",
        "rmsprop_bnb",
        "rmsprop_bnb_32bit",
        "rmsprop_bnb_8bit",
    }
)
"""Trainer's names for what it takes from bitsandbytes; tests/frameworks holds them to that."""
_KERNELS = (
    "the kernels of bitsandbytes take no DTensors, which parameters are under FSDP2. The first step of the "
    "optimizer fails."
)
_NORMS = (
    "it works in place on norms of rows and columns, and FSDP2 has a part of each on a rank. Its first step "
    "fails; up to torch 2.12 it takes the part for the whole, and says nothing."
)
_HINT = (
    "{instead} trains under FSDP2. The optimizer's state of FSDP1 is not taken over: load the weights alone."
)


def say_optimizer(block: Block, draft: Draft, key: str) -> None:
    """Say of an optimizer that is named beside FSDP's settings that it stops at its first step."""
    name = plain_values(block.owner).get(key)
    said = said_of_optimizer(name) if isinstance(name, str) else None
    if said is not None:
        draft.say("FM343", block.beside(key), f"{name}: {said[0]}", said[1])


def said_of_optimizer(name: str) -> tuple[str, str] | None:
    """Return what FSDP2 cannot do with an optimizer of the Trainer's, by its name, and what can be taken.

    Example:
        >>> said_of_optimizer("adamw_torch") is None, said_of_optimizer("adafactor") is None
        (True, False)
    """
    if name in OF_BITSANDBYTES:
        instead = "`adamw_torch_8bit` (of torchao)" if "8bit" in name else "`adamw_torch`"
        return _KERNELS, _HINT.format(instead=instead)
    if name == "adafactor":
        instead = "`adamw_torch`, or `adamw_torch_8bit` (of torchao) with less memory,"
        return _NORMS, _HINT.format(instead=instead)
    return None


SMOOTHING = "label_smoothing_factor"
SMOOTHED = (
    "the Trainer shifts the labels of a causal language model where it knows the name of its class, and "
    "FSDP2 gives it another, `FSDPLlamaForCausalLM`. Such a model is trained on labels that are not shifted, "
    "without an error."
)
SHIFT_LABELS = (
    "Write 0, and give the Trainer `compute_loss_func=smoothed`, with `def smoothed(outputs, labels, "
    "num_items_in_batch=None): return LabelSmoother(FACTOR)(outputs, labels, shift_labels=True, "
    "num_items_in_batch=num_items_in_batch)`, of transformers.trainer_pt_utils. The Trainer leaves it to "
    "such a function to divide by num_items_in_batch: any other trains with a loss many times as large. "
    "Where LabelSmoother has no such argument, divide the sum over the labels by it. Models of other kinds, "
    "and adapters of PEFT, are trained as they were."
)


def say_smoothing(block: Block, draft: Draft) -> None:
    """Say of labels that are smoothed what the Trainer then does not know of the model."""
    value = plain_values(block.owner).get(SMOOTHING)
    try:
        is_on = is_known(value) and float(str(value)) > 0
    except ValueError:
        is_on = False
    if is_on:
        draft.say("FM343", block.beside(SMOOTHING), f"{value}: {SMOOTHED}", SHIFT_LABELS)


def say_arguments(block: Block, config: FSDP2Config, draft: Draft) -> None:
    """Say what the Trainer's own arguments mean under FSDP2, wherever its settings stand."""
    flag = "bf16" if config.mp_policy.param_dtype == "bfloat16" else "fp16"
    say_mixed_precision(block, config, draft, flag)
    say_optimizer(block, draft, "optim")
    say_smoothing(block, draft)
