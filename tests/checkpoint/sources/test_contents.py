"""From what a source holds to its manifest: bare states, several models, what is empty."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from fsdp_migrate.checkpoint_convert import convert_checkpoint, inspect_checkpoint, verify_checkpoints
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.cli import main
from tests.checkpoint.envelopes import (
    BARE,
    MODEL,
    State,
    save,
)
from tests.checkpoint.samples import ALONE, load_with_torch


if TYPE_CHECKING:
    from pathlib import Path


def save_unrecorded(state: State, path: Path) -> None:
    """Save a distributed checkpoint whose metadata does not tell of which names its keys were made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = DefaultSavePlanner(flatten_state_dict=False)
        dcp_save(state, checkpoint_id=path, planner=planner, **ALONE)


def test_what_is_empty_is_told(tmp_path: Path) -> None:
    """In a folder its entry would make torch take it for one of an older torch; files keep it (Lightning)."""
    rest: State = {"callbacks": {}, "loops": {"fit": {"state": {}, "step": 3}}, "hooks": []}
    source = save({"model": MODEL, "optim": BARE, **rest}, tmp_path / "a.pt")
    assert "optim.state" not in inspect_checkpoint(source).entries
    report = convert_checkpoint(source, tmp_path / "out")
    found = [finding.message for finding in report.findings if finding.code == "FM274"]
    assert found == ["`callbacks`, `loops.fit.state`."]
    assert "FM207" not in {finding.code for finding in report.findings}
    loaded = load_with_torch(tmp_path / "out")
    assert (loaded["loops"], loaded["hooks"]) == ({"fit": {"step": 3}}, [])
    assert verify_checkpoints(source, tmp_path / "out").is_same


def test_an_optimizer_that_lost_its_moments_is_told(tmp_path: Path) -> None:
    """As Accelerate's FSDP1 leaves it that was resumed; what has none by nature is no news."""
    model = torch.nn.Linear(2, 2)
    names = [name for name, _ in model.named_parameters()]
    for kind, is_told in ((torch.optim.AdamW, True), (torch.optim.SGD, False)):
        optimizer = kind(model.parameters(), lr=0.1)
        for stepped in (False, True):
            model(torch.ones(2)).sum().backward()
            if stepped:
                optimizer.step()
            own = optimizer.state_dict()
            state = {
                "state": {names[number]: value for number, value in own["state"].items()},
                "param_groups": [{**group, "params": names} for group in own["param_groups"]],
            }
            saved = {"model": model.state_dict(), "optimizer": state}
            folder = tmp_path / f"{kind.__name__}{stepped}"
            torch.save(saved, tmp_path / "a.pt")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp_save(saved, checkpoint_id=folder, **ALONE)
            for source in (folder, tmp_path / "a.pt"):
                codes = {finding.code for finding in inspect_checkpoint(source).findings}
                assert ("FM219" in codes) is (is_told and not stepped), (source, kind)


def test_what_holds_no_tensor_is_told_and_offered_to_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter of which FSDP1's model had nothing by its names: a script was said to go on from it."""
    save_file({}, tmp_path / "adapter_model.safetensors")
    torch.save({"model": {}, "epoch": 3}, tmp_path / "a.pt")
    torch.save({"model": {"w": torch.ones(1)}, "epoch": 3}, tmp_path / "b.pt")
    for name, is_empty in (("adapter_model.safetensors", True), ("a.pt", True), ("b.pt", False)):
        found = [each.code for each in inspect_checkpoint(tmp_path / name).findings]
        assert ("FM228" in found) is is_empty
        main(["inspect", str(tmp_path / name)])
        said = capsys.readouterr().out
        assert ("not one tensor is in it" in said) is is_empty
        assert ("goes on from it as it is" in said) is not is_empty


def test_a_bare_state_whose_paths_were_not_recorded(tmp_path: Path) -> None:
    """`flatten_state_dict=False` records none, and the names of this one begin with words of others."""
    state = {"model.layers.0.weight": torch.ones(3, 4), "lm_head.weight": torch.zeros(5, 3)}
    source = tmp_path / "source"
    save_unrecorded(state, source)
    assert FileSystemReader(source).read_metadata().planner_data is None
    assert [part.name for part in inspect_checkpoint(source).parts] == ["(root)"]
    convert_checkpoint(source, tmp_path / "out", weights_only=True, world_size=2)
    loaded = load_with_torch(tmp_path / "out")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())


def test_a_folder_with_one_state_is_that_state(tmp_path: Path) -> None:
    save({"model": MODEL, "step_count": 2}, tmp_path / "lit_model.pth")
    save({"last_epoch": 1}, tmp_path / "scheduler.pt")
    (tmp_path / "config.json").write_text("{}")
    manifest = inspect_checkpoint(tmp_path)
    assert [part.name for part in manifest.parts] == ["model", "step_count"]
    assert sorted(manifest.extra_files) == ["config.json", "scheduler.pt"]


