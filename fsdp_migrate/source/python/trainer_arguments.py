"""How the arguments of Hugging Face's Trainer are called, where their ``fsdp`` is read."""

from __future__ import annotations

import re
from typing import Final


_ARGUMENTS: Final = re.compile(r"(?:\w+\.)*_?(?:train\w*_)?arg(?:ument)?s")
_OF_ARGUMENTS: Final = re.compile(r"\b(?:HfArgumentParser|\w*TrainingArguments|\w*Trainer)\b")
_PARSED: Final = re.compile(r"['\"]--fsdp['\"]|\bArgumentParser\(")


def are_arguments(owner: str, code: str) -> bool:
    """Tell whether a name is the Trainer's arguments', and not of an own parser with a flag ``--fsdp``.

    ``code``: the source in which it stands.

    Example:
        >>> code = "parser = HfArgumentParser(TrainingArguments)"
        >>> [are_arguments(owner, code) for owner in ("training_args", "config")]
        [True, False]
    """
    if _ARGUMENTS.fullmatch(owner) is None or not _OF_ARGUMENTS.search(code):
        return False
    return _PARSED.search(code) is None or "HfArgumentParser(" in code
