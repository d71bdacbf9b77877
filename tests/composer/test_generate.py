"""Hugging Face models generate from shards, as they did from FSDP1's."""

from __future__ import annotations

import pytest

from tests.rank_bodies import composer_generate
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer


def test_generate_gives_the_tokens_of_the_unsharded_model() -> None:
    for found in run_ranks(composer_generate.generate, timeout=180):
        assert found["missing"] == []
        assert found["units"].count("FSDPLlamaDecoderLayer") == 2
        assert found["found"] == [found["expected"]] * 2
        assert len(found["expected"][0]) == 9
        assert found["expected"] != found["untrained"]
