"""Files that are written and looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source.files import find_sources


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source import FileReport


def _only(report: tuple[FileReport, ...]) -> FileReport:
    (found,) = report
    return found


CODE = "from torch.distributed.fsdp import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n"


def write(folder: Path, *names: str, text: str = CODE) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def names(folder: Path, *patterns: str) -> list[str]:
    found = find_sources([folder / pattern for pattern in patterns or (".",)])
    return [path.relative_to(folder).as_posix() for path in found]
