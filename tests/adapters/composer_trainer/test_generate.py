"""Hugging Face models generate from shards, as they did from FSDP1's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from tests.adapters.composer_trainer import composer_generate_bodies as composer_generate
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.composer


def test_generate_gives_the_tokens_of_the_unsharded_model(tmp_path: Path) -> None:
    for found in run_ranks(composer_generate.generate, str(tmp_path), timeout=400):
        assert found["missing"] == []
        assert found["units"].count("FSDPLlamaDecoderLayer") == 2
        assert found["found"] == [found["expected"]] * 2
        assert len(found["expected"][0]) == 9
        assert found["expected"] != found["untrained"]
    # The real HuggingFaceModel's names come off, so that `from_pretrained` finds its own.
    convert_checkpoint(tmp_path / "saved", tmp_path / "hf", to="hf")
    stored = load_file(tmp_path / "hf" / "model.safetensors")
    assert stored.keys() == found["weights"].keys()
    assert all(torch.equal(value, found["weights"][name]) for name, value in stored.items())
