"""The hooks in which Lightning's callbacks and modules see the sharded model."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.source.python.lightning_models import is_run_sharded
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs Lightning")


@pytest.mark.parametrize("version", [1, 2])
def test_what_hooks_see(version: int, tmp_path: Path) -> None:
    from tests.frameworks import lightning_bodies

    assert all(map(is_run_sharded, (*lightning_bodies.HOOKS, "configure_optimizers")))
    expected = "1" if version == 1 else "DTensor"
    for seen in run_ranks(lightning_bodies.watch, version, str(tmp_path)):
        copied = seen.pop("copy", "")
        # What the constructor kept is not the module's any more where it makes its optimizers.
        assert seen.pop("kept") == str(version == 1)
        assert ("deepcopy" in copied) is (version == 2)
        # Modules have no hook at the check of their sanity, and callbacks make no optimizers.
        assert len(seen) == 2 * len(lightning_bodies.HOOKS)
        assert seen == dict.fromkeys(seen, expected)


def test_accumulated_gradients_are_fsdp1s_by_the_hook_and_differ_without(tmp_path: Path) -> None:
    """The Trainer enters ``no_sync`` of a model that has one: FSDP1's is reduced once, and so is ours."""
    from tests.frameworks import lightning_bodies

    by_rank = {
        kind: run_ranks(lightning_bodies.accumulate, kind, str(tmp_path))
        for kind in ("fsdp1", "ours", "bare")
    }
    # FSDP1's ranks hold one after another what was flat; of FSDP2's each was given the whole.
    whole = torch.cat([each for held in by_rank["fsdp1"] for each in held])
    ours, bare = (torch.cat(by_rank[kind][0]) for kind in ("ours", "bare"))
    assert torch.equal(ours, whole)
    assert not torch.equal(bare, whole)
    torch.testing.assert_close(bare, whole)


def test_an_offloaded_model_is_clipped_in_the_group_that_has_gloo(tmp_path: Path) -> None:
    """Groups of Lightning's own mesh, of two dimensions, may have NCCL alone (torch 2.7)."""
    from tests.frameworks import lightning_bodies

    for is_of_all_ranks, norm in run_ranks(lightning_bodies.offload, str(tmp_path)):
        assert is_of_all_ranks
        assert norm == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize(("clears", "is_same"), [("between", True), ("before", False)])
def test_steps_of_a_modules_own(clears: str, tmp_path: Path, *, is_same: bool) -> None:
    """FSDP1 added gradients up that a ``zero_grad`` above the forward had cleared; FSDP2 does not."""
    from tests.frameworks import lightning_bodies

    one, two = (
        run_ranks(lightning_bodies.step_by_hand, version, clears, str(tmp_path)) for version in (1, 2)
    )
    assert (one == two) is is_same
    assert [each[:2] for each in one] == [each[:2] for each in two]
    assert two == run_ranks(lightning_bodies.step_by_hand, 2, "between", str(tmp_path))


@pytest.mark.parametrize(("version", "count"), [(1, 4), (2, 2)])
def test_a_state_of_a_modules_own(version: int, count: int, tmp_path: Path) -> None:
    """FSDP1's wrapper takes no notice of a dict that the module within gives; FSDP2's state is that dict."""
    from tests.frameworks import lightning_bodies

    assert run_ranks(lightning_bodies.count_of_state, version, str(tmp_path)) == [count, count]
