"""What ``rewrite`` left to a person stops a run at its start, not at its first save."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.errors import SourceError
from fsdp_migrate.left_comments import MARK
from fsdp_migrate.sharding.unsettled import refuse_unsettled, unsettled_in


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def save(model, kind):
    with FSDP.state_dict_type(model, kind):
        return model.state_dict()

def train(kind):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    print("the run has started", flush=True)
    state = save(model, kind)
    from fsdp_migrate.runtime import end_process_group
    end_process_group()

if __name__ == "__main__":
    train(StateDictType.FULL_STATE_DICT if len(__file__) > 3 else StateDictType.SHARDED_STATE_DICT)
"""


def run(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=400
    )


def test_what_is_left_stops_the_run_at_its_start(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main(["rewrite", str(script), "--write"]) == 0
    after = script.read_text()
    (line,) = (number for number, text in enumerate(after.splitlines(), 1) if "# fsdp-migrate: FM307" in text)
    done = run(script)
    assert done.returncode != 0
    assert "the run has started" not in done.stdout
    assert f"{script}:{line} FM307" in done.stderr
    assert "fsdp-migrate explain FM307" in done.stderr
    assert "KeyError" not in done.stderr
    # Settled, and the comment deleted.
    settled = after.splitlines()
    start = line - 1
    settled[start : start + 3] = ["    return model.state_dict()"]
    script.write_text("\n".join(settled))
    done = run(script)
    assert done.returncode == 0, done.stderr
    assert "the run has started" in done.stdout


def test_a_module_of_the_run_counts_and_what_is_installed_does_not(tmp_path: Path) -> None:
    (tmp_path / "saving.py").write_text(f"{MARK}FM307 its type is known only when this runs.\nx = 1\n")
    (tmp_path / "main.py").write_text(
        "import saving\nfrom fsdp_migrate import prepare_fully_shard\nfrom torch import nn\n"
        "prepare_fully_shard(nn.Linear(2, 2))\n"
    )
    done = run(tmp_path / "main.py")
    assert "saving.py:1 FM307" in done.stderr
    assert "left 1 use of FSDP1 to you" in done.stderr


def test_modules_that_come_go_and_take_a_name_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at is not looked at again: but what was loaded since, also by a name that was there."""

    def load(name: str, file: str) -> None:
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, module)

    (tmp_path / "plain.py").write_text("x = 1\n")
    for left in ("one.py", "two.py"):
        (tmp_path / left).write_text(f"{MARK}FM307 its type is known only when this runs.\n")
    refuse_unsettled()
    load("own_one", "plain.py")
    load("own_two", "one.py")
    with pytest.raises(SourceError, match=r"one\.py:1 FM307"):
        refuse_unsettled()
    monkeypatch.delitem(sys.modules, "own_two")
    refuse_unsettled()
    load("own_one", "two.py")
    with pytest.raises(SourceError, match=r"two\.py:1 FM307"):
        refuse_unsettled()
    load("own_one", "plain.py")
    refuse_unsettled()


KEPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from fsdp_migrate.runtime import end_process_group

def train():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = nn.Linear(4, 4)
    BEFORE
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=ORIG)
    AFTER
    print("the run has started", flush=True)
    model(torch.ones(2, 4)).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(kept, 1e-6)
    if isinstance(norm, torch.Tensor):
        print("clipped", float(norm), flush=True)
    optimizer.step()
    end_process_group()

if __name__ == "__main__":
    train()
"""
LIST = "kept = list(net.parameters())"
ADAM = "optimizer = torch.optim.AdamW({}.parameters())"


@pytest.mark.parametrize(
    ("before", "after", "flags", "stops"),
    [
        # Clipping by the old list does nothing, without an error.
        (LIST, ADAM.format("model"), "True", True),
        (ADAM.format("net"), LIST.replace("net", "model"), "False", False),
        ("", f"{LIST.replace('net', 'model')}; {ADAM.format('model')}", "True", False),
    ],
    ids=["a list from before", "an optimizer that trains now", "all of it from after"],
)
def test_what_holds_old_parameters_stops_the_run(
    tmp_path: Path, before: str, after: str, flags: str, *, stops: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(KEPT.replace("BEFORE", before).replace("AFTER", after).replace("ORIG", flags))
    assert main(["rewrite", str(script), "--write"]) == 0
    assert ("# fsdp-migrate: FM446" in script.read_text()) is stops
    done = run(script)
    assert ("FM446" in done.stderr) is stops
    assert ("the run has started" in done.stdout) is not stops, done.stderr
    assert (done.returncode != 0) is stops, done.stderr
    # The new parameters have gradients: what is clipped is theirs.
    assert stops or float(done.stdout.split()[-1]) > 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{MARK}FM307 a\n    {MARK}FM317 b\n", [(1, "FM307")]),
        (f"if x:\n    {MARK}FM317 b\n    y()\n", [(2, "FM317")]),
        (f"{MARK}FM326 the norm is another one\n{MARK}FM315 note\n{MARK}FM302 note\n", []),
        (f"{MARK}FM335 a check\n{MARK}FM423 a hook\n", [(1, "FM335"), (2, "FM423")]),
        (f"{MARK}FM318 groups by names\n", [(1, "FM318")]),
        (f"{MARK}FM445 an optimizer's step\n{MARK}FM451 at the end\n", [(1, "FM445")]),
        (f"{MARK}FM446 a list from before\n{MARK}FM453 it trains now\n", [(1, "FM446")]),
        (f"{MARK}FM334 shown\n{MARK}FM336 refused\n{MARK}FM420 a branch\n{MARK}FM424 a mock\n", []),
        (f"{MARK}FM319 Lightning\n{MARK}FM328 Composer\n", []),
        (f'text = """\n{MARK}FM307 in a string\n"""\n', []),
        (f"{MARK}FM308 left\n", [(1, "FM308")]),
        ("def broken(:\n", []),
    ],
)
def test_what_counts_as_left(tmp_path: Path, text: str, expected: list[tuple[int, str]]) -> None:
    path = tmp_path / "a.py"
    path.write_text(text)
    assert list(unsettled_in(path))[: len(expected) or None] == expected
