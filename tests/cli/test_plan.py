"""The command `plan`: a model and its FSDP1 arguments in, the tree of units out; no process group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.factories import factory_notes


if TYPE_CHECKING:
    from pathlib import Path


CONFIG = """
# as it stands in somebody's repository
auto_wrap_policy: {transformer_layer_cls: [Block]}
sharding_strategy: FULL_SHARD
mixed_precision: {param_dtype: bf16, reduce_dtype: fp32}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fsdp.yaml"
    path.write_text(CONFIG)
    return path


def test_the_plan_as_json(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "plan",
        "--model",
        "tests.models:Net",
        "--config",
        str(config),
        "--world-size",
        "16",
        "--json",
    ]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["command"] == "plan"
    assert document["mesh_shape"] == [1, 16]
    assert [unit["fqn"] for unit in document["units"]] == ["blocks.0", "blocks.1", ""]
    assert document["units"][0]["bytes"]["all_gathered_per_step"] > 0
    assert "FM022" in {finding["code"] for finding in document["findings"]}


def test_the_plan_for_people(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["plan", "--model", "tests.models:Net", "--config", str(config), "--world-size", "2", "--all"])
        == 0
    )
    shown = capsys.readouterr()
    assert shown.err == ""
    for expected in ("3 units on 2 ranks", "blocks.1", "(root)", "unsharded peak", "bfloat16", "FM022"):
        assert expected in shown.out


def test_without_a_config_the_plan_says_whose_defaults_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "tests.models:Net", "--world-size", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 unit on 2 ranks" in shown
    assert "Without --config these are FSDP1's defaults: no auto-wrap policy" in shown


def test_nodes_of_other_machines_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "fsdp.json"
    config.write_text('{"sharding_strategy": "HYBRID_SHARD"}')
    arguments = [
        "plan",
        "--model",
        "tests.models:Net",
        "--config",
        str(config),
        "--world-size",
        "16",
        "--json",
    ]
    assert main([*arguments, "--devices-per-node", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["mesh_shape"] == [4, 4]


def test_ties_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "tests.models:tied_net", "--world-size", "2"]) == 0
    assert "tied: embed.weight, head.out.weight" in capsys.readouterr().out


