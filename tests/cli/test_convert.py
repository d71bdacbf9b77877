"""`convert`: what it shows, writes and returns."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate import inspect_checkpoint, plan_conversion, verify_checkpoints
from fsdp_migrate.checkpoint_convert import OutputOptions
from fsdp_migrate.cli import main
from fsdp_migrate.cli.options import DType, Link, Target
from tests.checkpoint.samples import PLAIN
from tests.cli.conftest import fingerprint


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]
    RunJson = Callable[..., tuple[int, dict[str, Any]]]


def test_a_report_names_every_entry(tmp_path: Path, run_json: RunJson, capsys: Capture) -> None:
    arguments = [
        "convert",
        PLAIN,
        tmp_path / "out",
        "--to",
        "lightning",
        "--world-size",
        3,
        "--dtype",
        "bf16",
    ]
    _, document = run_json(*arguments)
    report = document["report"]
    assert len(report["cast"]) == 15
    assert len(report["rechunked"]) > 30
    assert "optimizer.param_groups.0.lr" in report["renamed"]
    assert set(report) >= {"rewritten", "split", "synthesised", "left_out", "extra_files", "files"}
    assert main([*map(str, arguments), "--overwrite"]) == 0
    printed = capsys.readouterr().out
    for word in ("divided again", "cast", "With --json every entry is named"):
        assert word in printed


def test_names_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": {"w\x1b]0;owned\x07": torch.ones(2, 2)}, "rng\x1b[2J": 3}, tmp_path / "m.pt")
    for arguments in (["inspect"], ["convert", "--to", "hf", "--dry-run"], ["verify"]):
        main([arguments[0], str(tmp_path / "m.pt"), *arguments[1:]])
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "\x07" not in printed
    main(["verify", str(tmp_path / "none\x1b[2J")])
    assert "\x1b" not in capsys.readouterr().err


def test_convert_relinks_what_only_needs_names(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fingerprint(compiled)
    assert main(["convert", str(compiled), str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "relink" in printed.out
    assert fingerprint(compiled) == before
    keys = inspect_checkpoint(tmp_path / "out").entries
    assert "model.0.linear.weight" in keys
    assert not [key for key in keys if "_orig_mod" in key]


def test_convert_as_a_document(compiled: Path, tmp_path: Path, run_json: RunJson) -> None:
    code, document = run_json("convert", compiled, tmp_path / "out")
    assert code == 0
    assert document["dry_run"] is False
    report = document["report"]
    assert report["action"] == "relink"
    assert report["renamed"]["model._orig_mod.2.bias"] == "model.2.bias"
    assert report["bytes_linked"] > 0


def test_convert_divides_casts_and_leaves_out(clean: Path, tmp_path: Path, run_json: RunJson) -> None:
    out = tmp_path / "out"
    code, document = run_json(
        "convert", clean, out, "--world-size", 3, "--dtype", "bf16", "--weights-only", "--link", "copy"
    )
    assert code == 0
    assert document["report"]["action"] == "rewrite"
    manifest = inspect_checkpoint(out)
    assert {entry.dtype for entry in manifest.tensors} == {"bfloat16"}
    assert {part.kind for part in manifest.parts} == {"model"}
    assert manifest.world_size == 3


def test_convert_casts_the_optimizer_only_if_asked(clean: Path, tmp_path: Path, run_json: RunJson) -> None:
    run_json("convert", clean, tmp_path / "a", "--dtype", "bf16")
    run_json("convert", clean, tmp_path / "b", "--optimizer-dtype", "bf16")
    moment = "optimizer.state.2.weight.exp_avg"
    dtypes = {
        name: {entry.key: entry.dtype for entry in inspect_checkpoint(tmp_path / name).tensors}
        for name in "ab"
    }
    assert dtypes["a"]["model.2.weight"] == dtypes["b"][moment] == "bfloat16"
    assert dtypes["b"]["model.2.weight"] == dtypes["a"][moment] == "float32"


def test_a_dry_run_writes_nothing(
    compiled: Path, tmp_path: Path, run_json: RunJson, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, document = run_json("convert", compiled, out, "--dry-run")
    assert (code, document["dry_run"], document["plan"]["action"]) == (0, True, "relink")
    assert main(["convert", str(compiled), str(out), "--dry-run"]) == 0
    assert "Nothing was written" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_stops_where_the_real_one_would(
    clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    assert main(["convert", str(clean), str(out)]) == 0
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    places: list[tuple[Path, list[str]]]
    places = [(out, []), (mine, []), (mine, ["--overwrite"]), (clean, []), (clean / "in", [])]
    for place, more in places:
        said = []
        for how in ([], ["--dry-run"]):
            capsys.readouterr()
            assert main(["convert", str(clean), str(place), *more, *how]) == 1
            said.append(capsys.readouterr().err)
        assert said[0] == said[1]
    for word in ("--overwrite", "--resume"):
        assert main(["convert", str(clean), str(out), word, "--dry-run"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


def test_without_an_output_convert_says_whether_one_is_needed(
    clean: Path, compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(clean)]) == 0
    assert "loads it as it is" in capsys.readouterr().out
    assert main(["convert", str(compiled)]) == 1
    assert "relink" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--dry-run"]])
def test_strict_refuses_changes_with_3(
    prefixed: Path, tmp_path: Path, run_json: RunJson, arguments: list[str]
) -> None:
    out = tmp_path / "out"
    code, document = run_json("convert", prefixed, out, "--strict", *arguments)
    assert code == 3
    assert document["error"]["type"] == "FindingsError"
    assert [finding["fidelity"] for finding in document["error"]["findings"]] == ["changed"]
    assert list(tmp_path.iterdir()) == []
    assert run_json("convert", prefixed, out)[0] == 0


def test_an_existing_output_is_kept_unless_told_otherwise(
    clean: Path, tmp_path: Path, run_json: RunJson
) -> None:
    out = tmp_path / "out"
    assert run_json("convert", clean, out, "--world-size", 4)[0] == 0
    before = fingerprint(out)
    code, document = run_json("convert", clean, out)
    assert (code, document["error"]["type"]) == (1, "OutputExistsError")
    assert fingerprint(out) == before
    assert run_json("convert", clean, out, "--overwrite")[0] == 0
    assert verify_checkpoints(clean, out).is_same
    assert fingerprint(out) != before


def test_a_target_with_its_options(clean: Path, tmp_path: Path, run_json: RunJson) -> None:
    code, document = run_json("convert", clean, tmp_path / "out", "--to", "hf", "--max-shard-size", "64B")
    assert (code, document["report"]["framework"]) == (0, "hf")
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()
    code, document = run_json("convert", clean, tmp_path / "no", "--to", "composer")
    assert (code, document["error"]["type"]) == (1, "PlanError")
    code, document = run_json("convert", clean, "--dry-run", "--to", "composer", "--optimizer-class", "AdamW")
    assert any(entry.startswith("state.optimizers.AdamW") for entry in document["plan"]["renamed"].values())


@pytest.mark.parametrize("to", list(Target))
@pytest.mark.parametrize("link", list(Link))
@pytest.mark.parametrize("dtype", list(DType))
def test_the_library_knows_every_word_of_the_command(
    clean: Path, to: Target, link: Link, dtype: DType
) -> None:
    wanted: dict[str, Any] = {"to": to.value, "link": link.value, "dtype": dtype.value}
    options = OutputOptions(optimizer_class="AdamW")
    plan_conversion(inspect_checkpoint(clean), output_options=options, **wanted)


def test_findings_say_what_their_code_means_and_what_was_left_out_for_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(PLAIN), str(tmp_path / "out"), "--to", "hf", "--all"]) == 0
    said = capsys.readouterr().out
    assert "files of safetensors hold the tensors of a model" in said
    assert "FM207" not in said
    assert "see FM257" in said
    assert (
        said.count("optimizer") == 1
    )  # what was left out is named there, and not in the list of changes too
    assert said.index("FM257") < said.index("FM213")
    assert main(["convert", str(PLAIN), str(tmp_path / "weights"), "--weights-only", "--all"]) == 0
    assert "FM207" in capsys.readouterr().out


@pytest.mark.parametrize(("other", "is_shown"), [(None, False), ("ema", True), ("notes.txt", True)])
def test_what_every_export_is_without_needs_no_action(
    other: str | None, is_shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The optimizer and the state of a run were a `changed` finding each, and "left out" read like a loss."""
    source = tmp_path / "step-8"
    source.mkdir()
    weights = {"up.weight": torch.ones(2, 2), "up.bias": torch.ones(2)}
    group = {"lr": 0.1, "params": [*weights]}
    moments = {name: {"exp_avg": value, "exp_avg_sq": value + 1} for name, value in weights.items()}
    torch.save(weights, source / "pytorch_model_fsdp.bin")
    torch.save({"state": moments, "param_groups": [group]}, source / "optimizer.bin")
    torch.save({"last_epoch": 8}, source / "scheduler.bin")
    (source / "random_states_0.pkl").write_bytes(b"x")
    (source / "config.json").write_text("{}")
    (source / "vocab.txt").write_text("a")
    if other == "notes.txt":
        (source / other).write_text("a")
    elif other:
        state = {"model": weights, "optimizer": {"state": moments, "param_groups": [group]}}
        torch.save({**state, other: [torch.ones(2)], "rng": torch.get_rng_state()}, tmp_path / "all.pt")
        source = tmp_path / "all.pt"
    asked = ["convert", str(source), str(tmp_path / "out"), "--to", "hf", "--dry-run"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert ("changed     FM2" in said and ("`ema`" in said or "`notes.txt`" in said)) is is_shown
    assert "`scheduler.bin`" not in said
    assert "`optimizer`" not in said
    assert main([*asked, "--all"]) == 0
    said = capsys.readouterr().out
    assert "`optimizer`" in said
    assert ("`scheduler.bin`" in said) is (other != "ema")


@pytest.mark.parametrize(
    "asked",
    [
        [],
        ["--to", "hf"],
        ["--dtype", "bf16", "--optimizer-dtype", "bf16", "--rename", "^=a b.", "--rename", "^a b=x"],
        ["--weights-only", "--dtype", "fp16"],
    ],
)
def test_the_command_that_compares_is_shown_and_finds_them_the_same(
    asked: list[str], compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(compiled), str(tmp_path / "my out"), *asked]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("To compare them: "))
    program, *arguments = shlex.split(line.removeprefix("To compare them: "))
    assert program == "fsdp-migrate"
    assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("spelling", "short"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")]
)
def test_dtypes_by_the_names_of_torch(clean: Path, run_json: RunJson, spelling: str, short: str) -> None:
    plans = [run_json("convert", clean, "--dry-run", "--dtype", word) for word in (spelling, short)]
    assert plans[0] == plans[1]


