"""Every source in every target: the table in docs/checkpoints.md, held against what happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.errors import PlanError
from tests.checkpoint.samples import COMPOSER, LIGHTNING, NEWEST, PLAIN, load_with_torch


TARGETS = ("torch", "composer", "accelerate", "lightning", "torchtitan", "hf")
DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoints.md"
OPTIONS = OutputOptions(optimizer_class="AdamW")
SOURCES = (
    "torch",
    "torch 2.15",
    "flattened optimizer",
    "file of torch.save",
    "Composer",
    "Composer file",
    "Accelerate",
    "Lightning",
    "Lightning `.ckpt`",
    "safetensors",
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one small checkpoint of each kind, all made of genuine FSDP1 ones."""
    folder = tmp_path_factory.mktemp("sources")
    found = {"torch": PLAIN, "torch 2.15": NEWEST, "Composer": COMPOSER}
    found |= {"Lightning": LIGHTNING / "sharded.ckpt", "Lightning `.ckpt`": LIGHTNING / "full.ckpt"}
    for name, to in (
        ("flattened optimizer", "torchtitan"),
        ("Accelerate", "accelerate"),
        ("safetensors", "hf"),
    ):
        found[name] = folder / to
        convert_checkpoint(PLAIN, found[name], to=to)
    state = load_with_torch(PLAIN)
    torch.save(state, folder / "state.pt")
    torch.save(load_with_torch(COMPOSER), folder / "ep0-ba2-rank0.pt")
    found["file of torch.save"] = folder / "state.pt"
    found["Composer file"] = folder / "ep0-ba2-rank0.pt"
    assert found.keys() == set(SOURCES)
    return found


def cell(source: str, to: str) -> str:
    """Return what the document says about a pair."""
    lines = DOCUMENT.read_text().splitlines()
    header = next(line for line in lines if line.startswith("| source"))
    row = next(line for line in lines if line.startswith(f"| {source} |"))
    columns = [column.strip(" `") for column in header.strip("|").split("|")]
    return row.strip("|").split("|")[columns.index(to)].strip()


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_pair(source: str, to: str, sources: dict[str, Path], tmp_path: Path) -> None:
    wanted = cell(source, to)
    arguments: dict[str, Any] = {"to": to, "output_options": OPTIONS}
    if wanted != "yes":
        with pytest.raises(PlanError) as caught:
            convert_checkpoint(sources[source], tmp_path / "out", **arguments)
        assert {finding.code for finding in caught.value.findings} == {wanted}
        return
    convert_checkpoint(sources[source], tmp_path / "out", **arguments)
    report = verify_checkpoints(sources[source], tmp_path / "out")
    assert report.differences == ()
    models = [part for part in inspect_checkpoint(tmp_path / "out").parts if part.kind == "model"]
    assert len(models) == 1
    assert report.tensors > 5