def test_strict_stops_at_what_would_change(config: Path) -> None:
    arguments = ["plan", "--model", "tests.models:Net", "--config", str(config), "--world-size", "2"]
    assert main([*arguments, "--strict"]) == 0
    config.write_text(f"{CONFIG}backward_prefetch: BACKWARD_POST\n")
    assert main([*arguments, "--strict"]) == 3


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        ("tests.models", CONFIG, "expected `package.module:factory`"),
        ("tests.models", CONFIG, "or `transformers:FOLDER` for the model of transformers"),
        ("tests.nothing:Net", CONFIG, "cannot be imported"),
        ("tests.models:Nett", CONFIG, "no function or class `Nett`. What can be called in it: `Block`"),
        ("tests.models:batch", CONFIG, "`batch()` raised TypeError: batch() missing 2 required positional"),
        ("tests.models:number", CONFIG, "makes a int; expected a torch module"),
        ("tests.models:Net", "sharding_stratgy: FULL_SHARD", "Did you mean `sharding_strategy`?"),
        ("tests.models:Net", "- FULL_SHARD", "expected a mapping"),
        ("tests.models:Net", "a: [", "Line 1, column 5 is no YAML"),
        ("tests.models:Net", "auto_wrap_policy: Blok", "Did you mean `Block`?"),
    ],
)
def test_bad_input_is_one_clear_message(
    model: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(text)
    assert main(["plan", "--model", model, "--config", str(path), "--world-size", "2"]) == 1
    shown = capsys.readouterr()
    assert message in " ".join(shown.err.split())
    assert "Traceback" not in shown.err


def test_a_folder_of_hugging_face_is_told_its_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text("{}")
    assert main(["plan", "--model", "tiny", "--world-size", "2"]) == 1
    assert "or `transformers:tiny` for" in " ".join(capsys.readouterr().err.split())
    for command in ("plan", "parity", "doctor", "inspect", "convert", "verify"):
        assert main([command, "-h"]) == 0
        assert "transformers:FOLDER" in capsys.readouterr().out


@pytest.mark.parametrize("named", [[], ["GPT2LMHeadModel"]])
def test_a_config_without_a_class_is_said_to_give_no_head(
    named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 11}
    more = {"architectures": named} if named else {}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes, **more}))
    assert main(["plan", "--model", f"transformers:{tmp_path}", "--world-size", "2", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    said = [note for note in notes if "names no `architectures`" in note]
    assert [note.startswith(str(tmp_path / "config.json")) for note in said] == [True] * (not named)
    assert factory_notes(f"transformers:{tmp_path / 'config.json'}") == tuple(said)


def test_a_missing_file_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.yaml"
    assert main(["plan", "--model", "tests.models:Net", "--config", str(missing), "--world-size", "2"]) == 1
    assert "There is no file" in capsys.readouterr().err


@pytest.mark.slow
def test_memory_is_foretold_and_what_does_not_fit_is_an_exit_code(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["plan", "--model", "tests.models:Net", "--config", str(config), "--world-size", "8"]
    assert main([*command, "--batch-size", "4", "--seq-length", "16", "--memory", "1GB"]) == 0
    shown = capsys.readouterr()
    assert "Fits into 1.0 GB: FSDP2 takes" in shown.out
    assert "4 rows of 16 random tokens of 13" in shown.out
    assert "two steps are simulated" in shown.err
    assert main([*command, "--memory", "20kB", "--optimizer", "sgd", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)["memory"]
    assert (told["fits"], told["limit"], told["optimizer"]) == (False, 20_000, "sgd")
    assert told["fsdp2"]["total"] == sum(told["fsdp2"]["parts"].values()) > 20_000
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] is None
    assert main([*command, "--memory", "much"]) == 2
    assert "`memory` is 'much'; expected a size such as '5GB'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_peak_of_memory_has_one_table(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums of shapes stood beside the rehearsed peak, with other numbers for the same things."""
    command = ["plan", "--model", "tests.models:Net", "--config", str(config), "--world-size", "8"]
    assert main([*command, "--batch-size", "4"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" optimizer state ") == 1
    assert "all gathered per step" in shown
    assert "at the moment when it holds most" in shown
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.count(" optimizer state ") == 1
    assert "`--memory 80GB` says whether it fits" in " ".join(shown.split())


def test_a_config_of_fsdp2_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config:\n  fsdp_version: 1\n")
    command = ["plan", "--model", "tests.models:Net", "--config", str(path), "--world-size", "2"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "FM444" not in {finding["code"] for finding in document["findings"]}
    assert "FM354" in " ".join(document["notes"])
    assert main(["config", str(path), "--write"]) == 0
    capsys.readouterr()
    assert main(command) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "FM444" in shown
    assert f"--config {path}.fsdp1" in shown
    assert main([*command, "--strict"]) == 3


@pytest.mark.parametrize(("asked", "layers"), [([], 2), (["--activation-checkpointing", "Head"], 1)])
def test_layers_are_recomputed_as_the_config_says(
    asked: list[str], layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  fsdp_transformer_layer_cls_to_wrap: Block\n  fsdp_activation_checkpointing: true\n"
    )
    command = ["plan", "--model", "tests.models:Net", "--config", str(path), "--world-size", "2", "--json"]
    assert main([*command, *asked]) == 0
    assert len(json.loads(capsys.readouterr().out)["activation_checkpointing"]) == layers


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (
            "runs:Net",
            "module `{module}` ended while it was imported: SystemExit in {file}:5 (exit code 2). It runs",
        ),
        ("reads:make", "`make()` raised SystemExit in {file}:5 (exit code 2): it ended the process."),
    ],
)
def test_a_script_that_reads_the_command_line_is_not_taken_for_ours(
    factory: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = factory.partition(":")[2]
    module = f"script_that_{factory.partition(':')[0]}"
    script = "import argparse\n\n\ndef {name}():\n    argparse.ArgumentParser().parse_args()\n\n{call}\n"
    file = tmp_path / f"{module}.py"
    file.write_text(script.format(name=called, call=f"{called}()" if called == "Net" else ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["plan", "--model", f"{module}:{called}", "--world-size", "2"]
    monkeypatch.setattr("sys.argv", ["fsdp-migrate", *given])
    assert main(given) == 1
    shown = " ".join(capsys.readouterr().err.split())
    assert message.format(module=module, file=file) in shown
    assert "fsdp-migrate: error" not in shown
    assert f"{module}: error" in shown or f"{called}: error" in shown
