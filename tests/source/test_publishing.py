"""The step that writes what ``from_pretrained`` reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate.source.checkpoint_outlooks import with_outlooks
from fsdp_migrate.source.publishing import steps_to_publish
from fsdp_migrate.source.surroundings import CheckpointFound


if TYPE_CHECKING:
    from pathlib import Path


NAMES = ("model.embed.weight", "model.norm.weight")


def _model(folder: Path, *, has_weights: bool = True) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma", "architectures": ["G"]}))
    if has_weights:
        save_file({name: torch.ones(2) for name in NAMES}, folder / "model.safetensors")
    return str(folder)


def _checkpoint(path: Path, start: str) -> CheckpointFound:
    state = {f"{start}{name}": torch.ones(2) for name in NAMES} | {f"{start}head.bias": torch.ones(1)}
    torch.save({"model": state, "step": 3}, path)
    return with_outlooks([CheckpointFound(str(path), "full state in one file")])[0]


@pytest.mark.parametrize(
    ("start", "more"),
    [("lm.", r" --rename '^lm\.='"), ("net.lm.", r" --rename '^net\.lm\.='"), ("", "")],
)
def test_the_rename_that_the_models_names_need_stands_in_the_command(
    start: str, more: str, tmp_path: Path
) -> None:
    """FM266 named it after the first conversion, though the names of both lay there before."""
    base, found = _model(tmp_path / "base"), _checkpoint(tmp_path / "step-3.pt", start)
    [step] = steps_to_publish([found], [base])
    assert step.commands == (f"fsdp-migrate convert {found.path} OUT --to hf --hf-config {base}{more}",)
    assert "--dry-run" not in step.text


def test_where_nothing_tells_the_models_names_a_dry_run_comes_first(tmp_path: Path) -> None:
    bare, found = _model(tmp_path / "bare", has_weights=False), _checkpoint(tmp_path / "step-3.pt", "lm.")
    [step] = steps_to_publish([found], [bare])
    assert step.commands == (f"fsdp-migrate convert {found.path} OUT --to hf --hf-config {bare}",)
    assert "`--dry-run` first" in step.text
    # Of several folders that counts whose weights are the checkpoint's.
    [step] = steps_to_publish([found], [bare, base := _model(tmp_path / "base")])
    assert step.commands[0].endswith(rf"--hf-config {base} --rename '^lm\.='")


@pytest.mark.parametrize("is_published", [True, False])
def test_a_checkpoint_of_hf_trainer_is_published_without_a_model_beside_it(
    tmp_path: Path, *, is_published: bool
) -> None:
    """The base is on the hub, or the Trainer has saved what `from_pretrained` reads: no step said so."""
    (tmp_path / "trainer_state.json").write_text("{}")
    if is_published:
        save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    found = CheckpointFound(str(tmp_path), "model and optimizer apart, in one folder")
    [step] = steps_to_publish([found], [])
    if is_published:
        assert step.commands == ()
        assert "`from_pretrained` reads those that lie in it" in step.text
    else:
        assert step.commands == (f"fsdp-migrate convert {tmp_path} OUT --to hf --hf-config DIR",)
        assert "DIR is the folder of the model that was trained from" in step.text
    (tmp_path / "trainer_state.json").unlink()
    assert steps_to_publish([found], []) == []
