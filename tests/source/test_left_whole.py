"""Runs of which each wrap is left to a person: nothing else is turned, and they save as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP

from fsdp_migrate.cli import main
from fsdp_migrate.source import rewrite_paths, rewrite_source, scan_paths
from fsdp_migrate.source.left_whole import are_mixed
from fsdp_migrate.source.still_fsdp1 import said_of_still
from tests.ranks import run_ranks
from tests.source.samples import MARK


IMPORTS = """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType
"""
WRAP = """

def make():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    for i, layer in enumerate(net):
        net[i] = FSDP(layer, device_id=torch.device("cpu"))
    return FSDP(net, device_id=torch.device("cpu"))
"""
TURNED_WRAP = """

def make():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    return FSDP(net, device_id=torch.device("cpu"))
"""
ANOTHER = "\n\nplain = torch.nn.Linear(4, 2)\nplain = FSDP(plain)\n"
STATES = """

def units(net):
    return len(FSDP.fsdp_modules(net))


def save(net, optimizer):
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
        weights = net.state_dict()
    return {"net": weights, "optim": FSDP.full_optim_state_dict(net, optimizer, rank0_only=False)}


def load(net, optimizer, state):
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=False)):
        net.load_state_dict(state["net"])
    optimizer.load_state_dict(FSDP.shard_full_optim_state_dict(state["optim"], net))
"""
SETTLED = """

def make():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    policy = {"transformer_layer_cls": ["Linear"]}
    return prepare_fully_shard(net, {"auto_wrap_policy": policy, "device_id": torch.device("cpu")})
"""
OURS = "from fsdp_migrate import prepare_fully_shard\n"


def _trained(text: str) -> tuple[list[str], int, bool]:
    """Return what a script saves, in how many units, and whether its model is FSDP2's."""
    names: dict[str, Any] = {}
    exec(text, names)
    torch.manual_seed(0)
    net = names["make"]()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    state = names["save"](net, optimizer)
    names["load"](net, optimizer, state)
    keys = [*state["net"], *state["optim"]["state"]]
    return keys, names["units"](net), isinstance(net, FSDPModule) and not isinstance(net, FSDP)


def test_such_a_script_saves_and_loads_as_before() -> None:
    before = f"{IMPORTS}{WRAP}{STATES}"
    after = rewrite_source(before)
    assert f"{MARK}FM303" in after
    assert rewrite_source(after) == after
    assert run_ranks(_trained, after) == run_ranks(_trained, before)
    keys, units, is_fsdp2s = run_ranks(_trained, after)[0]
    assert (len(keys), units, is_fsdp2s) == (8, 3, False)


def test_it_is_turned_once_its_wraps_are_settled() -> None:
    left = rewrite_source(f"{IMPORTS}{WRAP}{STATES}")
    assert "Then run `fsdp-migrate rewrite` again" in left
    start, end = left.index("\n\ndef make"), left.index("\n\ndef units")
    after = rewrite_source(f"{OURS}{left[:start]}{SETTLED}{left[end:]}")
    assert "full_optimizer_state_dict(net, optimizer" in after
    assert "FSDP." not in after
    _, units, is_fsdp2s = run_ranks(_trained, after)[0]
    assert (units, is_fsdp2s) == (3, True)


@pytest.mark.any_torch
def test_a_wrap_that_is_turned_has_the_rest_turned_too() -> None:
    for wraps in (TURNED_WRAP, f"{WRAP}{ANOTHER}"):
        after = rewrite_source(f"{IMPORTS}{wraps}{STATES}")
        assert "full_optimizer_state_dict(net, optimizer" in after
        assert "rewrite` again" not in after


@pytest.mark.any_torch
def test_without_anything_else_to_turn_nothing_more_is_said() -> None:
    after = rewrite_source(f"{IMPORTS}{WRAP}")
    assert f"{MARK}FM303" in after
    assert "rewrite` again" not in after


def _write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def _turned(folder: Path) -> set[str]:
    """Return the names of the files in which something is turned, as ``rewrite`` and ``scan`` say it."""
    scanned = {Path(use.path).stem for use in scan_paths([folder]).uses if use.action == "rewritten"}
    files = rewrite_paths([folder]).changed
    assert {Path(each.path).stem for each in files if "from fsdp_migrate" in each.after} == scanned
    return scanned


@pytest.mark.any_torch
def test_the_files_that_such_a_run_comes_to_are_left_too(tmp_path: Path) -> None:
    run = "from model import make\nfrom states import load, save\n\nnet = make()\nsave(net, None)\n"
    _write(tmp_path, model=f"{IMPORTS}{WRAP}", states=f"{IMPORTS}{STATES}", run=run)
    assert _turned(tmp_path) == set()
    _write(tmp_path, model=f"{IMPORTS}{TURNED_WRAP}")
    assert _turned(tmp_path) == {"model", "states"}
    _write(tmp_path, model=f"{OURS}import torch\n{SETTLED}")
    assert _turned(tmp_path) == {"states"}


@pytest.mark.any_torch
def test_another_script_that_is_turned_takes_what_it_comes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(
        tmp_path,
        old=f"{IMPORTS}{WRAP}{STATES}from old_states import *\n",
        old_states=f"{IMPORTS}{STATES}",
        new=f"{IMPORTS}{TURNED_WRAP}{STATES}from new_states import *\n",
        new_states=f"{IMPORTS}{STATES}",
    )
    assert _turned(tmp_path) == {"new", "new_states"}
    main(["scan", str(tmp_path)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "old.py still trains" in last
    assert "goes on as before without a word" in last
    # What both come to is turned for the one, and the words of the other say so.
    (tmp_path / "new.py").write_text(f"{IMPORTS}{TURNED_WRAP}\nfrom old_states import save\n")
    assert _turned(tmp_path) == {"new", "new_states", "old_states"}
    for command in (["scan"], ["rewrite"], ["rewrite", "--write"], ["scan"]):
        main([*command, str(tmp_path)])
        out, err = capsys.readouterr()
        assert "comes to lines that are turned already" in (err or out).splitlines()[-1], command


@pytest.mark.any_torch
def test_a_test_that_wraps_so_leaves_nothing_of_what_it_tests(tmp_path: Path) -> None:
    _write(tmp_path, states=f"{IMPORTS}{STATES}", test_states=f"{IMPORTS}{WRAP}\nfrom states import save\n")
    assert _turned(tmp_path) == {"states"}


@pytest.mark.any_torch
def test_what_a_framework_shards_is_turned(tmp_path: Path) -> None:
    plugin = (
        "from accelerate import FullyShardedDataParallelPlugin\n\n\n"
        "plugin = FullyShardedDataParallelPlugin(sharding_strategy='FULL_SHARD')\n"
    )
    _write(tmp_path, train=f"{IMPORTS}{WRAP}{STATES}{plugin}")
    assert _turned(tmp_path) == {"train"}


@pytest.mark.any_torch
def test_what_an_earlier_version_turned_beside_such_wraps_is_said(tmp_path: Path) -> None:
    ours = "from fsdp_migrate.runtime import full_state_dict\n"
    _write(tmp_path, train=f"{IMPORTS}{ours}{WRAP}\n\ndef save(net):\n    return full_state_dict(net)\n")
    uses = scan_paths([tmp_path]).uses
    report = rewrite_paths([tmp_path])
    assert report.is_mixed
    assert are_mixed(report.still, uses, [tmp_path / "train.py"])
    said = said_of_still(report.still, is_checked=False, is_mixed=True)
    assert "no comment stops a run, which goes on with FSDP1 without a word, and comes to lines" in said
