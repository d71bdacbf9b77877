"""One look at a whole repository: configs, checkpoints, and what to do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ruamel.yaml import YAML

from fsdp_migrate.checkpoint_convert.sources.folder_layouts import layout_title
from fsdp_migrate.cli import main
from fsdp_migrate.config_files import read_config_file
from fsdp_migrate.source.checkpoint_runs import saved_since, target_of
from fsdp_migrate.source.surroundings import CheckpointFound, find_configs
from tests.cli.conftest import CODE
from tests.ranks import ROOT


if TYPE_CHECKING:
    from collections.abc import Callable


ACCELERATE = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2\n"
FSDP2 = "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
CHECKPOINTS = ROOT / "tests" / "checkpoint" / "data" / "torch-2.13.0"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("runs/\nsecret.yaml\n")
    (tmp_path / "train.py").write_text(CODE)
    (tmp_path / "old fsdp.yaml").write_text(ACCELERATE)
    (tmp_path / "new.yaml").write_text(FSDP2)
    (tmp_path / "secret.yaml").write_text(ACCELERATE)
    (tmp_path / "broken.yml").write_text("fsdp_config: [1\n  x: 2\n")
    (tmp_path / "other.json").write_text('{"learning_rate": 0.1}')
    (tmp_path / "binary.yaml").write_bytes(b"fsdp\0\xff")
    shutil.copytree(CHECKPOINTS / "plain.dcp", tmp_path / "runs" / "plain.dcp")
    return tmp_path


@pytest.mark.slow
def test_configs_are_found_with_their_framework_and_what_would_become_of_them(repository: Path) -> None:
    found = {Path(each.path).name: each for each in find_configs([repository])}
    assert found.keys() == {"old fsdp.yaml", "new.yaml", "broken.yml", "binary.yaml"}
    assert (found["old fsdp.yaml"].framework, found["old fsdp.yaml"].state) == ("accelerate", "changes")
    assert found["new.yaml"].state == "fsdp2"
    assert found["broken.yml"].state == "broken"
    assert found["broken.yml"].message.startswith("Line 2, column 4 is no YAML")
    assert found["binary.yaml"].state in {"broken", "unclear"}
    assert (repository / "old fsdp.yaml").read_text() == ACCELERATE


@pytest.mark.slow
def test_the_steps_stand_in_order_with_commands_that_run(
    repository: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (repository / "binary.yaml").unlink()
    (repository / "broken.yml").unlink()
    monkeypatch.chdir(repository)
    code, document = run_json("scan", ".")
    assert code == 0
    assert [config["state"] for config in document["configs"]] == ["fsdp2", "changes"]
    assert [checkpoint["path"] for checkpoint in document["checkpoints"]] == ["runs/plain.dcp"]
    commands = [shlex.split(command) for step in document["steps"] for command in step["commands"]]
    assert [command[:2] for command in commands] == [
        ["fsdp-migrate", "doctor"],
        # By the config, and by the arguments of the sources.
        *[["fsdp-migrate", "plan"]] * 2,
        *[["fsdp-migrate", "parity"]] * 2,
        ["cp", "-r"],
        ["fsdp-migrate", "rewrite"],
        ["fsdp-migrate", "rewrite"],
        ["grep", "-rn"],
        ["fsdp-migrate", "config"],
        ["fsdp-migrate", "compare"],
        ["fsdp-migrate", "inspect"],
        ["fsdp-migrate", "doctor"],
        ["fsdp-migrate", "compare"],
    ]
    for command in commands:
        if command[0] == "fsdp-migrate" and not {"PKG.MOD:FACTORY", "COMMAND"} & {*command}:
            assert main(command[1:]) == 0
    _, document = run_json("scan", ".")
    assert document["totals"]["rewritten"] == 0
    assert [config["state"] for config in document["configs"]] == ["fsdp2", "fsdp2"]


def test_what_is_settled_by_hand_alone_is_kept_before_as_well(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare` needs the old project, also where `rewrite` sets comments and turns nothing."""
    monkeypatch.chdir(tmp_path)
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    Path("train.py").write_text(f"{code}net.head = FSDP(net.head)\nnet = FSDP(net)\n")
    _, document = run_json("scan", ".")
    assert document["totals"]["rewritten"] == 0
    commands = [command for step in document["steps"] for command in step["commands"]]
    assert commands.index("cp -r . ../before") < commands.index("fsdp-migrate rewrite .")
    assert "fsdp-migrate compare ../before . -- COMMAND" in commands


