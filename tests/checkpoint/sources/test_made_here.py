"""Outputs of conversions are known by what stands in them, wherever they lie and whatever they are called."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fsdp_migrate.checkpoint_convert import OutputOptions, convert_checkpoint
from fsdp_migrate.checkpoint_convert.sources.made_here import is_made_here
from tests.checkpoint.samples import DATA, PLAIN


if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("torch", {}),
        ("lightning", {}),
        ("torchtitan", {}),
        ("accelerate", {}),
        ("accelerate", {"state_dict_type": "full"}),
        ("hf", {}),
        ("hf", {"max_shard_size": 8}),
    ],
)
def test_what_a_conversion_wrote_is_known(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "step-20.pt")
    output = OutputOptions(**options)
    convert_checkpoint(tmp_path / "step-20.pt", tmp_path / "out", to=target, output_options=output)
    assert is_made_here(tmp_path / "out")
    assert not is_made_here(tmp_path / "step-20.pt")
    if target == "hf":
        (first, *_) = sorted((tmp_path / "out").glob("*.safetensors"))
        assert is_made_here(first)
        # Whoever trains on saves files of another's.
        save_file(load_file(first), first, metadata={"format": "pt"})
        assert not is_made_here(tmp_path / "out")


@pytest.mark.parametrize("torch_version", sorted(path.parent.name for path in DATA.glob("torch-*/plain.dcp")))
def test_what_torch_wrote_is_not_ours_and_its_conversion_is(torch_version: str, tmp_path: Path) -> None:
    source = DATA / torch_version / "plain.dcp"
    assert not is_made_here(source)
    convert_checkpoint(source, tmp_path / "out")
    assert is_made_here(tmp_path / "out")


def test_a_folder_to_which_another_has_saved_is_no_output_any_more(tmp_path: Path) -> None:
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        convert_checkpoint(PLAIN, tmp_path / "both" / name)
    assert is_made_here(tmp_path / "both")
    shutil.copy(PLAIN / ".metadata", tmp_path / "both" / "optimizer_0")
    assert not is_made_here(tmp_path / "both")
    for path in (tmp_path / "none", tmp_path):
        assert not is_made_here(path)
    (tmp_path / "cut.pt").write_bytes(b"PK\x03\x04")
    assert not is_made_here(tmp_path / "cut.pt")
