"""Files that have Accelerate prepare a model, in a project of which another file asks it for FSDP1."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fsdp_migrate.source.python.links import Links


_MAKES = re.compile(r"\bFullyShardedDataParallelPlugin\(")
_PREPARES = re.compile(r"ccelerator\.prepare(_model)?\(")
_ACCELERATOR = re.compile(r"\bAccelerator\(")


def with_accelerate(texts: Mapping[Path, str], links: dict[Path, Links]) -> dict[Path, Links]:
    """Return what each file is told of by the others, with the files whose Accelerator they make.

    A file that makes an Accelerator of its own says by itself whether that shards. Where a file of the
    project speaks of ``fsdp_version``, nothing is told: it may ask for FSDP2.
    """
    makes = {path for path, text in texts.items() if _MAKES.search(text)}
    if not makes or any("fsdp_version" in text for text in texts.values()):
        return links
    prepares = (path for path, text in texts.items() if path not in makes and _PREPARES.search(text))
    told = [path for path in prepares if not _ACCELERATOR.search(texts[path])]
    return links | {
        path: replace(links.get(path, NOTHING), frameworks=frozenset({"accelerate"})) for path in told
    }
