"""Fixtures that several modules of this folder share, made once per session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.checkpoint.rank_sources import RankSources
from tests.checkpoint.s3_service import S3, Between, serve_s3, stand_between, use_s3
from tests.rank_bodies.sources import save_rank_files
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def rank_sources(tmp_path_factory: pytest.TempPathFactory) -> RankSources:
    """Train real FSDP1 models on two ranks, and let each rank save what it has."""
    folder = tmp_path_factory.mktemp("rank-sources")
    return RankSources(folder, run_ranks(save_rank_files, str(folder))[0])


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """Start an S3 service."""
    with serve_s3() as url:
        yield url


@pytest.fixture
def s3(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    """Give an S3 service with one empty bucket."""
    with use_s3(s3_url, monkeypatch, tmp_path) as service:
        yield service


@pytest.fixture
def between(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """Put something between s3fs and the service that can misbehave."""
    with stand_between(s3, monkeypatch) as found:
        yield found
