"""Sources that are refused: one clear error, the source untouched, no output left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import (
    convert_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.errors import PlanError
from tests.checkpoint.samples import (
    PLAIN,
    assert_nothing_left,
    contents,
)


if TYPE_CHECKING:
    from pathlib import Path


def refuse(source: Path, tmp_path: Path, match: str, kind: type[Exception]) -> str:
    """Convert and verify a source, and return what the one clear error says."""
    before = contents(source) if source.is_dir() else None
    kept = [path.name for path in tmp_path.iterdir()]
    with pytest.raises(kind, match=match) as caught:
        convert_checkpoint(source, tmp_path / "out", world_size=3)
    if kind is not PlanError:
        with pytest.raises(kind):
            verify_checkpoints(source, PLAIN)
    assert before is None or contents(source) == before
    assert_nothing_left(tmp_path, *kept)
    return str(caught.value)


KEY = "model.blocks.0.up.weight"


class _Foreign:
    pass
