"""An adapter of PEFT of which one rank's slice was saved is told by its shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.sources.adapter_findings import find_truncated_adapters
from fsdp_migrate.errors import CheckpointNotFoundError, PlanError
from tests.checkpoint.sources import adapter_findings_bodies
from tests.ranks import run_ranks


if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", params=[4, 1])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    run_ranks(adapter_findings_bodies.save, str(folder), request.param)
    return request.param, folder


def _said(path: Path) -> list[str]:
    return [found.message for found in inspect_checkpoint(path).findings if found.code == "FM298"]


def test_whole_adapters_are_whole(saved: tuple[int, Path]) -> None:
    _, folder = saved
    assert _said(folder / "whole.safetensors") == _said(folder / "all.pt") == []


def test_slices_of_rank_0_are_refused(saved: tuple[int, Path], tmp_path: Path) -> None:
    rank, folder = saved
    (said,) = _said(folder / "beside_the_base.pt")
    assert ("2 rows, where" in said) if rank == 4 else ("5 rows, where" in said)
    with pytest.raises(PlanError, match="FM298"):
        convert_checkpoint(folder / "beside_the_base.pt", tmp_path / "out")
    if rank == 4:  # of rank 1 only what it adapts tells
        (said,) = _said(folder / "slices.safetensors")
        assert "2 rows, where `base_model.model.0.lora_B.weight` has 4 columns" in said


def test_shards_that_accelerate_saved_on_rank_0_are_refused(saved: tuple[int, Path]) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"It is an adapter: Accelerate before 1\.15"):
        inspect_checkpoint(saved[1] / "shards.bin")


@pytest.mark.parametrize(
    ("shapes", "broken"),
    [
        ({"q.lora_A.a-b.weight": (2, 8), "q.lora_B.a-b.weight": (6, 4)}, "q.lora_A.a-b.weight"),
        ({"e.lora_embedding_A": (2, 50), "e.lora_embedding_B": (8, 4)}, "e.lora_embedding_A"),
        ({"c.lora_A.weight": (2, 8, 3, 3), "c.lora_B.weight": (6, 4, 1, 1)}, "c.lora_A.weight"),
        # What is whole: GPT-2's layers, 4-bit weights, another library's several ranks in one.
        (
            {"q.lora_A.weight": (4, 8), "q.lora_B.weight": (6, 4), "q.base_layer.weight": (8, 6)},
            None,
        ),
        (
            {
                "q.lora_A.weight": (4, 8),
                "q.lora_B.weight": (6, 4),
                "q.base_layer.weight": (24, 1),
                "q.base_layer.weight.absmax": (1,),
            },
            None,
        ),
        ({"q.lora_A": (8, 8), "q.lora_B": (6, 4)}, None),
        ({"q.lora_A.weight": (4, 8)}, None),
    ],
)
def test_what_is_a_slice(shapes: dict[str, tuple[int, ...]], broken: str | None) -> None:
    assert list(find_truncated_adapters(shapes)) == ([] if broken is None else [broken])
