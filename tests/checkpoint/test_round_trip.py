"""What a real FSDP1 run saved, converted, and loaded into a real FSDP2 model, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from tests.rank_bodies import conversions
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Assert that two states hold the same bits; optimizer groups may come in another order."""
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key
        else:
            assert found[key] == value, key


@pytest.mark.parametrize(
    ("kind", "options", "world_size"),
    [
        ("plain", {}, 2),
        ("plain", {"world_size": 3}, 3),
        ("mesh", {"world_size": 4}, 2),
        ("compiled", {}, 2),
        ("compiled", {"world_size": 3}, 1),
    ],
)
def test_fsdp2_loads_what_fsdp1_saved(
    kind: str, options: dict[str, Any], world_size: int, tmp_path: Path
) -> None:
    wanted = run_ranks(conversions.save_fsdp1, str(tmp_path / "fsdp1"), kind)[0]
    report = convert_checkpoint(tmp_path / "fsdp1", tmp_path / "fsdp2", **options)
    assert bool(report.plan.renamed) == (kind == "compiled")
    assert verify_checkpoints(tmp_path / "fsdp1", tmp_path / "fsdp2").is_same
    for found in run_ranks(conversions.load_fsdp2, str(tmp_path / "fsdp2"), world_size=world_size):
        assert_same(found, wanted)


def test_fsdp2_loads_the_weights_of_flat_parameters(tmp_path: Path) -> None:
    wanted = run_ranks(conversions.save_fsdp1, str(tmp_path / "fsdp1"), "flat")[0]
    manifest = inspect_checkpoint(tmp_path / "fsdp1")
    assert [(part.kind, part.name) for part in manifest.parts][:2] == [
        ("model", "model"),
        ("optimizer", "optimizer"),
    ]
    tensors = {entry.key: entry for entry in manifest.tensors}
    assert all(tuple(tensors[k].shape) == v.shape for k, v in wanted.items() if k.startswith("model"))
    convert_checkpoint(tmp_path / "fsdp1", tmp_path / "out", world_size=3)
    assert verify_checkpoints(tmp_path / "fsdp1", tmp_path / "out").is_same


@pytest.mark.slow
def test_fsdp2_loads_what_hsdp_saved(tmp_path: Path) -> None:
    wanted = run_ranks(conversions.save_fsdp1, str(tmp_path / "fsdp1"), "hsdp", world_size=4)[0]
    assert inspect_checkpoint(tmp_path / "fsdp1").world_size == 2
    convert_checkpoint(tmp_path / "fsdp1", tmp_path / "fsdp2", world_size=4)
    for found in run_ranks(conversions.load_fsdp2, str(tmp_path / "fsdp2"), world_size=2):
        assert_same(found, wanted)


def test_what_the_user_put_beside_comes_along(tmp_path: Path) -> None:
    run_ranks(conversions.save_fsdp1, str(tmp_path / "fsdp1"), "plain")
    report = convert_checkpoint(tmp_path / "fsdp1", tmp_path / "out", world_size=3)
    (finding,) = [found for found in report.findings if found.code == "FM210"]
    assert finding.subject == "lr_scheduler, progress, seed"
    assert {entry.key for entry in report.plan.entries} >= {"seed", "progress.step", "progress.seen"}
