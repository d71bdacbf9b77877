"""Whether ``use_orig_params`` is asked for by a value that only the run shows: ``use_orig_params=cfg.x``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Iterable


_ARGUMENT: Final = "use_orig_params"
_VALUE: Final = re.compile(rf"\b{_ARGUMENT}['\"]?\]?[ \t]*[:=][ \t]*(?!False\b)([^,)\n}}]+)")
# In its own words, or as a default: `x: bool = True`, `.get("x", True)`, `field(default=True)`, `x: true`.
_IS_TRUE: Final = (
    r"\b(?:{})['\"]?\]?(?:\s*:\s*[\w.]+(?:\[\w+\])?(?:\s*\|\s*\w+)*)?\s*[:=,]\s*(?:[\w.]*[fF]ield\(\s*(?:default\s*=\s*)?)?"
    r"['\"]?(?:(?i:true|yes|on)\b|1\b)"
    r"|--(?:{})['\"][^)]*\b(?:default\s*=\s*(?:True|1)\b|store_false)"
)
_IS_SET: Final = r"^([ \t]+)[\w.]*\.({})[ \t]*=[ \t]*(?:True|1)[ \t]*$"
_COMMON: Final = frozenset(
    {"False", "None", "and", "args", "bool", "cfg", "config", "else", "get", "getattr", "if", "is", "not"}
    | {"or", "self"}
)


def is_known_at_run_alone(texts: Iterable[str]) -> bool:
    """Tell whether texts ask for parameters of their own names, and none of them shows whether it is so.

    Example:
        >>> asked = "FSDP(net, use_orig_params=cfg.orig)"
        >>> [is_known_at_run_alone([asked, other]) for other in ("", "orig: bool = True", "orig: false")]
        [True, False, True]
    """
    every = list(texts)
    values = [value for text in every for value in _VALUE.findall(text)]
    words = {word for value in values for word in re.findall(r"\b[A-Za-z_]\w*", value)}
    names = "|".join(sorted({_ARGUMENT, *words} - _COMMON))
    is_true = re.compile(_IS_TRUE.format(names, names.replace("_", "[_-]")))
    is_set = re.compile(_IS_SET.format(names), re.MULTILINE)
    return bool(values) and not any(is_true.search(_without_branches(text, is_set)) for text in every)


def _without_branches(text: str, is_set: re.Pattern[str]) -> str:
    """Leave out what a branch alone sets: ``if args.fused:`` and below it ``args.use_orig_params = True``.

    Not where the value itself is asked for: ``if cfg.use_orig_params is None:`` gives a default.
    """
    for found in reversed([*is_set.finditer(text)]):
        above = text[: found.start()].splitlines()
        outer = (line for line in reversed(above) if line.strip() and _depth(line) < len(found[1]))
        line = next(outer, "").strip()
        if re.match(r"(?:el)?if\b", line) and found[2] not in line:
            text = text[: found.start()] + text[found.end() :]
    return text


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
