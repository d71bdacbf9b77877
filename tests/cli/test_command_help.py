"""What ``--help`` shows: as people write it, in groups, with an example that runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any, get_args

import pytest
import typer

from fsdp_migrate.adapters.conversion.frameworks import ADAPTERS
from fsdp_migrate.checkpoint_convert.manifest.manifest import Framework
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.cli import config, main
from fsdp_migrate.cli.app import app
from fsdp_migrate.cli.options import Target
from tests.rank_bodies import checkpoints
from tests.ranks import ROOT, run_ranks


if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
EXAMPLES = [
    line.strip() for command in COMMANDS.values() for line in command.epilog.splitlines() if line.strip()
]


def shown(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments, "--help"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


@pytest.mark.alike
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_short_option_shows_the_help(command: str, capsys: Capture) -> None:
    words = [command] if command else []
    whole = shown(capsys, *words)
    assert main([*words, "-h"]) == 0
    assert capsys.readouterr().out == whole
    assert "  -h, --help" in whole


@pytest.mark.alike
@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_no_word_breaks_and_every_line_fits(
    command: str, width: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [command] if command else []
    monkeypatch.setenv("COLUMNS", "1000")
    wide = set(shown(capsys, *words).split())
    monkeypatch.setenv("COLUMNS", str(width))
    narrow = shown(capsys, *words)
    assert set(narrow.split()) == wide
    text = narrow.partition("\nExample")[0]
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.alike
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_options_are_shown_as_people_write_them(command: str, capsys: Capture) -> None:
    text = shown(capsys, command)
    usage = text.partition("\n\n")[0]
    assert not re.search(r"<\w+>|\{|\[\[|x>=", text), "typer's own words for types"
    for parameter in COMMANDS[command].params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar
            assert (f" {name}" if parameter.required else f" [{name}]") in usage
        elif not parameter.is_flag:
            assert parameter.metavar, f"{parameter.name} has no metavar"
            assert f"{parameter.opts[0]} {parameter.metavar}" in text


def test_many_options_stand_in_groups(capsys: Capture) -> None:
    assert re.findall(r"^(\w.+):$", shown(capsys, "convert"), re.MULTILINE) == [
        "Arguments",
        "What the result is",
        "For one target",
        "About the source",
        "How it is written",
        "What is reported",
        "Examples",
    ]
    for command in COMMANDS:
        sizes = [
            len(re.findall(r"^  \S", group, re.MULTILINE)) for group in shown(capsys, command).split("\n\n")
        ]
        assert max(sizes) <= 10, command


def test_every_choice_is_named(capsys: Capture) -> None:
    text = shown(capsys, "convert")
    for word in ("torchtitan", "lightning", "bfloat16", "hard"):
        assert word in text
    assert "axolotl" in shown(capsys, "config")


def test_the_choices_are_the_frameworks_that_there_are() -> None:
    """They stand in the command line a second time, so that its help need not load what knows them."""
    assert {each.value for each in Target} == {"auto", *TARGETS} == {"auto", *get_args(Framework)}
    assert {each.value for each in config.Framework} == {"auto", *ADAPTERS}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the examples of the help make sense."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / "runs").mkdir()
    run_ranks(checkpoints.save_fsdp1, str(folder / "runs" / "step-100"))
    (folder / "src").mkdir()
    code = "from torch import nn\n\n\ndef make_model() -> nn.Module:\n    return nn.Linear(2, 2)\n"
    (folder / "train.py").write_text(code)
    (folder / "fsdp.yaml").write_text("sharding_strategy: FULL_SHARD\n")
    example = ROOT / "examples" / "configs" / "accelerate.yaml"
    (folder / "accelerate.yaml").write_text(example.read_text())
    return folder


def test_every_command_has_an_example_that_runs(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(workplace)
    assert {shlex.split(line)[1] for line in EXAMPLES} == set(COMMANDS)
    for line in EXAMPLES:
        program, *words = shlex.split(line)
        assert program == "fsdp-migrate"
        if words[0] not in ("demo", "parity", "compare"):  # they start processes, and have tests of their own
            assert main(words) == 0, f"{line}: {capsys.readouterr().err}"


def complete(words: str) -> set[str]:
    """Return what the shell is offered behind ``words``."""
    environment = {
        **os.environ,
        "_FSDP_MIGRATE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    code = "import sys; sys.argv[0] = 'fsdp-migrate'; from fsdp_migrate.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=400
    )
    return set(done.stdout.split())


def test_the_shell_completes_commands_options_and_choices() -> None:
    assert complete("fsdp-migrate ") >= {"convert", "inspect", "scan"}
    assert "--world-size" in complete("fsdp-migrate convert a b --w")
    assert complete("fsdp-migrate convert a b --to ") >= {"torchtitan", "hf"}


def test_completion_can_be_installed(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    code = "import sys; from fsdp_migrate.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--install-completion", "bash"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "fsdp-migrate.sh" in (tmp_path / ".bashrc").read_text()
