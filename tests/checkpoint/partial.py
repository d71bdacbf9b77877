"""Conversions that were broken off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.checkpoint_convert.execution import file_writer
from fsdp_migrate.checkpoint_convert.execution.item_writer import ItemWriter
from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


WORK = "out.partial-conversion"


def save_source(tmp_path: Path) -> Path:
    """Save a checkpoint of a few tensors."""
    state = {"model": {"a": torch.arange(24.0).reshape(6, 4), "b": torch.ones(3)}, "step": 3}
    return save_with_torch(state, tmp_path / "source")


def leave_partial(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Interrupt a conversion that may be resumed, after a few items."""
    write, count = ItemWriter.write, iter(range(100))

    def stop(self: ItemWriter, item: Any, file: Any) -> None:
        if next(count) >= 3:
            raise KeyboardInterrupt
        write(self, item, file)

    with monkeypatch.context() as patch:
        patch.setattr(ItemWriter, "write", stop)
        patch.setattr(file_writer, "MARK_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            convert_checkpoint(source, tmp_path / "out", resume=True, **options)
    assert (tmp_path / WORK / "journal-0").exists()
    assert not (tmp_path / "out").exists()
