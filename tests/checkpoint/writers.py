"""Files under the names that frameworks' own writers give them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path

    from tests.checkpoint.rank_sources import RankSources


def put(sources: RankSources, folder: Path, pattern: str, kind: str = "plain") -> Path:
    """Give what two ranks saved other names."""
    for rank in range(2):
        name = pattern.format(rank).removesuffix(".0" if ".th" in pattern else "\0")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(sources.folder / kind / f"sharded_rank{rank}.pt", folder / name)
    return folder