def test_what_was_finished_is_not_said_to_be_converted_again(
    compiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["convert", str(compiled), str(tmp_path / "out"), "--world-size", "3"]
    assert main(arguments) == 0
    assert "Converted" in capsys.readouterr().out
    assert main([*arguments, "--resume"]) == 0
    shown = capsys.readouterr().out
    assert "All of it was there already" in shown
    assert "Converted" not in shown


@pytest.mark.parametrize("form", ["file", "folder"])
def test_who_converts_a_full_file_is_told_that_its_reader_needs_no_output(
    form: str, clean: Path, tmp_path: Path, capsys: Capture
) -> None:
    source = clean
    if form == "file":
        source = tmp_path / "policy_40.pt"
        torch.save({"up.weight": torch.ones(2, 2)}, source)
    assert main(["convert", str(source), str(tmp_path / "out")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    is_told = "The output is a folder, which torch.load does not open." in said
    assert is_told is (form == "file")


def test_names_beside_the_model_that_lose_their_prefix_have_a_file_for_fabric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, name in (("old", "_forward_module._fsdp_wrapped_module.up.weight"), ("new", "up.weight")):
        state = {"model": {"up.weight": torch.ones(4, 2)}, "ema": {name: torch.ones(4, 2)}, "epoch": 1}
        torch.save(state, tmp_path / f"{kind}.pt")
        assert main(["convert", str(tmp_path / f"{kind}.pt"), str(tmp_path / kind)]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("In it lies old.pt, whole" in said) is (kind == "old")
        assert ("it reads that file as before" in said) is (kind == "new")
    beside = torch.load(tmp_path / "old" / "old.pt")
    assert list(beside["ema"]) == ["_forward_module.up.weight"]
    assert beside["epoch"] == 1
    assert torch.equal(beside["model"]["up.weight"], torch.ones(4, 2))
    assert not (tmp_path / "new" / "new.pt").exists()
