"""Tied weights of a distributed checkpoint are told, and equal ones that nothing ties are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline, SourceOptions
from tests.checkpoint.samples import DATA, GOLDEN, copy_of, save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


def ties(folder: Path) -> list[str]:
    return [found.message for found in inspect_checkpoint(folder).findings if found.code == "FM272"]


@pytest.mark.parametrize("name", GOLDEN)
def test_the_embedding_and_the_head_of_genuine_ones(name: str) -> None:
    assert ties(DATA / name) == ["1 of them: `model.emb.weight` and `model.head.weight`."]


def state(**more: Any) -> dict[str, Any]:
    weights = {"a": torch.arange(6.0).reshape(3, 2), "b": torch.arange(6.0).reshape(3, 2), **more}
    return {"model": weights, "optim": {"state": {}, "param_groups": [{"params": ["a", "b"]}]}}


def test_with_an_optimizer_only_what_it_has_no_state_of(tmp_path: Path) -> None:
    both = state()
    for name in ("a", "b"):
        both["optim"]["state"][name] = {"exp_avg": torch.ones(3, 2)}
    assert ties(save_with_torch(both, tmp_path / "both")) == []
    del both["optim"]["state"]["b"]
    assert ties(save_with_torch(both, tmp_path / "one")) == ["1 of them: `model.a` and `model.b`."]


def test_without_an_optimizer_only_where_few_are_alike(tmp_path: Path) -> None:
    few = {"model": state()["model"]}
    assert len(ties(save_with_torch(few, tmp_path / "few"))) == 1
    layers = {str(n): torch.arange(6.0).reshape(3, 2) for n in range(8)}
    assert ties(save_with_torch({"model": layers}, tmp_path / "layers")) == []


def test_one_bit_less_is_no_tie(tmp_path: Path) -> None:
    other = state()
    other["model"]["b"][2, 1] = 7
    assert ties(save_with_torch({"model": other["model"]}, tmp_path / "other")) == []


def test_what_is_damaged_is_no_tie_and_no_error(tmp_path: Path) -> None:
    source = copy_of(DATA / GOLDEN[0], tmp_path)
    for key in ("model.emb.weight", "model.head.weight"):
        stored = inspect_checkpoint(source).entries[key].chunks[0].stored  # type: ignore[union-attr]
        data = bytearray((source / stored.file).read_bytes())
        data[stored.offset + stored.length - 22 : stored.offset + stored.length] = bytes(22)
        (source / stored.file).write_bytes(data)
    assert ties(source) == []


def test_planning_opens_nothing(tmp_path: Path) -> None:
    """Ties are found by the inspection: a plan is made where the source is gone."""
    both = state(c=torch.ones(2))
    both["optim"] = {"state": {"a": {"exp_avg": torch.ones(3, 2)}}, "param_groups": [{"params": ["a"]}]}
    torch.save(both, tmp_path / "file.pt")
    for source in (save_with_torch(both, tmp_path / "folder"), tmp_path / "file.pt"):
        manifest = inspect_checkpoint(source)
        assert manifest.ties == {"model.b": "model.a"}
        source.rename(tmp_path / "gone")
        plan = plan_conversion(manifest, to="hf")
        assert [entry.key for entry in plan.entries] == ["a", "c"]
        assert [found.subject for found in plan.findings if found.code == "FM264"] == ["model.b"]
        (tmp_path / "gone").rename(source)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_tie_of_the_model_that_the_checkpoint_lacks_is_said(tmp_path: Path, kind: str) -> None:
    """``--model`` ties both: of other values none is left out, as the second name of a tie is."""
    outline = ModelOutline({"a": (3, 2)}, aliases={"b": "a"})
    for is_torn in (True, False):
        weights = {"a": torch.arange(6.0).reshape(3, 2) + 1, "b": torch.arange(6.0).reshape(3, 2) + 1}
        weights["b"][2, 1] += is_torn
        source = tmp_path / f"{kind}-{is_torn}"
        if kind == "folder":
            save_with_torch({"model": weights}, source)
        else:
            torch.save({"model": weights}, source)
        manifest = inspect_checkpoint(source, options=SourceOptions(model=outline))
        said = [found.subject for found in manifest.findings if found.code == "FM273"]
        assert said == (["model.b"] if is_torn else [])
        plan = plan_conversion(manifest, to="hf")
        assert [entry.key for entry in plan.entries] == (["a", "b"] if is_torn else ["a"])
