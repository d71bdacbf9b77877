"""Optimizers of other packages, as far as they are installed: what `prepare_fully_shard` makes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.frameworks import optimizers_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    folder: Path = tmp_path_factory.mktemp("optimizers")
    return run_ranks(optimizers_bodies.compare_all, str(folder))


@pytest.mark.parametrize(("case", "end"), optimizers_bodies.CASES.items())
def test_an_optimizer_trains_or_is_refused_with_the_reason(
    compared: list[dict[str, dict[str, Any]]], case: str, end: str
) -> None:
    for rank in compared:
        check(rank[case], end)


@pytest.mark.gpu
def test_kernels_of_a_gpu_do_the_same(tmp_path: Path) -> None:
    compared = optimizers_bodies.compare_on("cuda", str(tmp_path))
    for case, end in optimizers_bodies.CASES.items():
        check(compared[case], end, num_ranks=1)


def test_on_one_rank_fsdp1_kept_shapes(tmp_path: Path) -> None:
    """What the test for a GPU expects: it has one rank."""
    case = "tests.Sorting"
    (found,) = run_ranks(optimizers_bodies.compare_all, str(tmp_path), {case: "whole"}, world_size=1)
    check(found[case], "whole", num_ranks=1)


def check(found: dict[str, Any], end: str, num_ranks: int = 2) -> None:
    """Hold what was found of an optimizer to what becomes of its kind."""
    if end == "refused":  # before anything is sharded, and not at the first step
        assert found == {"codes": ["FM115"], "is_whole": True}
    elif end == "mesh":  # built after sharding
        assert found["prepared"] == found["by hand"]
        assert found["prepared"][0] > found["prepared"][-1]
    elif end == "alone":
        assert found["codes"] == found["said"] == []
        assert found["prepared"] == found["FSDP1"]
        assert found["loaded"] == found["FSDP1"][2:]
    elif end == "blocks":
        assert found["codes"] == ["FM114"]
        assert found["prepared"] == found["plain"]
        assert found["next"][0] == found["next"][1]
        gathered, loaded, moved = found["errors"]
        assert "by `sharded_state_dict`" in gathered
        assert "only `torch.distributed.checkpoint.load`" in loaded
        assert "Shard the model before the optimizer's first step" in moved
    else:  # what sorts by dimensions: Muon now, and on from a checkpoint what it was under FSDP1
        assert found["codes"] == ["FM114"]
        assert found["prepared"] == pytest.approx(found["plain"], rel=1e-4)
        assert (found["prepared"] != pytest.approx(found["FSDP1"], rel=1e-4)) == (num_ranks > 1)
        assert found["loaded"] == found["FSDP1"][2:]
        assert found["said"] == (["FM460"] if num_ranks > 1 else [])
