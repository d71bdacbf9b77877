"""A model that only rank 0 has made, the others on the meta device, trains as one that all have made."""

from __future__ import annotations

import pytest
import torch

from tests.rank_bodies.composer_training import Run, train_all
from tests.ranks import run_ranks


pytestmark = pytest.mark.composer


def test_mixed_init_trains_as_real_models_do() -> None:
    runs = [Run(), Run(model="net mixed", fsdp={"sync_module_states": True})]
    for real, mixed in run_ranks(train_all, runs, timeout=180):
        assert "error" not in mixed, mixed["error"]
        assert mixed["losses"] == real["losses"]
        assert len(mixed["losses"]) == 3
        assert mixed["parameters"].keys() == real["parameters"].keys()
        for name, value in real["parameters"].items():
            assert torch.equal(mixed["parameters"][name], value), name
