"""Trainings of PEFT's low-rank matrices alone (LoRA): no norm and no bias is among what they step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.adapters.engine.base import is_known


if TYPE_CHECKING:
    from collections.abc import Mapping


# How Axolotl, TRL, LLaMA-Factory and ms-swift are asked for it.
_ASKS: Final = {
    "adapter": frozenset({"lora", "qlora"}),
    "finetuning_type": frozenset({"lora"}),
    "train_type": frozenset({"lora"}),
    "tuner_type": frozenset({"lora"}),
    "use_peft": frozenset({"true"}),
}
# What else is trained beside them: modules, biases, parameters.
_BESIDE: Final = re.compile(
    r"(?:^|_)(?:bias|modules_to_save|additional_target|trainable_parameters)$|^unfrozen_parameters$"
)
_NOTHING: Final = frozenset({"", "[]", "false", "none", "null"})
# Their weights are decayed by any rule, and they have no bias.
_WHOLE_LAYERS: Final = re.compile(r"(?:\w*embed\w*|lm_head|wte|wpe)")


def trains_low_rank_alone(values: Mapping[str, Any]) -> bool:
    """Tell whether a config asks for LoRA, and has nothing with a norm or a bias trained beside it.

    Example:
        >>> trains_low_rank_alone({"adapter": "lora"}), trains_low_rank_alone({"adapter": None})
        (True, False)
        >>> trains_low_rank_alone({"adapter": "lora", "lora_modules_to_save": ["norm"]})
        False
    """
    asked = any(is_known(values.get(key)) and _text(values[key]) in words for key, words in _ASKS.items())
    return asked and all(_has_neither(value) for key, value in values.items() if _BESIDE.search(key))


def _has_neither(value: Any) -> bool:
    if value is None or (is_known(value) and _text(value) in _NOTHING):
        return True
    if not is_known(value):
        return False
    names = value if isinstance(value, list) else re.split(r"[,\s]+", str(value))
    return all(_WHOLE_LAYERS.fullmatch(str(each)) for each in names)


def _text(value: Any) -> str:
    return str(value).lower()
