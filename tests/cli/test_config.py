"""The command ``config``: exit codes, what goes to stdout, and what is written."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.config_files import read_config_file
from tests.ranks import ROOT


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


EXAMPLE = ROOT / "examples" / "configs" / "accelerate.yaml"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_bytes(EXAMPLE.read_bytes())
    return path


def test_the_default_is_a_diff_that_patch_takes(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(source)]) == 0
    out = capsys.readouterr().out
    assert source.read_bytes() == EXAMPLE.read_bytes()
    assert "FM354" in out
    subprocess.run(["patch", "-p0", str(source)], input=out, text=True, check=True, capture_output=True)
    assert main(["config", str(source), "--check"]) == 0


def test_check_writes_nothing_and_exits_with_1(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(source), "--check"]) == 1
    assert source.read_bytes() == EXAMPLE.read_bytes()
    assert "+++ " not in capsys.readouterr().out


def test_output_and_write(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.with_name("out.yaml")
    assert main(["config", str(source), "-o", str(out)]) == 0
    assert main(["config", str(source), "-o", str(out)]) == 1
    assert main(["config", str(source), "--write"]) == 0
    assert source.read_bytes() == out.read_bytes()
    assert source.with_name("config.yaml.fsdp1").read_bytes() == EXAMPLE.read_bytes()
    assert "config.yaml.fsdp1" in capsys.readouterr().out
    assert main(["config", str(source)]) == 0  # FSDP2 already
    shown = capsys.readouterr()
    assert "+++ " not in shown.out
    assert "Nothing to convert." in shown.out + shown.err


def test_json_holds_everything(source: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = run_json("config", source)
    assert code == 0
    assert document["is_changed"]
    assert document["blocks"] == [
        {"framework": "accelerate", "path": "fsdp_config", "state": "converted", "code": None}
    ]
    assert "fsdp_version: 2" in document["text"]
    code, document = run_json("config", source, "--check")
    assert code == 1


def test_strict_exits_with_3(source: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = run_json("config", source, "--write", "--strict")
    assert code == 3
    assert {f["code"] for f in document["error"]["findings"]} == {"FM354"}
    assert source.read_bytes() == EXAMPLE.read_bytes()


def test_known_failures_exit_with_1(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text("model: 1\n")
    assert main(["config", str(source)]) == 1
    assert "Nothing in it configures FSDP" in capsys.readouterr().err
    source.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHRAD}\n")
    assert main(["config", str(source)]) == 1
    assert "Did you mean `full_shard`" in capsys.readouterr().err


def test_a_command_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    command = "accelerate launch --use_fsdp --fsdp_sharding_strategy 2 x.py"
    assert main(["config", "--command", command]) == 0
    out = capsys.readouterr().out
    assert out.startswith("accelerate launch --use_fsdp --fsdp_reshard_after_forward false --fsdp_version 2")
    assert main(["config", "--command", command, "--check"]) == 1
    assert main(["config", "--command", "python x.py"]) == 1
    assert main(["config", "--command", command, "--write"]) == 2
    assert main(["config"]) == 2


def test_any_stack_becomes_a_call_in_plain_torch(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", str(source), "--to", "torch"]) == 0
    code = capsys.readouterr().out
    assert source.read_bytes() == EXAMPLE.read_bytes()
    given: dict[str, Any] = {}
    head, _, _ = code.partition("model = ")
    exec(head, given)
    assert FSDP1Config(**given["arguments"]) == read_config_file(source)


def test_contradicting_options_are_wrong_usage(source: Path) -> None:
    assert main(["config", str(source), "--check", "--write"]) == 2
    assert main(["config", str(source), "--from", "nothing"]) == 2


@pytest.mark.parametrize("width", [80, 100])
def test_names_are_not_broken_in_the_middle_of_a_word(
    source: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = "fsdp_transformer_layer_cls_to_wrap"
    source.write_text(
        f"distributed_type: FSDP\nfsdp_config:\n  {name}: Block\n  fsdp_use_orig_params: true\n"
    )
    assert main(["config", str(source), "--all"]) == 0
    out = capsys.readouterr().out
    report = out[out.index("changed") :]
    assert name in report
    assert "fsdp_use_orig_params" in report
    assert max(map(len, report.splitlines())) <= width


def test_a_second_run_of_a_script_says_that_only_notes_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "accelerate launch --use_fsdp --fsdp_sharding_strategy FULL_SHARD train.py\n"
        "accelerate launch --config_file acc.yaml train.py\n"
    )
    assert main(["config", str(script), "--write"]) == 0
    assert "Nothing to convert." not in capsys.readouterr().out
    assert main(["config", str(script), "--write"]) == 0
    out = capsys.readouterr().out
    assert "FM356" in out
    assert out.rstrip().endswith("\nNothing to convert. What is said above is left to you.")
    assert main(["config", "--command", "accelerate launch --config_file acc.yaml train.py"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "accelerate launch --config_file acc.yaml train.py\n"
    assert "Nothing to convert." in shown.err
    assert main(["config", str(script), "--check"]) == 0
    assert "Nothing to convert." in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["use_fsdp: false\n", "distributed_type: 'NO'\nfsdp_config: {fsdp_version: 1}\n"]
)
def test_that_fsdp_is_off_is_an_answer(source: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text(text)
    assert main(["config", str(source), "--check"]) == 0
    out = capsys.readouterr().out
    assert "FM351" in out
    assert "Nothing to convert." in out


def test_commands_that_are_shown_name_the_file_and_convert_it(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text("train:\n  fsdp: {sharding_strategy: FULL_SHARD, mixed_precision: true}\n")
    assert main(["config", str(source)]) == 1
    [command] = re.findall(r"`fsdp-migrate (config [^`]*)`", capsys.readouterr().err.replace("\n", " "))
    assert main(shlex.split(command)) == 0
    assert "reshard_after_forward: true" in capsys.readouterr().out


def test_settings_that_no_key_leads_to_are_called_the_whole_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fsdp.json"
    path.write_text('{"transformer_layer_cls_to_wrap": ["Block"]}')
    assert main(["config", str(path), "--from", "hf", "-o", str(tmp_path / "new.json"), "--all"]) == 0
    shown = capsys.readouterr()
    told = shown.out + shown.err
    assert "hf: the whole file: converted to FSDP2." in told
    assert re.search(r"FM3(?:40|58)  the whole file\n", told)  # by the version that is installed
    assert "`.`" not in told
