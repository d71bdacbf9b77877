"""What is left of lists of parameters that were made before a framework shards, by FSDP1 and by FSDP2."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from tests.frameworks import kept_parameters_bodies as bodies
from tests.ranks import run_ranks


ByVersion = tuple[list[bodies.Seen], list[bodies.Seen]]


@pytest.fixture(scope="module")
def by_version() -> ByVersion:
    """What each rank saw with Accelerate: under FSDP1, and under FSDP2."""
    return run_ranks(bodies.by_accelerate, 1), run_ranks(bodies.by_accelerate, 2)


def test_accelerate_exchanges_the_parameters_of_the_optimizer_alone(by_version: ByVersion) -> None:
    one, two = by_version
    assert [(seen["kept"], seen["optimizer"]) for seen in one] == [(True, True)] * 2
    assert [(seen["kept"], seen["optimizer"]) for seen in two] == [(False, True)] * 2
    # What is clipped by such a list is clipped no more, and nothing is raised.
    assert all(seen["clipped"] < 2e-3 for seen in one)
    assert all(seen["clipped"] > 1.0 for seen in two)


def test_accelerates_norm_of_a_part_was_that_of_one_ranks_shards(by_version: ByVersion) -> None:
    one, two = by_version
    # FSDP2 of torch 2.7 sums on gloo, where it should average over the two ranks.
    scale = 2.0 if torch.__version__.startswith("2.7.") else 1.0
    assert [seen["whole"] * scale for seen in one] == pytest.approx([seen["whole"] for seen in two])
    assert two[0]["part"] == two[1]["part"]
    assert all(seen["part"] < two[0]["part"] for seen in one)
    assert sum((seen["part"] * scale) ** 2 for seen in one) == pytest.approx(two[0]["part"] ** 2)
    assert [seen["is_dtensor"] for seen in (*one, *two)] == [False, False, True, True]


def test_accelerate_clips_each_rank_by_itself_once_it_has_forgotten_the_model(by_version: ByVersion) -> None:
    one, two = by_version
    assert [seen["forgotten"] for seen in two] == [seen["whole"] for seen in two]
    assert all(seen["forgotten"] < seen["whole"] for seen in one)
    assert sum(seen["forgotten"] ** 2 for seen in one) == pytest.approx(one[0]["whole"] ** 2)


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning")
@pytest.mark.parametrize("version", [1, 2])
def test_fabric_exchanges_no_parameters(version: int) -> None:
    for seen in run_ranks(bodies.by_fabric, version):
        assert seen == dict.fromkeys(("kept", "optimizer"), version == 1)