def test_what_is_written_is_not_to_be_written_again(
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What got its comment is left to people; plain arguments stay as a rewritten source reads them."""
    monkeypatch.chdir(tmp_path)
    Path("fsdp.yaml").write_text("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n")
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    code += "model = FSDP(net, **read('fsdp.yaml'))\nFSDP.rekey_optim_state_dict(a, b, model)\n"
    Path("train.py").write_text(code)
    Path("requirements.txt").write_text("fsdp-migrate\n")
    _, document = run_json("scan", ".")
    first = [step["text"] for step in document["steps"]]
    assert first[3].startswith("Keep a copy of the project as it is now")
    assert first[4] == "Look at the changes to the sources, and write them: 1 use in 1 file."
    assert "Do it before" not in first[2]
    assert not any("fsdp.yaml" in text for text in first)  # to leave a file is no step
    assert main(["scan", "."]) == 0
    assert "fsdp.yaml: torch: FSDP1's arguments: stay where" in capsys.readouterr().out
    assert main(["rewrite", ".", "--write"]) == 0
    _, document = run_json("scan", ".")
    assert document["steps"][3]["text"].startswith(
        "Settle by hand what got a comment, and delete it: 2 places in 1 file. FM309"
    )


def test_a_project_that_was_migrated_has_no_config_to_convert(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own configs are right as they are: the rewritten source reads FSDP1's words."""
    monkeypatch.chdir(tmp_path)
    Path("fsdp.yaml").write_text("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n")
    own = "seed: 0\nfsdp:\n  sharding_strategy: FULL_SHARD\n  use_orig_params: true\n"
    Path("own.yaml").write_text(own)
    Path("requirements.txt").write_text("fsdp-migrate\n")
    Path("train.py").write_text("cfg = read('own.yaml')\n")
    _, document = run_json("scan", ".")
    commands = [command for step in document["steps"] for command in step["commands"]]
    assert "fsdp-migrate config fsdp.yaml --write" in commands
    assert "fsdp-migrate config own.yaml" in commands
    Path("train.py").write_text("model = prepare_fully_shard(net, read('own.yaml')['fsdp'])\n")
    _, document = run_json("scan", ".")
    # That the new run was ever compared with the old one, nothing shows.
    [step] = document["steps"]
    assert (
        "../before is to be the project as it was before it was rewritten, and is not there" in step["text"]
    )
    (tmp_path.parent / "before").mkdir()
    _, document = run_json("scan", ".")
    [step] = document["steps"]
    assert step["text"].endswith(
        "../before is taken for the project as it was before it was rewritten: see that it is that."
    )
    assert step["commands"] == ["fsdp-migrate compare ../before . -- COMMAND"]
    torch.save({"model": {"a": torch.ones(1)}}, "step-1.pt")
    _, document = run_json("scan", ".")
    assert document["steps"][1]["commands"] == [
        "fsdp-migrate inspect step-1.pt",
        "fsdp-migrate doctor --checkpoint step-1.pt",
    ]
    # A framework's config is to be converted all the same.
    Path("accelerate.yaml").write_text(ACCELERATE)
    _, document = run_json("scan", ".")
    assert "fsdp-migrate config accelerate.yaml --write" in str(document["steps"])


def test_a_change_with_a_comment_is_counted_by_scan_as_by_rewrite(
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net, **options)\n"
    )
    Path("train.py").write_text(code)
    _, document = run_json("scan", ".")
    assert document["steps"][5]["text"].startswith("Install `fsdp-migrate`")
    assert document["steps"][6]["text"].startswith(
        "Settle by hand what got a comment, and delete it: 1 place in 1 file. FM302"
    )
    assert main(["rewrite", "train.py"]) == 0
    assert "See that they are FSDP1's, and delete this comment" in capsys.readouterr().out
    asks = "wanted = [p for p in model.parameters() if p.ndim > 1 or (p.ndim == 1 and p.ndim > 0)]\n"
    Path("more.py").write_text(code.replace("options", "{}") + asks)
    (text,) = (e["text"] for e in run_json("scan", "more.py")[1]["steps"] if e["text"].startswith("Settle"))
    assert "in 1 file, of which those in one statement share a comment. " in text
    Path("more.py").unlink()
    assert document["totals"]["rewritten"] == 2
    assert main(["scan", "."]) == 0
    shown = capsys.readouterr().out
    assert "To be done by hand: 1 place" in shown
    assert "the arguments are known only when this runs" in shown
    assert main(["rewrite", ".", "--write"]) == 0
    assert "To be settled by hand: 1 comment" in capsys.readouterr().out
    _, document = run_json("scan", ".")
    assert "and delete it: 1 place" in document["steps"][4]["text"]


def test_models_that_are_not_followed_are_shown_by_scan_and_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    Path("train.py").write_text(f"import tools\n{head}\n\ndef run(net):\n    tools.ALL['save'](FSDP(net))\n")
    Path("tools.py").write_text("def save(model):\n    return model.state_dict()\n")
    assert main(["scan", ".", "--html", "scan.html"]) == 0
    shown = capsys.readouterr().out
    assert "To be looked at: 1 place\n  A model or its optimizer comes here" in shown
    assert "to which a model comes that could not be followed: 1 place in 1 file." in shown
    assert "tools.py:2:12: FM450 model.state_dict()\n    the sharded model's state" in shown
    assert "a model that could not be followed, or code that is not read" in Path("scan.html").read_text()
    assert main(["rewrite", ".", "--write"]) == 0
    assert "Look at tools.py:2:12 too" in capsys.readouterr().out
    assert main(["scan", "."]) == 0
    assert "To be looked at: 1 place" in capsys.readouterr().out


def test_code_that_is_not_read_is_shown_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    head = "import flops\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    Path("train.py").write_text(f"{head}\n\ndef run(net):\n    flops.count(FSDP(net))\n")
    assert main(["scan", "."]) == 0
    shown = capsys.readouterr().out
    assert "To be looked at: 1 place\n  What is sharded goes here into code that is not read" in shown
    assert "goes into code that is unread: 1 place in 1 file. See FM454." in " ".join(shown.split())
    assert "could not be followed" not in shown
    assert "train.py:6:5: FM454 flops.count(FSDP(net))\n    the sharded model goes into `count`" in shown


