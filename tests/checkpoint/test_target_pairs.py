"""Every source in every target: the table in docs/checkpoints.md, held against what happens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.errors import PlanError
from tests.checkpoint import stack_folders
from tests.checkpoint.rank_sources import RankSources, flat_options
from tests.checkpoint.samples import COMPOSER, LIGHTNING, NEWEST, PLAIN, load_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.any_torch


TARGETS = ("torch", "composer", "accelerate", "lightning", "torchtitan", "hf")
DOCUMENT = Path(__file__).parents[2] / "docs" / "checkpoints.md"
OPTIONS = OutputOptions(optimizer_class="AdamW")
SINGLE = (
    "torch",
    "torch 2.15",
    "flattened optimizer",
    "file of torch.save",
    "bare state dict",
    "Composer",
    "Composer file",
    "Accelerate",
    "Lightning",
    "Lightning `.ckpt`",
    "safetensors",
)
# What other stacks leave in a folder, and the kind of run whose model and arguments its flat parameters need.
FOLDERS: dict[str, tuple[Callable[[RankSources, Path], None], str | None]] = {
    "Accelerate, full": (stack_folders.accelerate_full, None),
    "Accelerate, `use_dcp=False`": (stack_folders.accelerate_without_dcp, None),
    "HF Trainer": (stack_folders.hf_trainer, None),
    "HF Trainer, full": (stack_folders.hf_trainer_full, None),
    "HF Trainer, pieces": (stack_folders.hf_trainer_pieces, None),
    "Composer, file per rank": (stack_folders.composer_ranks, None),
    "Composer's `save.py`": (stack_folders.composer_parts, None),
    "file per rank": (stack_folders.rank_files, None),
    "file per rank, flat": (stack_folders.local_files, "flat"),
    "verl": (stack_folders.verl, "mesh"),
    "OLMo": (stack_folders.olmo_new, None),
    "OLMo, full": (stack_folders.olmo_full, None),
    "OLMo, `torch_legacy`": (stack_folders.olmo_legacy, None),
    "OLMo, local": (stack_folders.olmo_local, None),
    "mmengine": (stack_folders.mmengine, None),
    "mmengine, local": (stack_folders.mmengine_local, "flat"),
    "torchtune": (stack_folders.torchtune, None),
    "llama-cookbook": (stack_folders.cookbook, None),
    "LLaMA2-Accessory": (stack_folders.accessory, None),
    "direct-preference-optimization": (stack_folders.dpo, None),
    "fms-fsdp": (stack_folders.fms_fsdp, None),
    "lingua": (stack_folders.lingua, None),
    "litgpt": (stack_folders.litgpt, None),
}
SOURCES = (*SINGLE, *FOLDERS)


@pytest.fixture(scope="module")
def sources(
    rank_sources: RankSources, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, SourceOptions]]:
    """Return one small checkpoint of each kind, all made of genuine FSDP1 ones, and how it is read."""
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
    torch.save(state["model"], folder / "pytorch_model.bin")
    found["bare state dict"] = folder / "pytorch_model.bin"
    for number, (name, (make, _)) in enumerate(FOLDERS.items()):
        found[name] = folder / f"folder{number}"
        found[name].mkdir()
        make(rank_sources, found[name])
    assert found.keys() == set(SOURCES)
    kinds = {name: kind for name, (_, kind) in FOLDERS.items() if kind}
    return {
        name: (path, flat_options(kinds[name]) if name in kinds else SourceOptions())
        for name, path in found.items()
    }


def cell(source: str, to: str) -> str:
    """Return what the document says about a pair."""
    lines = DOCUMENT.read_text().splitlines()
    header = next(line for line in lines if line.startswith("| source"))
    row = next(line for line in lines if line.startswith(f"| {source} |"))
    columns = [column.strip(" `") for column in header.strip("|").split("|")]
    return row.strip("|").split("|")[columns.index(to)].strip()


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_pair(source: str, to: str, sources: dict[str, tuple[Path, SourceOptions]], tmp_path: Path) -> None:
    wanted = cell(source, to)
    path, options = sources[source]
    arguments: dict[str, Any] = {"to": to, "options": options, "output_options": OPTIONS}
    if wanted != "yes":
        with pytest.raises(PlanError) as caught:
            convert_checkpoint(path, tmp_path / "out", **arguments)
        assert {finding.code for finding in caught.value.findings} == {wanted}
        return
    convert_checkpoint(path, tmp_path / "out", **arguments)
    report = verify_checkpoints(inspect_checkpoint(path, options=options), tmp_path / "out")
    assert report.differences == ()
    models = [part for part in inspect_checkpoint(tmp_path / "out").parts if part.kind == "model"]
    assert len(models) == 1
    assert report.tensors > 5


def test_every_source_of_the_document_is_tested() -> None:
    lines = DOCUMENT.read_text().split("## Every source, every target")[1].split("\n\n")[1].splitlines()
    assert [line.strip("|").split("|")[0].strip() for line in lines[2:]] == list(SOURCES)
