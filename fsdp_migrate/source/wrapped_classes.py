"""Classes of modules that write to weights, in files that shard nothing: another wraps their objects."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fsdp_migrate.source.python.links import Links


_CLASS: Final = re.compile(r"^class (\w+)\([^)\n]*Module\)", re.MULTILINE)
_WRITES: Final = re.compile(r"\.parameters\(\).*?\.data\b", re.DOTALL)
_KEEPS: Final = re.compile(r"\bSHARD_GRAD_OP\b|\b_HYBRID_SHARD_ZERO2\b")
_ORIGINAL: Final = re.compile(r"\buse_orig_params\W{1,4}True\b")
_WRAPS: Final = "FullyShardedDataParallel"


def keeps_old_weights(text: str) -> bool:
    """Tell whether FSDP1, as a source makes it, may not have taken up what a part of a model is given.

    Under ``SHARD_GRAD_OP`` it kept units whole that no backward reaches; and without ``use_orig_params`` a
    part of a unit had no parameters of its own.

    Example:
        >>> [keeps_old_weights(f"FSDP(net, {each})") for each in ("use_orig_params=True", "device_id=0")]
        [False, True]
    """
    return keeps_units_whole(text) or _ORIGINAL.search(text) is None


def keeps_units_whole(text: str) -> bool:
    """Tell whether a source names a strategy under which FSDP1 kept each unit whole after its forward.

    Example:
        >>> [keeps_units_whole(f"FSDP(net, {each})") for each in ("FULL_SHARD", "SHARD_GRAD_OP")]
        [False, True]
    """
    return _KEEPS.search(text) is not None


def with_wrapped_classes(texts: Mapping[Path, str], links: dict[Path, Links]) -> dict[Path, Links]:
    """Add the classes of each file that write to weights, whose objects a file that uses FSDP1 makes."""
    wrapping = {path: text for path, text in texts.items() if _WRAPS in text}
    found = dict(links)
    for path, text in texts.items() if wrapping else ():
        if "def forward(" not in text or _WRITES.search(text) is None:
            continue
        others = [other for where, other in wrapping.items() if where != path]
        names = _CLASS.findall(text)
        makers = {name: [other for other in others if _makes(other, name)] for name in names}
        if any(makers.values()):
            made = frozenset(name for name, each in makers.items() if each)
            kept = frozenset(name for name in made if any(map(keeps_old_weights, makers[name])))
            known = found.get(path, NOTHING)
            found[path] = replace(known, wrapped_classes=made, classes_kept_whole=kept)
    return found


def _makes(text: str, name: str) -> bool:
    return name in text and re.search(rf"(?<!class )\b{re.escape(name)}\(", text) is not None
