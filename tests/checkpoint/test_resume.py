"""A conversion that was killed leaves nothing that looks whole, and another one goes on with it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint
from fsdp_migrate.errors import OutputExistsError
from tests.checkpoint.partial import WORK, leave_partial, save_source
from tests.checkpoint.samples import PLAIN, assert_nothing_left, contents, save_with_torch
from tests.ranks import ROOT


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_source(tmp_path)


def kill_at(
    source: Path,
    folder: Path,
    wishes: list[dict[str, Any]],
    *,
    again: bool = False,
    every: int = 1,
    more: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """Kill conversions at their moments, in a process of their own, and return what was found of each."""
    folder.mkdir()
    command = [sys.executable, "-m", "tests.checkpoint.kill_points", str(folder), str(source)]
    command += [json.dumps(wishes), "again" if again else "once", "64", str(every), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({"world_size": 2}, False),
        ({"world_size": 2, "overwrite": True, "checksums": True}, True),
        ({}, False),
    ],
    ids=str,
)
def test_killed_at_every_moment(options: dict[str, Any], again: bool, source: Path, tmp_path: Path) -> None:
    (found,) = kill_at(source, tmp_path / "work", [options], again=again)
    assert found["wrong"] == []
    assert found["moments"] >= 30


def test_killed_at_every_moment_while_it_writes_past_the_page_cache(tmp_path: Path) -> None:
    state = {"model": {"a": torch.arange(5000.0).reshape(100, 50), "b": torch.ones(3)}, "step": 3}
    source = save_with_torch(state, tmp_path / "source")
    (found,) = kill_at(source, tmp_path / "work", [{"world_size": 2}], more=("direct",))
    assert found["wrong"] == []
    assert found["moments"] >= 40


def test_killed_whoever_the_output_is_for(tmp_path: Path) -> None:
    """Every target has files of its own: folders, `meta.pt`, `scheduler.bin`, safetensors."""
    parameter = torch.arange(24.0).reshape(6, 4)
    optimizer = {
        "state": {"a": {"exp_avg": parameter, "step": torch.tensor(2.0)}},
        "param_groups": [{"lr": 0.1, "params": ["a"]}],
    }
    state = {"model": {"a": parameter}, "optim": optimizer, "scheduler": {"last_epoch": 2, "_step_count": 3}}
    source = save_with_torch(state, tmp_path / "source")
    targets = ("composer", "accelerate", "lightning", "torchtitan", "hf")
    wishes = [{"to": to, "world_size": None if to == "hf" else 2} for to in targets]
    wishes.append({"to": "accelerate", "state_dict_type": "full", "checksums": True})
    for to, found in zip(
        (*targets, "full"), kill_at(source, tmp_path / "work", wishes, every=8), strict=True
    ):
        assert found["wrong"] == [], to
        assert found["moments"] >= 4, to


def kill(source: Path, out: Path, seconds: float, **options: Any) -> None:
    """Start a conversion and kill it after some time, wherever it is."""
    code = (
        "import json, sys; from fsdp_migrate.checkpoint_convert import convert_checkpoint, convert;"
        "from fsdp_migrate.checkpoint_convert.execution import execute;"
        "print('ready', flush=True); convert_checkpoint(*sys.argv[1:3], **json.loads(sys.argv[3]))"
    )
    command = [sys.executable, "-c", code, str(source), str(out), json.dumps(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.kill()


def test_killed_at_any_time(tmp_path: Path) -> None:
    source, before = PLAIN, contents(PLAIN)
    convert_checkpoint(source, tmp_path / "out", world_size=5)
    wanted = contents(tmp_path / "out")
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for number in range(6):
        out = tmp_path / str(number) / "out"
        kill(source, out, chance.uniform(0, 0.08), world_size=5)
        assert contents(source) == before
        if not out.exists():
            convert_checkpoint(source, out, world_size=5, resume=True)
        found = contents(out)
        # The metadata names the folder.
        assert {n: d for n, d in found.items() if n != ".metadata"} == {
            n: d for n, d in wanted.items() if n != ".metadata"
        }, seed
        assert len(found) == len(wanted)


def test_what_is_left_is_named_and_not_touched(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_partial(source, tmp_path, monkeypatch, world_size=3)
    before = contents(tmp_path / WORK)
    with pytest.raises(OutputExistsError, match=r"--resume.*--overwrite") as caught:
        convert_checkpoint(source, tmp_path / "out", world_size=3)
    assert WORK in str(caught.value)
    assert contents(tmp_path / WORK) == before
    convert_checkpoint(source, tmp_path / "out", world_size=2, overwrite=True)
    assert_nothing_left(tmp_path, "source", "out")
