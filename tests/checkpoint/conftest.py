"""Fixtures that several modules of this folder share, made once per session."""

from __future__ import annotations

import pytest

from tests.checkpoint.rank_sources import RankSources
from tests.rank_bodies.sources import save_rank_files
from tests.ranks import run_ranks


@pytest.fixture(scope="session")
def rank_sources(tmp_path_factory: pytest.TempPathFactory) -> RankSources:
    """Train real FSDP1 models on two ranks, and let each rank save what it has."""
    folder = tmp_path_factory.mktemp("rank-sources")
    return RankSources(folder, run_ranks(save_rank_files, str(folder))[0])
