"""What stood in sources that ``rewrite`` has turned already, by the copies that it left beside them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.files import read_source
from fsdp_migrate.source.sharding_words import shards
from fsdp_migrate.text_files import BACKUP


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_SHARD_NOW: Final = ("prepare_fully_shard", "ModelParallelStrategy")


def texts_before(texts: Mapping[Path, str]) -> dict[Path, str]:
    """Return the texts of the first copies of rewritten files, if one of them shards by FSDP2 now.

    What was said of these files is settled; what shards tells of the others as it did before.

    Args:
        texts: The sources of a project as they are now.
    """
    found: dict[Path, str] = {}
    for path in texts:
        copy = path.with_name(f"{path.name}{BACKUP}")
        if copy.is_file():
            with contextlib.suppress(FSDPMigrateError):
                found[path] = read_source(copy)
    turned = (path for path, text in found.items() if shards(text) and "FSDP" in text)
    return found if any(word in texts[path] for path in turned for word in _SHARD_NOW) else {}
