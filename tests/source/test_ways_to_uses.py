"""A sharded model and its optimizer are followed to where they are used, whatever way they take there.

``ways_to_uses.txt`` holds the ways: functions, containers, classes, objects, decorators and files between the
line that shards and the lines that use.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_migrate.source import scan_paths


pytestmark = pytest.mark.any_torch

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
START = f"""import abc
import argparse
import functools
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
import torch
import torch.nn as nn
{IMPORT}from torch.optim import AdamW

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
    def forward(self, x):
        return self.body(x)

"""
USES = """torch.save({model}.state_dict(), "model.pt")
{model}.load_state_dict(torch.load("model.pt"))
torch.nn.utils.clip_grad_norm_({model}.parameters(), 1.0)
with {model}.no_sync(): pass
out = {model}.forward(torch.ones(2, 8))
norm = torch.stack([w.grad.norm() for w in {model}.parameters()]).norm().tolist()
torch.save({optimizer}.state_dict(), "optimizer.pt")
decay = [w for w in {model}.parameters() if w.ndim > 1]
{model}.apply(lambda m: m.reset_parameters())
print({model}.module)"""
DIRECT = """
model = FSDP(Net())
optimizer = AdamW(model.parameters())
# uses model optimizer
"""
WAYS = dict(
    re.findall(
        r"^# way (.*)\n((?:(?!# way ).*\n)+)",
        (Path(__file__).parent / "ways_to_uses.txt").read_text(),
        re.MULTILINE,
    )
)


def _with_uses(text: str) -> str:
    """Return a source with the uses in the place of the line that stands for them."""

    def uses(found: re.Match[str]) -> str:
        each = USES.format(model=found[2], optimizer=found[3])
        return "\n".join(f"{found[1]}{line}  # used" for line in each.splitlines())

    start = START if "FSDP" in text else START.replace(IMPORT, "")
    return start + re.sub(r"^( *)# uses (\S+) (\S+)$", uses, text, flags=re.MULTILINE)


def _found_at_uses(folder: Path, way: str) -> list[tuple[str, str]]:
    """Return the code and the action at each use, in the order of the lines."""
    files = re.findall(r"^# file (.*)\n((?:(?!# file ).*\n)+)", way, re.MULTILINE)
    folder.mkdir()
    for name, text in files:
        (folder / name).write_text(_with_uses(text))
        compile((folder / name).read_text(), name, "exec")
    found = scan_paths([folder], num_processes=1).uses
    lines = {path.name: path.read_text().splitlines() for path in folder.iterdir()}
    at_uses = [each for each in found if lines[Path(each.path).name][each.line - 1].endswith("# used")]
    return [(each.code, each.action) for each in sorted(at_uses, key=lambda each: (each.line, each.column))]


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Return what is found at the uses where nothing lies between the line that shards and them."""
    return _found_at_uses(tmp_path_factory.mktemp("direct") / "way", f"# file train.py{DIRECT}")


@pytest.mark.parametrize("way", WAYS)
def test_every_way_ends_at_the_same_findings(tmp_path: Path, direct: list[tuple[str, str]], way: str) -> None:
    assert {code for code, _ in direct} >= {"FM308", "FM326", "FM312", "FM448", "FM423", "FM425", "FM322"}
    assert _found_at_uses(tmp_path / "way", WAYS[way]) == direct


def test_a_plain_model_that_goes_the_same_ways_is_left_alone(tmp_path: Path) -> None:
    for number, way in enumerate(WAYS.values()):
        plain = way.replace("partial(FSDP,", "partial(nn.Sequential,").replace("FSDP(", "nn.Sequential(")
        # The file speaks of FSDP1: what cannot be followed may be sharded, and only wrappers have a no_sync.
        found = {*_found_at_uses(tmp_path / str(number), plain)}
        assert found <= {("FM450", "unclear"), ("FM312", "commented")}


FILLED = """# file train.py
class Holder:
    model = None
    optimizer = None
def fill(holder):
    holder.model = FSDP(Net())
    holder.optimizer = AdamW(holder.model.parameters())
def main(holder):
    {}
    fill(holder)
    # uses holder.model holder.optimizer
main(Holder())
"""


@pytest.mark.parametrize("made", ["holder = Holder()", "holder = argparse.Namespace()", "print(holder)"])
def test_what_a_function_sets_on_the_object_that_it_is_given(tmp_path: Path, made: str) -> None:
    found = [code for code, _ in _found_at_uses(tmp_path / "way", FILLED.format(made))]
    assert {"FM308", "FM333"} & {*found}
    assert "FM450" not in found
