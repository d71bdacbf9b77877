"""The command ``doctor``: it looks at what it is given, and says which known faults are there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.doctor import FAULTS, look


if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.any_torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import copy\nmodel = make('meta')\naverage = copy.deepcopy(model)\n")
    (tmp_path / "plain.yaml").write_text("auto_wrap_policy: [Embedding, Linear]\nuse_orig_params: true\n")
    return tmp_path


def test_what_is_seen_is_said_with_what_to_do(folder: Path, capsys: Capture) -> None:
    given = ["--model", "tests.models:tied_net", "--config", str(folder / "plain.yaml")]
    assert main(["doctor", str(folder), *given, "--world-size", "2"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for expected in (
        "deepcopy-of-shards",
        f"seen: {folder}/train.py:3",
        "what to do: Use `fsdp_migrate.runtime.clone_parameters`",
        "https://github.com/pytorch/pytorch/issues/149138",
        "`embed.weight`, `head.out.weight` are one parameter",
        "More can be seen with --checkpoint CKPT.",
        f"({len(FAULTS)} are known).",
        "These hit you where a framework's own FSDP2 shards the model",
        "more do where a framework's own FSDP2 shards the model",
    ):
        assert expected in shown
    assert main(["doctor", str(folder), "--strict"]) == 3


def test_the_diagnosis_as_json(folder: Path, capsys: Capture) -> None:
    assert main(["doctor", str(folder / "train.py"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["looked_at"] == ["environment", "sources"]
    assert "deepcopy-of-shards" in {each["name"] for each in document["symptoms"]}
    assert document["versions"]["torch"]


def test_a_model_that_cannot_be_planned_does_not_stop_the_rest(folder: Path, capsys: Capture) -> None:
    (folder / "plain.yaml").write_text("auto_wrap_policy: [NoSuchClass]\n")
    given = ["--model", "tests.models:tied_net", "--config", str(folder / "plain.yaml")]
    assert main(["doctor", *given]) == 0
    shown = capsys.readouterr().out
    assert "The model cannot be planned: No module of class `NoSuchClass`" in shown
    assert "ties-torn-on-meta" in shown


def test_settings_are_read_with_the_framework_that_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"
        "fsdp_config: {fsdp_sharding_strategy: NO_SHARD, fsdp_state_dict_type: FULL_STATE_DICT}\n"
    )
    sight = look(config=path)
    assert (sight.framework, sight.setting("state_dict_type")) == ("accelerate", "FULL_STATE_DICT")
    assert sight.config is not None
    assert sight.config.sharding_strategy == "NO_SHARD"


def test_what_is_not_there_is_refused(capsys: Capture) -> None:
    assert main(["doctor", "no-such-folder"]) == 1
    assert "There is nothing at 'no-such-folder'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("counts", "given", "shards"),
    [
        ("num_processes: 2\nnum_machines: 1\n", [], 2),
        ("num_processes: 2\n", ["--world-size", "4"], 4),
        ("", [], 8),
    ],
)
def test_a_model_is_planned_for_the_ranks_of_its_config(
    counts: str, given: list[str], shards: int, tmp_path: Path, capsys: Capture
) -> None:
    config = tmp_path / "a.yaml"
    config.write_text(f"distributed_type: FSDP\n{counts}fsdp_config:\n  fsdp_auto_wrap_policy: NO_WRAP\n")
    asked = ["--model", "tests.doctor.sights:one_row", "--config", str(config), *given]
    assert main(["doctor", *asked]) == 0
    assert f"with fewer rows than the {shards} shards" in " ".join(capsys.readouterr().out.split())
