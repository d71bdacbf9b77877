"""A multimodal model of the installed transformers, of which some ranks have text alone."""

from __future__ import annotations

import pytest

from tests.frameworks import multimodal_bodies
from tests.ranks import run_ranks


# tests/sharding/test_skipped_units.py holds the oldest torch to it, with a model of its own.
@pytest.mark.any_torch
@pytest.mark.slow
def test_text_alone_on_some_ranks_trains_as_one_process_or_stops_all() -> None:
    ranks = run_ranks(multimodal_bodies.run)
    for rank in ranks:
        assert rank["losses"][0] == rank["losses"][1]
        assert rank["different"] == []
        assert "vision_tower" in rank["said"][0]
        assert rank["error"] == ranks[0]["error"]
        assert "rank 0: all-gather of `model.vision_tower." in rank["error"]
