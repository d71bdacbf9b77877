"""Which checkpoints need no conversion by what their heads say, and which are exports."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from fsdp_migrate.cli import main
from fsdp_migrate.source.checkpoint_outlooks import Outlook, with_outlooks
from fsdp_migrate.source.proof_steps import steps_for_checkpoints
from fsdp_migrate.source.surroundings import CheckpointFound, find_checkpoints
from tests.checkpoint.samples import DATA


if TYPE_CHECKING:
    from pathlib import Path


DCP = DATA / "torch-2.13.0" / "plain.dcp"
WEIGHTS = {"w.weight": torch.ones(2, 2), "w.bias": torch.ones(2)}
MOMENTS = {"state": {0: {"exp_avg": torch.ones(2, 2)}}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}


def _project(folder: Path) -> Path:
    """Make a run's own states, one file and one folder, and weights that an export wrote last."""
    for name in ("runs/a", "runs/b", "exported"):
        (folder / name).mkdir(parents=True)
    torch.save({"model": WEIGHTS, "optimizer": MOMENTS, "step": 3}, folder / "runs/a/step-3.pt")
    shutil.copytree(DCP, folder / "runs/b/step-7")
    torch.save(WEIGHTS, folder / "exported/base.pt")
    (folder / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
    )
    return folder


def test_no_command_is_printed_for_a_checkpoint_that_needs_no_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scan printed `convert` for each, below a sentence that says that full states need none."""
    monkeypatch.chdir(_project(tmp_path))
    main(["scan", "."])
    said = " ".join(capsys.readouterr().out.split())
    assert "fsdp-migrate convert" not in said
    assert "fsdp-migrate verify" not in said
    assert (
        "No conversion is needed of runs/a/step-3.pt: torch.load in a script that is turned or "
        "fsdp_migrate's `load_checkpoint('runs/a/step-3.pt', model, optimizer, extra={'step': 0})` loads it"
    ) in said
    assert "No conversion is needed of runs/b/step-7: dcp.load, by the names in it, or " in said
    assert "Then start the run as before, from that checkpoint." in said
    assert said.count("fsdp-migrate compare ../before . --checkpoint") == 1


def test_what_an_export_wrote_is_not_what_the_next_run_starts_from(tmp_path: Path) -> None:
    found = with_outlooks(find_checkpoints([_project(tmp_path)]))
    exports = [os.path.relpath(each.path, tmp_path) for each in found if each.is_export]
    assert exports == ["exported/base.pt"]
    commands = [command for step in steps_for_checkpoints(found, [], ".") for command in step.commands]
    assert commands
    assert not any("base.pt" in command for command in commands)


@pytest.mark.parametrize("kind", ["read", "beside", "alone"])
def test_weights_that_a_run_may_start_from_are_no_export(kind: str, tmp_path: Path) -> None:
    """A source names them, or they lie beside the run's states, or there is nothing else."""
    project = _project(tmp_path)
    read = ("train.py:3",) if kind == "read" else ()
    if kind == "beside":
        (project / "exported/base.pt").rename(project / "runs/a/best.pt")
    if kind == "alone":
        shutil.rmtree(project / "runs")
    found = [
        CheckpointFound(each.path, each.layout, read_by=read) for each in find_checkpoints([str(project)])
    ]
    assert not any(each.is_export for each in with_outlooks(found))


def test_checkpoints_that_one_reader_loads_are_named_together() -> None:
    outlook = Outlook(is_needed=False, reader="torch.load", call="load_checkpoint(...)")
    found = [CheckpointFound(name, "full state", outlook=outlook) for name in ("a.pt", "b.pt")]
    step = steps_for_checkpoints(found, [], ".")[1]
    assert step.text == (
        "No conversion is needed of a.pt, b.pt: torch.load or load_checkpoint of fsdp_migrate, as `inspect` "
        "writes it, loads it as it is."
    )


def test_what_surely_needs_it_is_converted_and_what_is_not_known_is_asked_about() -> None:
    """The sentence `only where inspect says so` stands where `inspect` is needed for it."""
    sure = CheckpointFound("a", "a folder of DCP", target="out/a", outlook=Outlook(is_needed=True))
    [_, step, start] = steps_for_checkpoints([sure], [], ".")
    assert step.text.startswith("Convert it, as what reads it under FSDP2 needs it")
    assert step.commands == ("fsdp-migrate convert a out/a", "fsdp-migrate verify a out/a")
    assert start.commands == ("fsdp-migrate compare ../before . --checkpoint a out/a -- COMMAND",)
    unknown = CheckpointFound("b", "a folder of DCP", target="out/b")
    assert steps_for_checkpoints([sure, unknown], [], ".")[1].text.startswith("Only where `inspect`")


def test_a_head_that_is_broken_large_or_packed_is_left_to_inspect(tmp_path: Path) -> None:
    shutil.copytree(DCP, tmp_path / "large")
    os.truncate(tmp_path / "large/.metadata", 33 << 20)
    shutil.copytree(DCP, tmp_path / "broken")
    (tmp_path / "broken/.metadata").write_bytes(b"no pickle")
    torch.save(WEIGHTS, tmp_path / "net.pt.tar")
    found = with_outlooks(find_checkpoints([tmp_path]))
    assert [each.outlook for each in found] == [None] * 3


def _with_files_of_ranks(folder: Path) -> Path:
    """As a script saves them: the model whole, and each rank's optimizer as it is, of flat parameters."""
    folder.mkdir(parents=True)
    torch.save({"up.weight": torch.ones(4), "up.bias": torch.ones(4)}, folder / "model.pt")
    torch.save({"step": 8, "scheduler": {"last_epoch": 8}}, folder / "trainer.pt")
    for rank in range(2):
        flat = {0: {"exp_avg": torch.ones(4), "exp_avg_sq": torch.ones(4), "step": torch.tensor(2.0)}}
        state = {"state": flat, "param_groups": [{"lr": 0.1, "params": [0]}]}
        torch.save(state, folder / f"optimizer_rank{rank}.pt")
    return folder


def test_a_prepared_model_loads_files_of_ranks_that_cannot_be_converted_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``scan`` printed `convert` for it, of which ``inspect`` says that it cannot be converted."""
    monkeypatch.chdir(tmp_path)
    _with_files_of_ranks(tmp_path / "runs" / "step-8")
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
    )
    main(["scan", "."])
    said = " ".join(capsys.readouterr().out.split())
    call = "load_checkpoint('runs/step-8', model, optimizer, extra={'trainer': None})"
    assert f"No conversion is needed of runs/step-8: fsdp_migrate's `{call}` loads it as it is." in said
    assert "fsdp-migrate convert" not in said
    main(["inspect", "runs/step-8"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("Nothing needs to be converted") < said.index("cannot be converted:")
