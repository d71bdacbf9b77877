"""What all texts of a project say together: of models that other packages make, and of kept names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.links import NOTHING, Links


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path


_IMPORTS = re.compile(r"^[ \t]*(?:from|import) (?:composer|d2go|fairseq2|ray|torchtnt)\b", re.MULTILINE)
_NAMES = re.compile(
    r"\b(?P<name>build_fsdp|prepare_fsdp(?:_module)?|to_fsdp1?)\(|parallel_strategy=[\"']fsdp[\"']"
)


def with_texts(texts: Mapping[Path, str], links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files that hold FSDP1 whether another package makes such models, and who keeps names."""
    keeps = any(map(catalog.MAY_KEEP_NAMES.search, texts.values()))
    makes = is_made_by_others(texts.values())
    if not keeps and not makes:
        return links
    told = {path for path, text in texts.items() if catalog.FSDP in text}.union(links)
    return {path: replace(links.get(path, NOTHING), keeps_names=keeps, made_by_others=makes) for path in told}


def is_made_by_others(texts: Collection[str]) -> bool:
    """Tell whether a function of another package makes FSDP1's models, which rewriting does not change.

    Example:
        >>> is_made_by_others(["from fairseq2.nn.fsdp import to_fsdp; model = to_fsdp(net, gang)"])
        True
    """
    found = [match for text in texts if _IMPORTS.search(text) for match in _NAMES.finditer(text)]
    names = {match["name"] for match in found if match["name"]}
    own = {name for name in names if any(f"def {name}(" in text for text in texts)}
    return any(match["name"] not in own for match in found)
