"""One conversion on several ranks; they talk through a file, where torchrun gives them its store."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from fsdp_migrate.checkpoint_convert import Ranks, convert_checkpoint
from fsdp_migrate.checkpoint_convert.execution import segments
from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter


def convert(source: str, out: str, store: str, options: dict[str, Any], segment_bytes: int) -> dict[str, Any]:
    """Convert on all ranks; return what this rank reports, and what it called `progress` with."""
    segments.SEGMENT_BYTES = segment_bytes
    events: list[tuple[int, int]] = []
    with Ranks(dist.FileStore(store, dist.get_world_size()), dist.get_rank(), dist.get_world_size()) as ranks:
        report = convert_checkpoint(
            source,
            out,
            ranks=ranks,
            progress=lambda event: events.append((event.done_bytes, event.total_bytes)),
            **options,
        )
    return {"report": report.as_dict(), "events": events}


def fail(source: list[str], out: str, store: str, how: str) -> tuple[str, str, bool]:
    """Convert, where rank 1 cannot; return the error of this rank, and whether it speaks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    write = ItemWriter.write

    def stop(self: ItemWriter, item: Any, file: Any) -> None:
        if rank == 1:
            raise KeyboardInterrupt if how == "interrupt" else ZeroDivisionError("by zero")
        write(self, item, file)

    if how != "source":
        ItemWriter.write = stop  # type: ignore[method-assign]
    options: dict[str, Any] = {"world_size": 3 + (rank if how == "options" else 0)}
    ranks = Ranks(dist.FileStore(store, world_size), rank, world_size)
    try:
        with ranks:
            convert_checkpoint(source[rank], out, ranks=ranks, resume=True, **options)
    except BaseException as error:
        return type(error).__name__, str(error), ranks.speaks
    finally:
        ItemWriter.write = write  # type: ignore[method-assign]
    return "", "", ranks.speaks
