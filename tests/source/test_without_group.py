"""Tests of a project that run in one process, without a process group: no model is sharded there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAINER = f"""import torch.distributed as dist
{FSDP}

def start():
    dist.init_process_group("gloo")


class Trainer:
    def __init__(self, model, ranks=1):
        self.model = FSDP(model) if ranks > 1 else model
        {{begins}}


class Runs:
    def __init__(self):
        self.begin()

    def begin(self):
        start()
"""
TEST = """import torch
from pkg.train import Runs, Trainer, start


def test_it():
    one, two = Trainer(net), Trainer(net)
    {does}
    for a, b in zip(one.model.parameters(), two.model.parameters()):
        assert torch.equal(a, b)
"""


def _codes(folder: Path, does: str, begins: str = "pass", conftest: str = "") -> set[str]:
    files = {"pkg/train.py": TRAINER.format(begins=begins), "tests/test_train.py": TEST.format(does=does)}
    files["tests/conftest.py"] = conftest
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return {each.code for each in scan_paths([folder]).uses if each.path.endswith("test_train.py")}


def test_without_a_group_nothing_is_sharded(tmp_path: Path) -> None:
    assert _codes(tmp_path, "one.fit()") == set()


@pytest.mark.parametrize(
    ("does", "begins", "conftest"),
    [
        ("start()", "pass", ""),
        ("torch.distributed.init_process_group()", "pass", ""),
        ("torch.multiprocessing.spawn(run)", "pass", ""),
        ("subprocess.run(['torchrun', 'x.py'])", "pass", ""),
        ("Runs()", "pass", ""),
        ("one.fit()", "start()", ""),
        ("one.fit()", "pass", "from pkg.train import start\n\nstart()\n"),
        ("two = Trainer(FSDP(net))", "pass", ""),
    ],
)
def test_with_one_it_may_be(tmp_path: Path, does: str, begins: str, conftest: str) -> None:
    assert "FM423" in _codes(tmp_path, does, begins, conftest)
