"""Items that are not what the metadata says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    execute_plan,
    inspect_checkpoint,
    plan_conversion,
)
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.errors import CheckpointError, CheckpointFormatError
from tests.checkpoint.damage import KEY
from tests.checkpoint.samples import PLAIN, assert_nothing_left, copy_of, edit_metadata


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert.formats.dcp_items import TensorBytes
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, TensorEntry


pytestmark = pytest.mark.any_torch


def test_an_item_of_another_shape_is_found_when_it_is_read(tmp_path: Path) -> None:
    def edit(metadata: Metadata) -> None:
        one = MetadataIndex("model.blocks.0.ln.bias", torch.Size([0]))
        other = MetadataIndex("model.blocks.0.up.bias", torch.Size([0]))
        data = metadata.storage_data
        data[one], data[other] = data[other], data[one]

    source = edit_metadata(copy_of(PLAIN, tmp_path), edit)
    with pytest.raises(CheckpointFormatError, match="not of the same save"):
        convert_checkpoint(source, tmp_path / "out", dtype="bf16")
    with pytest.raises(CheckpointFormatError, match="not of the same save"):
        inspect_checkpoint(source, deep=True)
    assert_nothing_left(tmp_path, "copy")


@pytest.mark.parametrize("at", [0, 30, 100, 600])
def test_a_damaged_item_is_an_error(at: int, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    stored = inspect_checkpoint(source).entries[KEY].chunks[0].stored  # type: ignore[union-attr]
    data = bytearray((source / stored.file).read_bytes())
    data[stored.offset + at : stored.offset + stored.length - 4] = b"\xff" * (stored.length - at - 4)
    (source / stored.file).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"blocks\.0\.up\.weight|__0_0|__1_0"):
        convert_checkpoint(source, tmp_path / "out", dtype="bf16")
    assert_nothing_left(tmp_path, "copy")


def test_a_source_that_shrinks_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = copy_of(PLAIN, tmp_path)
    plan = plan_conversion(inspect_checkpoint(source), dtype="bf16")
    locate = TensorSource.locate

    def cut_after_it_was_found(self: TensorSource, entry: TensorEntry, chunk: Chunk) -> TensorBytes:
        found = locate(self, entry, chunk)
        os.truncate(source / "__1_0.distcp", 100)
        return found

    monkeypatch.setattr(TensorSource, "locate", cut_after_it_was_found)
    with pytest.raises(CheckpointFormatError, match="too early"):
        execute_plan(plan, tmp_path / "out")
    assert_nothing_left(tmp_path, "copy")
