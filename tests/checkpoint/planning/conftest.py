from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.planning.maps import state_of
from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model whose experts `MAP` stacks."""
    return save_with_torch(state_of()[1], tmp_path_factory.mktemp("source") / "dcp")
