"""`inspect`: what it shows and returns."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file

from fsdp_migrate import load_checkpoint
from fsdp_migrate.cli import main
from fsdp_migrate.source.checkpoint_outlooks import with_outlooks
from fsdp_migrate.source.proof_steps import steps_for_checkpoints
from fsdp_migrate.source.surroundings import CheckpointFound
from tests.checkpoint.samples import COMPOSER, NEWEST


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    RunJson = Callable[..., tuple[int, dict[str, Any]]]


def test_inspect_shows_the_parts(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(compiled)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for word in ("model", "optimizer", "float32", "relink", "_orig_mod."):
        assert word in printed.out


def test_inspect_shows_how_a_part_is_divided_and_what_would_change(
    capsys: pytest.CaptureFixture[str], run_json: RunJson
) -> None:
    assert main(["inspect", str(NEWEST), "--all"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for word in (
        "2 ways, 1 whole",
        "2.15 or later",
        "FM208",
        "FM272",
        "would relink it",
        "Converting is still better",
    ):
        assert word in printed
    _, document = run_json("inspect", NEWEST)
    part = document["manifest"]["parts"][0]
    assert (part["ways"], part["whole"], part["chunks"]) == (2, 1, 29)


def test_inspect_says_that_nothing_is_needed(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(clean)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "loads it as it is" in said
    assert "Converting is still better" not in said
    assert "goes on from it under FSDP2" not in said  # no framework's


def test_who_loads_the_shards_of_a_framework_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`load_checkpoint` alone was shown, which a script of Accelerate's does not call."""
    assert main(["convert", str(NEWEST), str(tmp_path / "out"), "--to", "accelerate"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "`Accelerator.load_state` or the HF Trainer goes on from it under FSDP2, by the path as before."
        in said
    )
    # As a run leaves it that died while it saved its optimizer.
    shutil.rmtree(tmp_path / "out" / "optimizer_0")
    assert main(["inspect", str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "There is no optimizer in it: it is weights alone, or what a run left that died" in said
    assert "goes on from it" not in said
    found = with_outlooks([CheckpointFound(str(tmp_path / "out"), "model and optimizer apart")])
    said = " ".join(step.text for step in steps_for_checkpoints(found, [], None))
    assert "There is no optimizer in it" in said
    assert "No conversion is needed" not in said


def test_inspect_says_what_else_is_there_and_who_reads_it(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "step_4"
    shutil.copytree(clean, folder)
    torch.save({"last_epoch": 4}, folder / "scheduler.bin")
    assert main(["inspect", str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 other file: scheduler.bin" in said
    assert "It reads none of the other files named above: what your script needs" in said
    assert "flat parts" not in said
    for rank in range(2):
        torch.save({"opt": {"state": {0: {"exp_avg": torch.zeros(3)}}}}, folder / f"extra_{rank}.pt")
    assert main(["inspect", str(folder)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "an optimizer's state that each rank of FSDP1 saved by itself, where `extra_0.pt`, `extra_1.pt`"
        in said
    )
    assert "files copied" not in said  # nothing is converted


def test_where_nothing_is_converted_nothing_is_left_out(
    clean: Path, compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An average's checkpoint within the folder was "left behind", below "Nothing needs to be converted"."""
    for source, is_said in ((clean, False), (compiled, True)):
        folder = tmp_path / source.name
        shutil.copytree(source, folder)
        (folder / "ema").mkdir()
        (folder / "ema" / "__0_0.distcp").write_bytes(b"of another save")
        assert main(["inspect", str(folder)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("FM212 Other files of the folder do not come along." in said) is is_said
        assert "ema/__0_0.distcp" in said


def test_what_a_script_or_a_framework_loads_as_it_is_need_not_be_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That a conversion "would rewrite it" and "is still better" made people convert it."""
    torch.save({"model": {"w": torch.ones(2)}, "step": 1}, tmp_path / "a.pt")
    full = ["--to", "accelerate", "--state-dict-type", "full"]
    assert main(["convert", str(NEWEST), str(tmp_path / "full"), *full]) == 0
    torch.save({"last_epoch": 4}, tmp_path / "full" / "scheduler.bin")
    torch.save({"_orig_mod.w": torch.ones(2)}, tmp_path / "compiled.pt")
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    (tmp_path / "apart").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "apart" / "model.pt")
    group = {"params": ["w"], "lr": 0.1}
    torch.save(
        {"state": {"w": {"m": torch.ones(2)}}, "param_groups": [group]}, tmp_path / "apart" / "optim.pt"
    )
    said = {}
    for name in ("a.pt", "apart", "full", "a.safetensors", "compiled.pt"):
        capsys.readouterr()
        assert main(["inspect", str(tmp_path / name)]) == 0
        said[name] = " ".join(capsys.readouterr().out.split())
    for name in ("a.pt", "apart", "full", "a.safetensors"):
        assert "Nothing needs to be converted. " in said[name]
        assert "still better" not in said[name]
        assert "What a conversion would do" not in said[name]
    assert "with torch.load or fabric.load goes on from it as it is" in said["a.pt"]
    assert "reads these files with torch.load goes on from it as it is" in said["apart"]
    assert "with load_file or from_pretrained goes on" in said["a.safetensors"]
    assert "OUT --state-dict-type sharded`" in said["full"]
    assert "which `Accelerator.load_state` or the HF Trainer does: with `load_checkpoint` you" in said["full"]
    assert "dcp.load needs it converted: " in said["compiled.pt"]


def test_inspect_says_what_to_type_to_load_it(capsys: pytest.CaptureFixture[str], run_json: RunJson) -> None:
    assert main(["inspect", str(COMPOSER)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"load_checkpoint('{COMPOSER}', model, optimizer, extra={{" in shown
    assert f"Trainer(..., callbacks=[FSDP2Migration()], load_path='{COMPOSER}')" in shown
    assert "All that was saved by a name in `extra` comes back in `.values`" in shown
    _, document = run_json("inspect", NEWEST)
    assert document["loading"]["call"].startswith(f"load_checkpoint('{NEWEST}', model, optimizer")
    assert document["loading"]["trainer"] is None
    assert document["loading"]["better_converted"] == ["the run is started many times from it"]


def test_what_a_name_of_a_file_beside_the_model_gives_back_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That `None` stands for the whole content of `trainer.pt` was on no screen."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    told = {"step": 8, "scheduler": {"last_epoch": 8}}
    torch.save(told, tmp_path / "trainer.pt")
    assert main(["inspect", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"load_checkpoint('{tmp_path}', model, optimizer, extra={{'trainer': None}})" in said
    assert "comes back in `.values` of the report that it returns: `report.values['trainer']`." in said
    report = load_checkpoint(tmp_path, model, optimizer, extra={"trainer": None})
    assert report.values["trainer"] == told
    found = with_outlooks([CheckpointFound(str(tmp_path), "model and optimizer apart, in one folder")])
    said = " ".join(step.text for step in steps_for_checkpoints(found, [], None))
    assert "All that was saved by a name with `None` comes back in `.values` of what that returns." in said
    # What is an object by its name is loaded: there is no value to be named.
    state = {"model": model.state_dict(), "scheduler": {"last_epoch": 8}}
    torch.save(state, tmp_path / "all.pth")
    assert main(["inspect", str(tmp_path / "all.pth")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "extra={'scheduler': scheduler}" in said
    assert "of the report that it returns. An object with a `load_state_dict`" in said
    found = with_outlooks([CheckpointFound(str(tmp_path / "all.pth"), "full state in one file")])
    assert "with `None`" not in " ".join(step.text for step in steps_for_checkpoints(found, [], None))


def test_what_is_shown_is_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A heading above nothing, metadata as data, and "1 more" in place of its name."""
    folder = tmp_path / "accelerate"
    options = ["--to", "accelerate", "--state-dict-type", "sharded", "--weights-only"]
    assert main(["convert", str(NEWEST), str(folder), *options]) == 0
    for number in range(4):
        (folder / f"note{number}.txt").write_text("x")
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    data = len(list(folder.rglob("*.distcp")))
    assert f"{data} data files" in shown
    assert "4 other files: note0.txt, note1.txt, note2.txt, note3.txt\n" in shown
    torch.save({"model": {"w": torch.ones(2)}, "step": 1}, tmp_path / "a.pt")
    assert main(["inspect", str(tmp_path / "a.pt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    headed = [after for line, after in zip(lines, [*lines[1:], ""], strict=True) if line.endswith("say:")]
    assert all(": " in line for line in headed)


@pytest.mark.parametrize("arguments", [[], ["--deep"]])
def test_inspect_as_a_document(clean: Path, run_json: RunJson, arguments: list[str]) -> None:
    code, document = run_json("inspect", clean, *arguments)
    assert code == 0
    assert document["manifest"]["layout"] == "dcp"
    assert document["conversion"]["action"] == "none"
    parts = {part["kind"]: part["tensors"] for part in document["manifest"]["parts"]}
    assert parts["model"] == 6
    assert parts["optimizer"] == 18


def test_inspect_shows_every_column_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", str(COMPOSER)]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for word in ("state.optimizers", "chunks", "divided", "dtypes", "float32"):
        assert word in said


def test_a_command_to_copy_is_quoted(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "my run"
    source.symlink_to(compiled)
    assert main(["inspect", str(source)]) == 0
    assert f"convert '{source}' OUT" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_converted_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flat = {"_fsdp_wrapped_module._flat_param": torch.zeros(4)}
    torch.save(flat, tmp_path / "flat.pt")
    assert main(["inspect", str(tmp_path / "flat.pt")]) == 0
    said = capsys.readouterr().out
    assert said.count("cannot be converted") == 1


def test_scan_names_the_words_by_which_inspect_says_what_is_to_be_converted(
    clean: Path, compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``scan`` spoke of what "needs it", and ``inspect`` never did."""
    unknown = CheckpointFound("b", "a folder of DCP", target="out/b")
    [_, step, start] = steps_for_checkpoints([unknown], [], ".")
    convert, same = step.text.split("`")[3], start.text.split("`")[5]
    for path, words, others in ((compiled, convert, same), (clean, same, convert)):
        assert main(["inspect", str(path)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert (words in said, others in said) == (True, False)
