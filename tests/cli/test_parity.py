"""The command ``parity``: it starts its ranks, tells what they found, and what went wrong on one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import nn

from fsdp_migrate.cli import main
from fsdp_migrate.cli.parity import _with_what_stops
from fsdp_migrate.parity import start
from fsdp_migrate.parity.report import Difference
from fsdp_migrate.parity.start import Recipe
from tests.parity.reports import GRADIENT, report_of
from tests.report.reading import check_page
from tests.scripts import launch_forked


if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Report:
    """As much of a report as the start of the ranks looks at."""

    notes: tuple[str, ...]


@pytest.mark.slow
@pytest.mark.filterwarnings(  # torch's launcher leaves its log files open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.any_torch
def test_a_config_of_transformers_is_enough(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("transformers")
    model = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1}
    (tmp_path / "config.json").write_text(json.dumps({**model, "n_head": 1, "vocab_size": 11}))
    (tmp_path / "fsdp.yaml").write_text("auto_wrap_policy: {transformer_layer_cls: [GPT2Block]}\n")
    given = ["--model", f"transformers:{tmp_path}", "--config", str(tmp_path / "fsdp.yaml")]
    page = tmp_path / "report.html"
    arguments = ["--steps", "1", "--device", "cpu", "--html", str(page), "--json"]
    arguments += ["--batch-size", "3", "--seq-length", "4"]
    assert main(["parity", *given, *arguments]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert (document["command"], document["identical"], document["world_size"]) == ("parity", True, 2)
    assert document["units"] == ["transformer.h.0", ""]
    tree = next(each for each in check_page(page.read_text()).find("ul") if each.find("summary"))
    assert [each.text for each in tree.find("code")] == [
        "(root)",
        "GPT2LMHeadModel",
        "transformer.h.0",
        "GPT2Block",
    ]
    assert len([each for each in tree.find("span") if "at rest" in each.text]) == 2
    assert "3 rows of 4 random tokens of 11" in " ".join(document["notes"])
    assert "2 processes train 1 step under" in shown.err
    assert main(["plan", *given, "--world-size", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["units"]) == 2


def test_a_run_without_a_config_says_that_it_had_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_report(_: str, arguments: list[str], **__: Any) -> None:
        (Path(arguments[0]) / start.REPORT).write_text("{}")

    report = Report(notes=("The batches were generated.",))
    monkeypatch.setattr(start, "launch_ranks", write_report)
    monkeypatch.setattr(start, "read_report", lambda _: report)
    found = start.run_parity(start.Recipe(model="train:make_model"))
    assert found.notes[0] == "The batches were generated."
    assert "FSDP1's defaults: no auto-wrap policy" in found.notes[1]
    assert found.notes[2].startswith("Neither run clips gradients.")


def layer() -> nn.Module:
    return nn.Linear(4, 2)


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "no-such.yaml"], "no-such.yaml"),
        (["--steps", "0"], "--steps"),
        (["--device", "tpu"], "--device"),
    ],
)
def test_wrong_usage_starts_nothing(arguments: list[str], said: str, capsys: Capture) -> None:
    assert main(["parity", "--model", "tests.models:Net", *arguments]) in {1, 2}
    assert said in capsys.readouterr().err


ACCELERATE = "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: {}\n"


@pytest.mark.any_torch
def test_a_config_of_fsdp2_is_no_config_of_fsdp1(tmp_path: Path, capsys: Capture) -> None:
    """It was read as FSDP1's, and the runs were said to be identical."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE.format(2))
    (tmp_path / "accelerate.yaml.fsdp1").write_text(ACCELERATE.format(1))
    assert main(["parity", "--model", "tests.models:Net", "--config", str(path)]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "holds Accelerate's settings of FSDP2 already" in said
    assert f"--config {path}.fsdp1" in said
    assert "processes train" not in said


def test_what_the_framework_does_otherwise_stands_beside_the_verdict(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdp_migrate.parity.start.launch_ranks", launch_forked)
    path = tmp_path / "accelerate.yaml"
    path.write_text(ACCELERATE.format(1))
    given = ["--model", f"{__name__}:layer", "--config", str(path), "--steps", "1", "--device", "cpu"]
    assert main(["parity", *given]) == 0
    shown = capsys.readouterr().out
    assert "FM354 `mixed_precision`; `fsdp-migrate config" in " ".join(shown.split())
    assert shown.splitlines()[-1].startswith("Identical")
    # Accelerate's FSDP2, which this config runs when it is converted, would stop.
    assert "does not run this model as FSDP1 did: accelerate-loads-not-all" in " ".join(shown.split())


@pytest.mark.any_torch
def test_under_torchrun_the_function_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["parity", "--model", "tests.models:Net"]) == 1
    assert "compare_runs" in capsys.readouterr().err


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("code", "strict", "exit_code"), [("", False, 1), ("FM012", False, 0), ("FM012", True, 3)]
)
def test_exit_codes(
    code: str, strict: bool, exit_code: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Difference(**{**vars(GRADIENT), "explained_by": code, "explanation": "FSDP1 kept them"})
    monkeypatch.setattr("fsdp_migrate.parity.start.run_parity", lambda *_, **__: report_of(found))
    assert main(["parity", "--model", "a:b", *(["--strict"] if strict else [])]) == exit_code
    assert ("FM012 explains it" in capsys.readouterr().out) is bool(code)


def test_a_config_of_transformers_that_names_no_class_is_told(tmp_path: Path) -> None:
    said = []
    for name, more in (("a", {}), ("b", {"architectures": ["GPT2LMHeadModel"]})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": "gpt2", **more}))
        report = _with_what_stops(report_of(), Recipe(model=f"transformers:{tmp_path / name}"))
        said.append([note for note in report.notes if "names no `architectures`" in note])
    assert [len(each) for each in said] == [1, 0]
