"""The norm of clipped gradients that Fabric gives, and what can be done with it."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tests.ranks import run_ranks


pytestmark = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning")


def test_what_fabrics_norm_is_taken_for() -> None:
    """FM423 says nothing of a number that is made of it, and says so of the rest."""
    from tests.frameworks import norms_bodies

    before, after = (run_ranks(norms_bodies.by_fabric, version) for version in (1, 2))
    assert not any(said.endswith("Error") for found in before for said in found.values())
    for found in after:
        raises = {name for name, said in found.items() if said.endswith("Error")}
        assert raises == {"array", "collective", "list", "text"}
        # What the explanation of FM423 says of the two.
        assert (found["number"] == found["whole"]) is (not torch.__version__.startswith("2.7."))
    assert after[0]["whole"] == after[1]["whole"]