def test_what_proves_the_run_comes_before_its_config_is_converted(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 4 converted the config that step 7 was to compare with; neither named the config nor the model."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CODE)
    Path("my fsdp.yaml").write_text(ACCELERATE)
    Path("models", "tiny").mkdir(parents=True)
    Path("models", "tiny", "config.json").write_text('{"model_type": "qwen2", "architectures": ["Q"]}')
    Path("models", "config.json").write_text('{"model_type": "not of transformers"}')
    torch.save({"a": torch.ones(1)}, "models/tiny/pytorch_model.bin")
    _, document = run_json("scan", ".")
    assert [each["path"] for each in document["checkpoints"]] == ["models/tiny/pytorch_model.bin"]
    commands = [command for step in document["steps"] for command in step["commands"]]
    # Weights of a Hugging Face model are read by from_pretrained, as before.
    assert not any("pytorch_model" in command for command in commands)
    parity = "fsdp-migrate parity --model transformers:models/tiny --config"
    plan = (
        "fsdp-migrate plan --model transformers:models/tiny --config {} --world-size RANKS "
        "--batch-size ROWS --seq-length TOKENS --memory 80GB"
    )
    assert commands[:3] == [
        "fsdp-migrate doctor . --model transformers:models/tiny --config 'my fsdp.yaml'",
        plan.format("'my fsdp.yaml'"),
        plan.format("fsdp.yaml"),
    ]
    # Accelerate's config is of what Accelerate starts; the sources shard by arguments of their own.
    assert commands[3:5] == [f"{parity} 'my fsdp.yaml'", f"{parity} fsdp.yaml"]
    said = document["steps"][1]["text"]
    assert "Sources shard by themselves (train.py:" in said
    assert "not by my fsdp.yaml. For a run of theirs, fsdp.yaml is a file that you write" in said
    write = "fsdp-migrate config 'my fsdp.yaml' --write"
    assert commands.index(write) > 3
    assert "before the config is converted" in document["steps"][2]["text"]
    # Who converts it all the same is given the copy.
    copy = "'my fsdp.yaml.fsdp1'"
    assert main(shlex.split(write)[1:]) == 0
    _, document = run_json("scan", ".")
    assert document["steps"][2]["commands"] == [f"{parity} {name}" for name in (copy, "fsdp.yaml")]
    # A config of FSDP1's own arguments is one that sources read.
    Path("own.yaml").write_text("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n")
    assert "fsdp.yaml is a file" not in str(run_json("scan", ".")[1]["steps"])
    Path("own.yaml").unlink()
    # Where nothing is left, the run alone shows whether it is the same.
    assert main(["rewrite", ".", "--write"]) == 0
    Path("train.py").write_text("x = 1\n")
    _, document = run_json("scan", ".")
    # What the conversion said of other numbers is seen again by its copy.
    assert [step["commands"] for step in document["steps"]] == [
        [f"fsdp-migrate config {copy}"],
        ["fsdp-migrate compare ../before . -- COMMAND"],
    ]


def test_a_code_host_is_told_where_what_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places as SARIF counts them, below the folder in which it runs; and who is to look, by the level."""
    monkeypatch.chdir(tmp_path)
    Path("src dir").mkdir()
    code = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nif x:\n    m = FSDP(net)\n"
    Path("src dir", "train.py").write_text(f"{code}FSDP.rekey_optim_state_dict(a, b, m)\n# FSDP(net)\n")
    Path("book.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": code}], "nbformat": 4})
    )
    Path("broken.py").write_text("import fsdp\ndef (\n")
    Path("fsdp.yaml").write_text("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n")
    Path("run.sh").write_text("\naccelerate launch --use_fsdp train.py\n")
    Path("requirements.txt").write_text("torch==2.1.2\n")
    assert main(["scan", ".", "--sarif", "--strict"]) == 3
    log = json.loads(capsys.readouterr().out)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0"
    found = set()
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        where = place["artifactLocation"]
        assert where["uriBaseId"] in run["originalUriBaseIds"]
        found.add((where["uri"], place["region"]["startLine"], result["ruleId"], result["level"]))
    assert found == {
        ("src%20dir/train.py", 3, "FM301", "note"),
        ("src%20dir/train.py", 4, "FM309", "warning"),
        ("book.ipynb", 1, "FM301", "warning"),  # which `rewrite` leaves alone
        ("book.ipynb", 1, "FM329", "warning"),
        ("broken.py", 1, "not-read", "warning"),
        ("fsdp.yaml", 1, "fsdp1-config", "note"),
        ("run.sh", 2, "fsdp1-launch", "note"),
        ("requirements.txt", 1, "old-requirement", "warning"),
    }
    assert main(["scan", ".", "--sarif", "--json"]) == 2


def test_where_nothing_is_left_a_commit_passes(tmp_path: Path) -> None:
    """What ``.pre-commit-hooks.yaml`` runs."""
    (hook,) = YAML(typ="safe").load((ROOT / ".pre-commit-hooks.yaml").read_text())
    program, *arguments = hook["entry"].split()
    assert program == "fsdp-migrate"
    (tmp_path / "new.py").write_text("from torch.distributed.fsdp import fully_shard\nfully_shard(net)\n")
    (tmp_path / "old.py").write_text(CODE)
    (tmp_path / "other.yaml").write_text("name: tests\n")
    assert main([*arguments, str(tmp_path / "new.py"), str(tmp_path / "other.yaml")]) == 0
    assert main([*arguments, str(tmp_path / "old.py")]) == 3


@pytest.mark.slow
def test_people_see_the_same(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(repository)]) == 0
    shown = capsys.readouterr().out
    for text in (
        "Configs",
        "accelerate: would change",
        "is FSDP2 already",
        "Checkpoints",
        "1. See which known faults",
        "5. Look at",
        "grep -rn",
    ):
        assert text in shown


@pytest.mark.slow
def test_a_config_or_a_checkpoint_that_is_named_is_no_source(repository: Path) -> None:
    code = main(["scan", str(repository / "new.yaml"), str(repository / "runs"), "--json"])
    assert code == 0


def test_a_repository_without_fsdp_has_nothing_to_do(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    _, document = run_json("scan", tmp_path)
    assert (document["configs"], document["checkpoints"], document["steps"]) == ([], [], [])


def test_configs_of_which_the_same_is_said_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        Path(f"{number}.yaml").write_text("fsdp:\n  wrapping_strategy: by_block\n  precision: mixed\n")
    Path("torch.yaml").write_text("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n")
    assert main(["scan", "."]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ".yaml" in line and ": " in line]
    assert [line.partition(": ")[0] for line in lines[:2]] == [
        "0.yaml, 1.yaml, 2.yaml and 2 more (--all names them)",
        "torch.yaml",
    ]
    assert main(["scan", ".", "--all"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n{number}.yaml: not known: " in shown for number in range(5))


def test_options_of_a_script_are_not_taken_for_accelerates(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    own = "--fsdp_activation_checkpointing=False"
    (tmp_path / "own.sh").write_text(f'ARGS="\\\n{own}\n"\ntorchrun train.py ${{ARGS}}\n')
    (tmp_path / "its.sh").write_text(f'ARGS="{own}"\naccelerate launch --use_fsdp ${{ARGS}} train.py\n')
    _, document = run_json("scan", tmp_path)
    assert {each["path"].rpartition("/")[2] for each in document["launches"]} == {"its.sh"}


IN_A_VARIABLE = """CMD="
torchrun train.py --bf16 --per_device_train_batch_size 2 \\
  --fsdp 'full_shard auto_wrap' --fsdp_transformer_layer_cls_to_wrap Block
"
if [ -n "$CLUSTER" ]; then queue -- ${CMD} --out /out; else ${CMD} --out out; fi
"""


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (IN_A_VARIABLE, "fsdp-migrate config {}"),
        (IN_A_VARIABLE.partition('"\n')[2].partition('"')[0], "fsdp-migrate config {} --write"),
        ('ARGS="--use_fsdp"\naccelerate launch $ARGS train.py\n', "fsdp-migrate config {} --write"),
    ],
)
def test_a_step_names_a_command_that_works(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], script: str, command: str
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(script)
    _, document = run_json("scan", tmp_path)
    commands = [each for step in document["steps"] for each in step["commands"] if " config " in each]
    assert commands == [command.format(path)]
    status, _ = run_json("config", path)
    assert (status == 0) is command.endswith("--write")


FSDP_CONFIG = '{"transformer_layer_cls_to_wrap": ["Block"], "backward_prefetch": "backward_pre"}'
RUN = """#!/bin/bash
# accelerate launch --use_fsdp in a comment
torchrun train.py \\
  --fsdp "full_shard auto_wrap" \\
  --fsdp_config settings.json --bf16
"""
SLURM = "#SBATCH -N 2\nsrun accelerate launch --use_fsdp --fsdp_sharding_strategy 2 train.py\necho done\n"
REQUIREMENTS = "numpy\ntorch==2.1.2  # the cluster's\naccelerate>=0.20,<1.0\ntransformers>=4.40\n"


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A repository as those of the HF Trainer are: no word of FSDP in Python."""
    (tmp_path / "settings.json").write_text(FSDP_CONFIG)
    (tmp_path / "run.sh").write_text(RUN)
    (tmp_path / "job.slurm").write_text(SLURM)
    (tmp_path / "requirements.txt").write_text(REQUIREMENTS)
    (tmp_path / "resume.py").write_text('path = "runs/exp/step-10"\n')
    runs = tmp_path / "runs" / "exp"
    for step in (9, 10):
        shutil.copytree(CHECKPOINTS / "plain.dcp", runs / f"step-{step}")
    torch.save({"a": torch.ones(1)}, runs / "step-10.pt")
    torch.save({"lr": 0.1}, runs / "training_args.bin")  # of HF Trainer, and no checkpoint
    return tmp_path


def test_a_repository_of_the_trainer_is_seen(
    trainer: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trainer)
    _, document = run_json("scan", ".")
    assert [(each["path"], each["framework"], each["state"]) for each in document["configs"]] == [
        ("settings.json", "hf", "changes")
    ]
    launches = [
        (each["path"], each["line"], each["framework"], each["state"]) for each in document["launches"]
    ]
    assert launches == [("job.slurm", 2, "accelerate", "changes"), ("run.sh", 3, "hf", "elsewhere")]
    assert [(pin["line"], pin["requirement"], pin["needed"]) for pin in document["pins"]] == [
        (2, "torch==2.1.2", "2.6"),
        (3, "accelerate>=0.20,<1.0", "1.6"),
    ]
    steps = [step["text"] for step in document["steps"]]
    assert "requirements.txt:2" in steps[0]
    commands = [command for step in document["steps"] for command in step["commands"]]
    # Its `--bf16` stands there, and what becomes of it is said there.
    assert "fsdp-migrate config run.sh" in commands
    bare = Path("run.sh").read_text()
    Path("run.sh").write_text(bare.replace(" --bf16", ""))
    assert "config run.sh" not in str(run_json("scan", ".")[1]["steps"])
    Path("run.sh").write_text(bare)
    # Whoever has the settings as flags is told to look before, and to let Accelerate have both at once.
    assert "fsdp-migrate doctor . --model PKG.MOD:FACTORY --config settings.json" in commands
    assert sum(f"{command} --model" in each for each in commands for command in ("plan", "parity")) == 4
    assert main(["plan", "--model", "tests.models:Net", "--config", "job.slurm", "--world-size", "2"]) == 0
    assert not any("accelerator.prepare" in step for step in steps)
    Path("own.py").write_text("# accelerator.prepare(model)\nmodel = accelerator.prepare(model)\n")
    _, document = run_json("scan", ".")
    assert [step["text"].endswith("(own.py:2).") for step in document["steps"]].count(True) == 1
    pair = "opt = SGD([*dit.parameters()])\nvae.eval()\ndit, vae = accelerator.prepare(\n    dit, vae\n)\n"
    tokens = "tk = AutoTokenizer.from_pretrained(p)\n\nmodel, tk = accelerator.prepare(model, tk)\n"
    for text in (pair, pair.replace("prepare(\n", "prepare(opt,\n"), tokens):
        Path("own.py").write_text(text)
        assert "(own.py:3)" in str(run_json("scan", ".")[1]["steps"])
    Path("own.py").write_text("dit.train()\ndit, opt = accelerator.prepare(dit, opt)\n")
    assert "(own.py:2)" not in str(run_json("scan", ".")[1]["steps"])
    Path("own.py").write_text("model = accelerator.prepare_model(model)\nmodel.eval()\n")
    _, document = run_json("scan", ".")
    (step,) = (step["text"] for step in document["steps"] if "own.py:1" in step["text"])
    assert step.startswith("Take models that are not trained out of Accelerate's hands")
    Path("own.py").write_text(
        "class Own(nn.Module):\n    def __init__(self):\n        self.norm = nn.BatchNorm1d(8)\n"
        "net, optimizer = accelerator.prepare(Own(), optimizer)\n"
    )
    Path("launch.sh").write_text("accelerate launch --use_fsdp own.py\n")
    _, document = run_json("scan", ".")
    (step,) = (step["text"] for step in document["steps"] if "own.py:4: Own has" in step["text"])
    assert step.startswith("Write `fsdp_cpu_ram_efficient_loading: false`")
    Path("own.py").write_text("trainer.accelerator.state.fsdp_plugin.ignored_modules = [model.moe]\n")
    (step,) = (each["text"] for each in run_json("scan", ".")[1]["steps"] if "(own.py:1)" in each["text"])
    assert "`ignored_modules` all the same" in step
    Path("launch.sh").unlink()
    # Beside the plugin it gets a comment, which is a step of its own.
    Path("own.py").write_text("Accelerator(fsdp_plugin=made)\nmodel = accelerator.prepare(model)\n")
    _, document = run_json("scan", ".")
    assert "FM449" in str(document)
    assert not any("own.py:2" in step["text"] for step in document["steps"])
    assert main(shlex.split("config job.slurm --write")) == 0
    assert read_config_file("job.slurm.fsdp1").sharding_strategy == "SHARD_GRAD_OP"
    assert "fsdp-migrate config job.slurm --write" in commands
    _, document = run_json("scan", ".")
    assert "fsdp2" in {each["state"] for each in document["launches"]}


def test_the_latest_of_a_run_has_a_target_of_its_own_where_nobody_takes_it_for_the_newest(
    trainer: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trainer)
    _, document = run_json("scan", ".")
    found = {each["path"]: each for each in document["checkpoints"]}
    assert {path for path, each in found.items() if each["is_latest"]} == {
        "runs/exp/step-10",
        "runs/exp/step-10.pt",
    }
    assert found["runs/exp/step-9"]["is_latest"] is False
    assert len({each["target"] for each in found.values()}) == 3
    assert all(each["nbytes"] > 500 for each in found.values())
    assert found["runs/exp/step-10"]["read_by"] == ["resume.py:1"]
    assert found["runs/exp/step-10.pt"]["read_by"] == []
    target = found["runs/exp/step-10"]["target"]
    assert main(["convert", "runs/exp/step-10", target]) == 0
    assert sorted(map(str, Path("runs/exp").glob("step-*"))) == sorted(found)
    _, document = run_json("scan", ".")
    again = {each["path"]: each["is_converted"] for each in document["checkpoints"]}
    assert again == {"runs/exp/step-10": True, "runs/exp/step-10.pt": False, "runs/exp/step-9": False}
    commands = [command for step in document["steps"] for command in step["commands"]]
    assert not any("runs/exp/step-10 " in command for command in commands)


@pytest.mark.parametrize("given", [("out20",), ("hf", "--to", "hf")])
def test_what_was_converted_is_known_wherever_it_lies(
    trainer: Path,
    given: tuple[str, ...],
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(trainer)
    assert main(["convert", "runs/exp/step-10.pt", *given]) == 0
    _, document = run_json("scan", ".")
    assert {each["path"].partition("/")[0]: each["is_fsdp2s"] for each in document["checkpoints"]} == {
        "runs": False,
        given[0]: True,
    }
    assert given[0] not in str(document["steps"])


@pytest.mark.parametrize("old", ["old-3.pt", "README.md"])
def test_where_every_source_was_rewritten_what_lies_beside_tells_what_is_older(
    tmp_path: Path, old: str, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    """A project of one script was taken for one that was copied as a whole."""
    state = {"model": {"a": torch.ones(1)}}
    for name, time in {"train.py": 1000, "train.py.fsdp1": 1000, old: 900, "new-6.pt": 1100}.items():
        path = tmp_path / name
        if name.endswith(".pt"):
            torch.save(state, path)
        else:
            path.write_text(CODE if name.endswith(".fsdp1") else "model = prepare_fully_shard(net, {})\n")
        os.utime(path, (time, time))

    def are_fsdp2s() -> dict[str, bool]:
        found = run_json("scan", str(tmp_path))[1]["checkpoints"]
        return {Path(each["path"]).name: each["is_fsdp2s"] for each in found}

    assert are_fsdp2s()["new-6.pt"] is True
    os.utime(tmp_path / old, (1001, 1001))
    assert not any(are_fsdp2s().values()), "all of it was copied at one time"


def test_what_the_migrated_run_has_saved_needs_nothing(
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was listed for `inspect`, `convert` and `verify` for ever, and so was what was converted."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("model = prepare_fully_shard(net, {})\n")
    Path("train.py.fsdp1").write_text(CODE)
    Path("model.py").write_text("x = 1\n")
    times = {"model.py": 100, "train.py.fsdp1": 1000, "old-3.pt": 900, "new-6.pt": 2000, "other/a-1.pt": 900}
    times["fsdp2/gone-3.pt"] = 1500
    for name, time in times.items():
        Path(name).parent.mkdir(exist_ok=True)
        if name.endswith(".pt"):
            torch.save({"model": {"a": torch.ones(1)}}, name)
        os.utime(name, (time, time))
    _, document = run_json("scan", ".")
    assert {each["path"]: each["is_fsdp2s"] for each in document["checkpoints"]} == {
        "fsdp2/gone-3.pt": True,
        "new-6.pt": True,
        "old-3.pt": False,
        "other/a-1.pt": False,
    }
    main(["scan", "."])
    assert "new-6.pt: full state in one file, " in (shown := capsys.readouterr().out)
    assert "taken for FSDP2's: saved since" in shown
    assert "`fsdp-migrate inspect CKPT` says how it is loaded" in " ".join(shown.split())
    title = layout_title("ranks")
    of_ranks = CheckpointFound("late", title[0].lower() + title[1:], saved=2000)
    assert of_ranks.is_of_ranks
    (late,) = saved_since([of_ranks], 1000)
    assert not late.is_fsdp2s, "FSDP2 saves no files of ranks"
    steps = document["steps"]
    assert steps[0]["text"].startswith("If another run has still to go on under FSDP2: see whether")
    assert "new-6" not in str(steps)
    assert "start the run" not in str(steps)
    for name in ("old-3.pt", "other/a-1.pt"):
        Path(name).unlink()
    assert run_json("scan", ".")[1]["steps"] == []
    # The name of a folder above what is looked through says nothing.
    assert "inspect" in str(run_json("scan", "fsdp2")[1]["steps"])
    # A copy of all of it is young as a whole, and tells nothing.
    os.utime("model.py", (999, 999))
    found = run_json("scan", ".")[1]["checkpoints"]
    assert {each["path"]: each["is_fsdp2s"] for each in found} == {"fsdp2/gone-3.pt": True, "new-6.pt": False}


def test_no_command_names_a_checkpoint_that_cannot_be_read(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank's part in the folder of the sources made `convert . fsdp2` of it; one was cut off."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CODE)
    torch.save({"a": torch.ones(1)}, "model_world_size_2_rank_1.pt")
    for number in (9, 10):
        shutil.copytree(CHECKPOINTS / "plain.dcp", f"runs/step-{number}")
    _, document = run_json("scan", ".")
    assert "runs/step-10" in str(document["steps"])
    Path("runs/step-10/.metadata").unlink()
    _, document = run_json("scan", ".")
    found = {each["path"]: each["layout"] for each in document["checkpoints"]}
    assert found["."].startswith("incomplete or ambiguous (")
    assert found["runs/step-10"].endswith("without its .metadata")
    typed = [command for step in document["steps"] for command in step["commands"]]
    assert [each for each in typed if " inspect " in each] == ["fsdp-migrate inspect runs/step-9"]
    assert not [each for each in typed if " convert . " in each or "step-10" in each]


def test_the_last_steps_start_the_run_and_publish(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the run is started as before, by what it is measured, and how weights are exported."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CODE)
    Path("base").mkdir()
    Path("base", "config.json").write_text('{"model_type": "qwen2", "architectures": ["Q"]}')
    for number in range(4):
        shutil.copytree(CHECKPOINTS / "plain.dcp", f"runs/exp{number}/step-1")
        os.utime(f"runs/exp{number}/step-1/.metadata", (number + 1e10, number + 1e10))
    steps = run_json("scan", ".")[1]["steps"]
    # `--config` is spoken of where it is to be typed first.
    assert "fsdp.yaml is a file that you write" in steps[1]["text"]
    assert "--config fsdp.yaml" in steps[1]["commands"][0]
    assert "fsdp.yaml" not in steps[0]["commands"][0]
    [*_, look, convert, start, publish] = steps
    assert look["commands"][0] == "fsdp-migrate inspect runs/exp3/step-1"
    assert convert["commands"] == []
    assert convert["text"].startswith("No conversion is needed of runs/exp3/step-1, runs/exp2/step-1, ")
    assert start["text"].startswith("Then start the run as before")
    # Nothing here is HF Trainer's.
    assert "If it clips gradients, compare losses and not bits" in start["text"]
    assert "Lightning" not in start["text"]
    assert publish["commands"] == [
        "fsdp-migrate convert runs/exp3/step-1 OUT --to hf --hf-config base",
    ]
    Path("runs/exp3/step-1/trainer_state.json").write_text("{}")
    start = run_json("scan", ".")[1]["steps"][-2]
    assert "If it clips gradients, as HF Trainer does by default, compare" in start["text"]
    Path("runs/exp3/step-1/trainer_state.json").unlink()
    start = run_json("scan", ".")[1]["steps"][-2]
    shutil.rmtree("base")
    Path("runs/exp3/step-1/meta.pt").write_bytes(b"")
    start = run_json("scan", ".")[1]["steps"][-1]
    assert "an FSDP1 run that is resumed from the same checkpoint" in start["text"]
    # A script of Lightning's holds no FSDP1 any more once it is rewritten.
    Path("train.py").write_text("x = 1\n")
    assert run_json("scan", ".")[1]["steps"][-1] == start


def test_weights_of_the_new_run_are_published_too(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step went away once the new run had saved something."""
    monkeypatch.chdir(tmp_path)
    Path("fsdp.yaml").write_text(ACCELERATE)
    assert main(["config", "fsdp.yaml", "--write"]) == 0
    for number, saved in ((1, 1e8), (2, 1e10)):
        shutil.copytree(CHECKPOINTS / "plain.dcp", f"runs/old{number}/step-1")
        Path(f"runs/old{number}/step-1/trainer_state.json").write_text("{}")
        for file in Path(f"runs/old{number}/step-1").iterdir():
            os.utime(file, (saved, saved))
    found = run_json("scan", ".")[1]
    assert [each["is_fsdp2s"] for each in found["checkpoints"]] == [False, True]
    [publish] = [each for each in found["steps"] if "To publish the weights" in each["text"]]
    assert publish["commands"] == ["fsdp-migrate convert runs/old2/step-1 OUT --to hf --hf-config DIR"]


def test_several_scripts_are_compared_each_and_ours_is_installed(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One command stood for four scripts, and without requirements nothing said what to install."""
    monkeypatch.chdir(tmp_path)
    runs = "\nif __name__ == '__main__':\n    loss.backward()\n"
    Path("pretrain.py").write_text(CODE + runs)
    Path("finetune.py").write_text(CODE + runs)
    texts = [each["text"] for each in run_json("scan", ".")[1]["steps"]]
    [compare] = [each for each in texts if each.startswith("Compare a short run")]
    assert compare.endswith("Do so with each script that trains: finetune.py, pretrain.py.")
    [install] = [each for each in texts if "rewritten sources import it" in each]
    assert install.startswith("Install `fsdp-migrate` wherever the project runs")
    Path("finetune.py").unlink()
    Path("requirements.txt").write_text("fsdp-migrate\n")
    texts = [each["text"] for each in run_json("scan", ".")[1]["steps"]]
    assert not any("each script that trains" in each or "sources import it" in each for each in texts)


@pytest.mark.parametrize(
    ("call", "is_ours"),
    [("self.trainer.model.clip_grad_norm_(1.0)", True), ("self.trainer.clip_gradients(optimizer)", False)],
)
def test_ours_is_required_too_where_a_framework_shards(
    call: str,
    is_ours: bool,
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`rewrite` imports `fsdp_migrate.runtime` there as well; the last line of `rewrite` alone said so."""
    monkeypatch.chdir(tmp_path)
    Path("requirements.txt").write_text("lightning\n")
    Path("lit.py").write_text(
        "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n\n\n"
        "class Lit(L.LightningModule):\n    def configure_gradient_clipping(self, optimizer, *args):\n"
        f"        {call}\n\n\n"
        'L.Trainer(strategy=FSDPStrategy(sharding_strategy="FULL_SHARD")).fit(Lit())\n'
    )
    texts = [each["text"] for each in run_json("scan", ".")[1]["steps"]]
    assert any(each.startswith("Add `fsdp-migrate` to requirements.txt") for each in texts) is is_ours


def test_the_end_of_a_group_that_may_be_gloos_is_a_step(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`doctor` and README alone named it; `rewrite` leaves the call."""
    monkeypatch.chdir(tmp_path)
    begins, ends = (
        "import torch.distributed as dist\ndist.init_process_group({})\n",
        "dist.destroy_process_group()\n",
    )
    for kind, own, is_said in (
        ("'gloo'", ends, True),
        ("", ends, True),
        ("'nccl'", ends, False),
        ("'gloo'", "end_process_group()\n", False),
        ("'gloo'", f"# {ends}", False),
    ):
        Path("train.py").write_text(CODE + begins.format(kind) + own)
        texts = [each["text"] for each in run_json("scan", ".")[1]["steps"]]
        assert any(each.startswith("Write `end_process_group()`") for each in texts) is is_said, (kind, own)
    Path("train.py").write_text(begins.format("'gloo'") + ends)
    assert "end_process_group" not in str(run_json("scan", ".")[1]["steps"]), "nothing is turned here"


def test_a_copy_that_is_there_is_not_laid_into(
    tmp_path: Path, run_json: Callable[..., tuple[int, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cp -r . ../before` exits with 0 and mixes two projects where `../before` is another one's."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("train.py").write_text(CODE)
    typed = [command for each in run_json("scan", ".")[1]["steps"] for command in each["commands"]]
    assert "cp -r . ../before" in typed
    (tmp_path / "before").mkdir()
    steps = run_json("scan", ".")[1]["steps"]
    assert not [command for each in steps for command in each["commands"] if command.startswith("cp")]
    assert any("../before is there already." in each["text"] for each in steps)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("runs/step-10/state.pt", "runs-fsdp2/step-10/state"),
        ("step-10/state.pt", "fsdp2/step-10/state"),
        ("runs/exp-1/step-10", "runs/exp-1-fsdp2/step-10"),
        ("runs/llama-7b/state.pt", "runs/llama-7b-fsdp2/state"),
    ],
)
def test_a_folder_that_counts_is_not_made_anew_beside_the_others_of_its_run(path: str, target: str) -> None:
    assert target_of(path, set()) == target


def test_people_see_the_latest_and_how_large_it_is(trainer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(trainer)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 older one of the same runs; --all shows it." in said
    assert " kB, named in " in said
    assert "No conversion is needed of " in said
    assert ": torch.load in a script that is turned or fsdp_migrate's `load_checkpoint(" in said
    assert main(["scan", str(trainer), "--all"]) == 0
    assert "step-9" in capsys.readouterr().out


def test_the_order_of_work_comes_first_and_says_how_much_and_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    for name in ("one.py", "two.py"):
        Path(name).write_text(f"{head}model = FSDP(net)\nmodel.clip_grad_norm_(1.0)\n")
    assert main(["scan", "."]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("What to do\n1. See which known faults")
    assert "\n5. Look at the changes" in shown
    assert "write them: 6 uses in 2 files." in shown
    assert "Nothing was found that cannot be migrated." in shown
    assert shown.index("What to do") < shown.index("Done by `fsdp-migrate rewrite`")
    Path("two.py").write_text(f"{head}FSDP(net).register_comm_hook(None, hook)\n")
    assert main(["scan", ".", "--markdown", "scan.md"]) == 0
    shown = capsys.readouterr().out
    assert "Turned by no command" in shown
    assert "two.py:2:1" in shown[: shown.index("To be done by hand")]
    assert "Turned by no command" in Path("scan.md").read_text()
    Path("two.py").write_text("x = 1\n")
    Path("one.py").unlink()
    assert main(["scan", "."]) == 0
    assert capsys.readouterr().out == "No FSDP1 in 1 file.\n"


def test_a_settings_file_that_is_converted_leaves_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sft.py").write_text(
        "from transformers import TrainingArguments\n"
        'args = TrainingArguments("out", fsdp="full_shard auto_wrap", fsdp_config="fsdp.json")\n'
    )
    Path("fsdp.json").write_text('{"fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}')
    assert main(["scan", "."]) == 0
    before = capsys.readouterr().out
    assert "FM327" in before
    assert "fsdp-migrate config fsdp.json --from hf --write" in before
    assert main(["config", "fsdp.json", "--write"]) == 0
    capsys.readouterr()
    assert main(["scan", "."]) == 0
    after = capsys.readouterr().out
    assert "cannot be migrated as it stands" not in after.lower()
    assert "--from hf --write" not in after


def test_sarif_is_printed_and_takes_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", ".", "--sarif", "s.sarif"]) == 2
    assert "Write `--sarif > s.sarif`" in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(("strict", "code"), [("false", 0), ("true", 3)])
def test_the_action_writes_a_log_and_a_summary(strict: str, code: int, tmp_path: Path) -> None:
    """The step of action.yml that scans, as GitHub runs it, with the command that is installed here."""
    action = YAML(typ="safe").load((ROOT / "action.yml").read_text())
    step = action["runs"]["steps"][-1]
    command = tmp_path / "fsdp-migrate" / "bin" / "fsdp-migrate"
    command.parent.mkdir(parents=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fsdp_migrate "$@"\n')
    command.chmod(0o755)
    (tmp_path / "my sources").mkdir()
    (tmp_path / "my sources" / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)\n"
    )
    own = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    given = {"PATHS": "my sources\n", "SARIF": "found.sarif", "STRICT": strict}
    assert given.keys() == step["env"].keys()
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(
        shell, cwd=tmp_path, env={**os.environ, **own, **given}, check=False, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    results = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    assert {each["ruleId"] for each in results} >= {"FM301"}
    assert "FM301" in (tmp_path / "summary.md").read_text()


def test_a_config_that_a_launch_line_names_has_the_command_that_converts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("conf").mkdir()
    for name in ("fsdp.json", "conf/other.json"):
        Path(name).write_text('{"backward_prefetch": "backward_pre", "forward_prefetch": "true"}')
    line = "torchrun train.py --output_dir o --fsdp full_shard --fsdp_config {} --bf16\n"
    Path("run.sh").write_text(line.format("$HERE/fsdp.json") + line.format("conf/missing.json"))
    commands = [command for step in run_json("scan", ".")[1]["steps"] for command in step["commands"]]
    assert "fsdp-migrate config fsdp.json --from hf --write" in commands
    assert "fsdp-migrate config conf/other.json" in commands
    assert main(["config", "fsdp.json", "--from", "hf", "--write"]) == 0
    steps = str(run_json("scan", ".")[1]["steps"])
    assert "--from hf" not in steps


@pytest.mark.parametrize("version", [None, 1])
def test_what_a_trainers_config_without_version_runs_is_said_by_version(
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    version: int | None,
) -> None:
    """From transformers 5.10 on it runs FSDP2 before anything is converted."""
    monkeypatch.chdir(tmp_path)
    inner = {"transformer_layer_cls_to_wrap": ["Block"], **({} if version is None else {"version": version})}
    given = {"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": inner}
    Path("args.json").write_text(json.dumps(given))
    Path("fsdp.json").write_text(json.dumps(inner))
    Path("run.sh").write_text("torchrun t.py --output_dir x --fsdp full_shard --fsdp_config fsdp.json\n")
    _, document = run_json("scan", ".")
    [said] = [step["text"] for step in document["steps"] if "Do it before" in step["text"]]
    assert ("HF Trainer itself runs FSDP1 by args.json, fsdp.json before transformers 5.10" in said) is (
        version is None
    )
    assert ('`"version": 1`' in said) is (version is None)
    assert ("FSDP1 runs by it" in said) is (version is not None)
    for name in ("args.json", "fsdp.json"):
        Path(name).unlink()
    flags = f" --fsdp_config '{json.dumps(inner)}'" if version else ""
    Path("run.sh").write_text(f"torchrun t.py --output_dir x --fsdp full_shard{flags}\n")
    _, document = run_json("scan", ".")
    [said] = [step["text"] for step in document["steps"] if "Do it before" in step["text"]]
    assert ("HF Trainer itself runs FSDP1 by run.sh before" in said) is (version is None)


OF_AXOLOTL = "base_model: x\ndatasets: [a]\nfsdp:{}\nfsdp_config:\n"
OF_ACCELERATE = "compute_environment: LOCAL_MACHINE\ndistributed_type: {}\nfsdp_config:\n  fsdp_version: 1\n"


@pytest.mark.parametrize(
    ("config", "is_said"),
    [
        (OF_AXOLOTL.format(""), False),
        # It prepares what it trains itself, and runs no script of the project's.
        (OF_AXOLOTL.format(" full_shard auto_wrap"), False),
        (OF_ACCELERATE.format("MULTI_GPU"), False),
        (OF_ACCELERATE.format("FSDP"), True),
    ],
)
def test_a_config_that_asks_accelerate_for_nothing_makes_no_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    config: str,
    *,
    is_said: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(config)
    Path("eval.py").write_text(
        "from accelerate import Accelerator\n\n\ndef main(model):\n    accelerator = Accelerator()\n"
        "    model = accelerator.prepare(model)\n    model.eval()\n"
    )
    assert main(["scan", ".", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert ("out of Accelerate's hands" in str(steps)) is is_said


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_of_the_work_is_longer_than_the_screen(
    trainer: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(trainer)
    assert main(["convert", "runs/exp/step-10", "elsewhere"]) == 0
    capsys.readouterr()
    assert main(["scan", "."]) == 0
    out = capsys.readouterr().out
    # Commands stay in one line, to be copied, and so do places with what stands there, to be opened.
    texts = [
        line
        for line in out.splitlines()
        if "fsdp-migrate " not in line and "python" not in line and not re.match(r"  \S+:\d+:\d+: FM", line)
    ]
    assert max(map(len, texts)) <= width
    assert "\nConfigs\n" in out
    assert "\nelsewhere: distributed checkpoint (DCP), " in out
    assert len(texts) > 5


def test_a_switch_of_the_project_that_is_off_is_said_to_be_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(CODE)
    (tmp_path / "a.yml").write_text("common:\n  use_fsdp: 0\n")
    main(["scan", str(tmp_path)])
    assert "a.yml: stays: FSDP is off here" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("is_given", [False, True])
def test_a_config_that_composers_callback_reads_is_not_to_be_converted(
    tmp_path: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_given: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    named = "from fsdp_migrate.adapters.composer_callback import FSDP2Migration\n" if is_given else ""
    call = 'Trainer(model=m, parallelism_config={"fsdp": cfg["fsdp_config"]})\n'
    Path("train.py").write_text(f"from composer import Trainer\n{named}{call}")
    block = "max_duration: 8ba\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n  state_dict_type: sharded\n"
    Path("run.yaml").write_text(block)
    command = "fsdp-migrate config run.yaml --write"
    steps = [each for each in run_json("scan", ".")[1]["steps"] if command in each["commands"]]
    assert [each["text"].startswith("Leave Composer's run.yaml as it is if") for each in steps] == (
        [] if is_given else [True]
    )
    Path("train.py").unlink()
    [step] = [each for each in run_json("scan", ".")[1]["steps"] if command in each["commands"]]
    assert step["text"].startswith("Convert 1 config; a backup of each is kept. Read what each says")


@pytest.mark.slow
def test_lines_of_other_files_that_read_a_checkpoint_are_told_what_they_need(
    repository: Path,
    run_json: Callable[..., tuple[int, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the number is put in when it runs, as in a function of another file."""
    monkeypatch.chdir(repository)
    Path("policies.py").write_text(
        "def restore(policy, folder, step):\n"
        '    state = torch.load(os.path.join(folder, f"policy_{step}.pt"))\n'
        "    policy.load_state_dict(state)\n"
        "\n"
        "def resume(folder):\n"
        '    dcp.load(state, checkpoint_id=folder + "/plain.dcp")\n'
    )
    torch.save({"up.weight": torch.ones(2)}, "runs/policy_40.pt")
    document = run_json("scan", ".")[1]
    read = {each["path"]: each["read_by"] for each in document["checkpoints"]}
    assert read == {"runs/policy_40.pt": ["policies.py:2"], "runs/plain.dcp": ["policies.py:6"]}
    [step] = [each for each in document["steps"] if each["text"].startswith("No conversion is needed of")]
    assert "runs/policy_40.pt: torch.load" in step["text"]
    assert "runs/plain.dcp: dcp.load" in step["text"]
    # What the heads do not say is asked of `inspect`, and then those lines are to be changed.
    Path("runs/policy_40.pt").write_bytes(Path("runs/policy_40.pt").read_bytes()[:-20])
    Path("runs/plain.dcp/.metadata").write_bytes(b"no pickle")
    steps = run_json("scan", ".")[1]["steps"]
    [step] = [each for each in steps if each["text"].startswith("Only where `inspect`")]
    stays = "policies.py:2 names runs/policy_40.pt, which stays where it is: convert nothing for that."
    assert stays in step["text"]
    assert "Where you convert runs/plain.dcp, let policies.py:6 lead to runs-fsdp2/plain" in step["text"]
