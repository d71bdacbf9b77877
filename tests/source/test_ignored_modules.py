"""Modules that FSDP is told to ignore: plain ones, which Accelerate's plugin shards all the same at times."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.source.ignored_modules import find_ignored, ignored_attributes
from fsdp_migrate.source.project import Project
from tests.source.projects import FSDP, after


pytestmark = pytest.mark.any_torch


ON = "distributed_type: FSDP\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n"
SET = "trainer.accelerator.state.fsdp_plugin.ignored_modules = [layer.moe for layer in model.layers]\n"


@pytest.mark.parametrize(
    ("body", "settings", "lines"),
    [
        (SET, ON, ["1"]),
        (f"x = 1\n{SET}", "distributed_type: FSDP\nfsdp_config: {}\n", ["2"]),
        ("setattr(state.fsdp_plugin, 'ignored_modules', [m.moe])\n", ON, ["1"]),
        (f"plugin(cpu_ram_efficient_loading=True)\n{SET}", "", ["2"]),
        (SET, ON.replace("true", "false"), []),
        (SET, "distributed_type: MULTI_GPU\n", []),
        ("accelerator.state.fsdp_plugin.ignored_modules = None\n", ON, []),
        ("self.ignored_modules = [m.moe]  # of no plugin\n", ON, []),
        ("fsdp_plugin.ignored_modules = [\n", ON, []),
    ],
)
def test_the_settings_decide(tmp_path: Path, body: str, settings: str, lines: list[str]) -> None:
    (tmp_path / "train.py").write_text(body)
    (tmp_path / "fsdp.yaml").write_text(settings)
    assert [each.rpartition(":")[2] for each in find_ignored([tmp_path])] == lines


NET = """import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(4, 4)])
        self.top = nn.Linear(4, 4)

    def ignored(self):
        return self.tables
"""
TRAIN = """import torch.distributed as dist
from net import Net
from wrap import wrap

model = wrap(Net())


def average():
    for p in model.{}.parameters():
        dist.all_reduce(p.grad)
    return [p.grad.norm() for p in model.{}.parameters()]
"""
OTHER = """import torch.nn as nn


class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.Linear(4, 4)
"""
HINT = "Of a parameter that FSDP ignores, which stays plain, take neither"


def _trained(folder: Path, made: str, part: str = "tables", more: str = "") -> str:
    wrap = f"{FSDP}\ndef wrap(net):\n    {made}\n"
    files = {"net.py": NET, "wrap.py": wrap, "train.py": TRAIN.format(part, part)}
    return after(folder, files | ({"more.py": more} if more else {}), "train.py")


@pytest.mark.parametrize(
    "made",
    [
        "return FSDP(net, ignored_modules=list(net.ignored()))",
        "return FSDP(net, ignored_modules=[net.tables])",
        "kept = [*net.tables]\n    return FSDP(net, ignored_modules=kept)",
        "return FSDP(net, ignored_states=list(net.tables.parameters()))",
    ],
)
def test_parameters_of_what_each_wrapping_ignores_are_plain(tmp_path: Path, made: str) -> None:
    """FSDP1 and FSDP2 leave them plain tensors, which have no ``.to_local()``."""
    assert "FM423" not in _trained(tmp_path / "a", made)
    others = _trained(tmp_path / "b", made, "top")
    assert others.count("fsdp-migrate: FM423") == 2
    assert others.count(HINT) == 2


@pytest.mark.parametrize(
    ("made", "names"),
    [
        ("prepare_fully_shard(net, {'ignored_modules': [net.tables]})", {"tables"}),
        (
            "prepare_fully_shard(net, {'auto_wrap_policy': policy, 'ignored_modules': [net.tables]})",
            {"tables"},
        ),
        ("prepare_fully_shard(net, settings)\nsettings = {'ignored_modules': [net.tables]}", set()),
        ("FSDPStrategy(ignored_modules=[net.tables])", set()),
    ],
)
def test_what_was_turned_ignores_the_same(made: str, names: set[str]) -> None:
    files = {Path("net.py"): NET, Path("train.py"): f"{made}\n"}
    assert ignored_attributes(Project(files)) == names


@pytest.mark.parametrize(
    ("made", "more"),
    [
        ("return FSDP(net, ignored_modules=chosen(net))", ""),
        ("return FSDP(net, ignored_modules=[m.tables for m in net.modules() if m in CHOSEN])", ""),
        ("return FSDP(net, ignored_modules=net.tables if CHOSEN else [net.top])", ""),
        ("return FSDP(net, ignored_modules=[net.tables]) if CHOSEN else FSDP(net)", ""),
        ("return FSDP(net, ignored_modules=[net.tables])", OTHER),
        ("return FSDP(net, ignored_modules=[net.tables])", f"{FSDP}\nKINDS = {{'fsdp': FSDP}}\n"),
        ("return FSDP(net, ignored_states=[net.tables[0].weight])", ""),
    ],
)
def test_what_is_ignored_may_be_these(tmp_path: Path, made: str, more: str) -> None:
    """Which ones are ignored is not seen, or not of each wrapping: the words say what a plain one needs."""
    after_it = _trained(tmp_path, made, more=more)
    assert after_it.count("fsdp-migrate: FM423") == 2
    assert after_it.count(HINT) == 2


@pytest.mark.parametrize("made", ["return FSDP(net)", "return FSDP(net, ignored_modules=None)"])
def test_where_nothing_is_ignored_nothing_is_said_of_it(tmp_path: Path, made: str) -> None:
    after_it = _trained(tmp_path, made)
    assert after_it.count("fsdp-migrate: FM423") == 2
    assert "that FSDP ignores" not in after_it
