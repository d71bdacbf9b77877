"""Keys of DCP that its planner did not record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from tests.checkpoint.samples import (
    PLAIN,
    copy_of,
    edit_metadata,
    rename_keys,
)


if TYPE_CHECKING:
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata


pytestmark = pytest.mark.any_torch


def test_keys_that_the_planner_did_not_record_are_understood(tmp_path: Path) -> None:
    source = rename_keys(copy_of(PLAIN, tmp_path), lambda part: part)

    def forget(metadata: Metadata) -> None:
        metadata.planner_data = None

    manifest = inspect_checkpoint(edit_metadata(source, forget))
    assert [(part.kind, part.name) for part in manifest.parts] == [
        ("model", "model"),
        ("optimizer", "optimizer"),
    ]
    convert_checkpoint(source, tmp_path / "out", world_size=3)
    assert verify_checkpoints(PLAIN, tmp_path / "out").is_same
