"""Metadata that is cut off, or that lies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
)

from fsdp_migrate.errors import CheckpointFormatError
from tests.checkpoint.damage import KEY, refuse
from tests.checkpoint.samples import (
    PLAIN,
    copy_of,
    edit_metadata,
)


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_metadata_that_is_no_pickle(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    (source / ".metadata").write_text("{}")
    refuse(source, tmp_path, "is not a pickle", CheckpointFormatError)


@pytest.mark.parametrize("size", [0, 1, 2, 50, 5000])
def test_metadata_that_was_cut_off(size: int, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    os.truncate(source / ".metadata", size)
    refuse(source, tmp_path, r"\.metadata", CheckpointFormatError)


def _set_path(path: str) -> Callable[[Metadata], None]:
    def edit(metadata: Metadata) -> None:
        metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].relative_path = path

    return edit


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret", "a/../../secret", "C:\\secret", "\\\\host\\secret", "a\0b"]
)
def test_an_entry_that_points_outside(path: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 100_000)
    source = edit_metadata(copy_of(PLAIN, tmp_path), _set_path(path))
    refuse(source, tmp_path, "lies outside the checkpoint", CheckpointFormatError)


def _chunks(metadata: Metadata) -> list[ChunkStorageMetadata]:
    return metadata.state_dict_metadata[KEY].chunks  # type: ignore[union-attr]


def _grow(metadata: Metadata) -> None:
    _chunks(metadata)[0].sizes = torch.Size([8, 6])


def _shrink(metadata: Metadata) -> None:
    _chunks(metadata)[0].sizes = torch.Size([6, 6])


def _drop(metadata: Metadata) -> None:
    _chunks(metadata).pop()
    del metadata.storage_data[MetadataIndex(KEY, torch.Size([7, 0]))]


def _reach_out(metadata: Metadata) -> None:
    _chunks(metadata)[1].sizes = torch.Size([9, 6])


def _repeat(metadata: Metadata) -> None:
    _chunks(metadata).append(_chunks(metadata)[0])


def _flatten(metadata: Metadata) -> None:
    _chunks(metadata)[0].sizes = torch.Size([42])


def _lose_data(metadata: Metadata) -> None:
    del metadata.storage_data[MetadataIndex(KEY, torch.Size([7, 0]))]


def _forget_entry(metadata: Metadata) -> None:
    del metadata.state_dict_metadata[KEY]


def _share_bytes(metadata: Metadata) -> None:
    one, other = list(metadata.storage_data.values())[:2]
    other.offset = one.offset + 8


def _negative(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].offset = -5


def _too_small(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].length = 20


def _transform(metadata: Metadata) -> None:
    metadata.storage_data[MetadataIndex(KEY, torch.Size([0, 0]))].transform_descriptors = ["zstd"]


def _huge(metadata: Metadata) -> None:
    entry = metadata.state_dict_metadata[KEY]
    entry.size = torch.Size([1 << 40, 6])  # type: ignore[union-attr]
    _chunks(metadata)[1].sizes = torch.Size([(1 << 40) - 7, 6])


def _as_value(metadata: Metadata) -> None:
    metadata.state_dict_metadata[KEY] = BytesStorageMetadata()


LIES = [
    (_grow, "overlap"),
    (_shrink, "6 of 78 elements are in no chunk"),
    (_drop, "36 of 78 elements are in no chunk"),
    (_reach_out, "reaches outside the tensor"),
    (_repeat, "is listed twice"),
    (_flatten, "another number of dimensions"),
    (_lose_data, "has no stored data"),
    (_forget_entry, "is no entry"),
    (_share_bytes, "share bytes"),
    (_negative, "its place in"),
    (_too_small, "needs 168 bytes, and its item has 20"),
    (_transform, "transforms"),
    (_huge, "needs .* bytes"),
    (_as_value, "2 items are stored, expected 1"),
]


@pytest.mark.parametrize(("edit", "match"), LIES, ids=lambda value: getattr(value, "__name__", ""))
def test_metadata_that_lies(edit: Callable[[Metadata], None], match: str, tmp_path: Path) -> None:
    source = edit_metadata(copy_of(PLAIN, tmp_path), edit)
    message = refuse(source, tmp_path, match, CheckpointFormatError)
    assert KEY in message or edit is _share_bytes


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    def edit(metadata: Metadata) -> None:
        _grow(metadata)
        metadata.state_dict_metadata["model.head.weight"].size = torch.Size([99, 6])  # type: ignore[union-attr]

    source = edit_metadata(copy_of(PLAIN, tmp_path), edit)
    message = refuse(source, tmp_path, "2 problems", CheckpointFormatError)
    assert "model.head.weight" in message
    assert KEY in message