@pytest.mark.parametrize("form", ["a.pt", "folder"])
def test_the_epochs_of_a_scheduler_stay_numbers(form: str, tmp_path: Path) -> None:
    """MultiStepLR looks a number up, and torch.distributed.checkpoint made text of it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
    source = save({"model": MODEL, "lr_scheduler": scheduler.state_dict()}, tmp_path / form)
    convert_checkpoint(source, tmp_path / "out", to="accelerate")
    loaded = torch.load(tmp_path / "out" / "scheduler.bin", weights_only=True)
    assert loaded["milestones"] == {1: 1, 3: 1}
    scheduler.load_state_dict(loaded)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)


def scheduler_of(kind: str) -> dict[str, object]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    kinds = torch.optim.lr_scheduler
    if kind == "ReduceLROnPlateau":
        return kinds.ReduceLROnPlateau(optimizer).state_dict()
    parts = [kinds.LinearLR(optimizer), kinds.MultiStepLR(optimizer, [1, 3])]
    if kind == "ChainedScheduler":
        return kinds.ChainedScheduler(parts).state_dict()
    return kinds.SequentialLR(optimizer, parts, [2]).state_dict()


@pytest.mark.parametrize("kind", ["SequentialLR", "ChainedScheduler", "ReduceLROnPlateau"])
def test_a_scheduler_of_any_name_is_found_with_those_in_it(kind: str, tmp_path: Path) -> None:
    state = scheduler_of(kind)
    source = save({"model": MODEL, "run": {"sched": state, "seed": 1}}, tmp_path / "a.pt")
    convert_checkpoint(source, tmp_path / "accelerate", to="accelerate")
    assert torch.load(tmp_path / "accelerate" / "scheduler.bin", weights_only=False) == state
    convert_checkpoint(source, tmp_path / "lightning", to="lightning")
    meta = torch.load(tmp_path / "lightning" / "meta.pt", weights_only=False)
    assert meta["lr_schedulers"] == [state]
    assert verify_checkpoints(source, tmp_path / "accelerate").is_same


def test_numbers_that_become_text_in_a_folder_are_told(tmp_path: Path) -> None:
    """torch.distributed.checkpoint has text for keys only; where it has none to make, nothing is said."""
    source = save({"model": MODEL, "best": {3: 0.5, "last": 0.7}}, tmp_path / "a.pt")
    report = convert_checkpoint(source, tmp_path / "out")
    found = [finding.message for finding in report.findings if finding.code == "FM275"]
    assert len(found) == 1
    assert found[0].startswith("`best.3`. ")
    assert load_with_torch(tmp_path / "out")["best"] == {"3": 0.5, "last": 0.7}
    again = convert_checkpoint(tmp_path / "out", tmp_path / "again", world_size=3)
    assert "FM275" not in {finding.code for finding in again.findings}


def _accelerates(folder: Path, groups: list[list[str]], held: list[str], trained: str = "up") -> Path:
    """Write what Accelerate saves of a model of two layers: groups by name, and state of some of them."""
    folder.mkdir()
    shapes = {f"{trained}.weight": (4, 2), f"{trained}.bias": (4,), "down.weight": (2, 4), "down.bias": (2,)}
    save({name: torch.ones(shape) for name, shape in shapes.items()}, folder / "pytorch_model_fsdp.bin")
    moments = {name: {"exp_avg": torch.ones(shapes[name]), "step": torch.tensor(3.0)} for name in held}
    settings = [
        {"lr": 0.1, "weight_decay": 0.1 * number, "params": names} for number, names in enumerate(groups)
    ]
    save({"state": moments, "param_groups": settings}, folder / "optimizer.bin")
    return folder


UP, DOWN = ["up.weight", "up.bias"], ["down.weight", "down.bias"]


@pytest.mark.parametrize(
    ("groups", "held", "code"),
    [
        ([UP, DOWN], DOWN, "FM226"),
        ([UP, DOWN], UP + DOWN, ""),
        ([UP + DOWN, []], UP + DOWN, "FM227"),
        ([[], UP + DOWN], UP + DOWN, "FM227"),
        ([UP + DOWN], UP + DOWN, ""),
        ([["up.weight", "down.weight"], []], ["up.weight", "down.weight"], ""),
        # An optimizer without momentum keeps no state of any.
        ([UP, DOWN], [], ""),
    ],
)
def test_groups_that_a_trainer_holds_otherwise_are_told(
    groups: list[list[str]], held: list[str], code: str, tmp_path: Path
) -> None:
    manifest = inspect_checkpoint(_accelerates(tmp_path / "checkpoint-6", groups, held))
    assert manifest.framework == "accelerate"
    found = {each.code: each for each in manifest.findings if each.code in {"FM226", "FM227"}}
    assert set(found) == ({code} if code else set())
    said = advise_loading(manifest).by_framework or ""
    assert (f"once what {code} says below is done" in said) is bool(code)
    if code == "FM226":
        assert "2 parameters" in found[code].message
        assert "`up.weight`" in found[code].message


def test_what_is_frozen_for_good_is_not_told(tmp_path: Path) -> None:
    """Of a loop that gives its optimizer a base model and adapters; and of other frameworks' own loops."""
    own = ["q.lora_A.weight", "q.lora_A.bias"]
    source = _accelerates(tmp_path / "a", [own, DOWN], own, trained="q.lora_A")
    assert "FM226" not in {found.code for found in inspect_checkpoint(source).findings}
    state = {
        "state": {"up.weight": {"exp_avg": torch.ones(4, 2)}},
        "param_groups": [{"params": [*UP, *DOWN]}],
    }
    save({"model": {"up.weight": torch.ones(4, 2)}, "optimizer": state}, tmp_path / "a.pt")
    assert "FM226" not in {found.code for found in inspect_checkpoint(tmp_path / "a.pt").findings}
