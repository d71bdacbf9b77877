"""Strategy classes that another file chooses from: what their methods are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CLASSES = """\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Strategy:
    def setup(self, model):
        return model

    def clip(self, model):
        return nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def state(self, model):
        return model.state_dict()


class DDPStrategy(Strategy):
    def setup(self, model):
        return DDP(model)

    def state(self, model):
        return model.module.state_dict()


class FSDPStrategy(Strategy):
    def setup(self, model):
        return FSDP(model)

    def clip(self, model):
        return model.clip_grad_norm_(1.0)

    def state(self, model):
        return model.module.state_dict()


def make(name):
    return {"single": Strategy, "ddp": DDPStrategy, "fsdp": FSDPStrategy}[name]()
"""
TRAIN = """\
from strategies import make


def train(args, net):
    strategy = make(args.strategy)
    model = strategy.setup(net)
    model(1).backward()
    strategy.clip(model)
    return strategy.state(model)
"""
OWN_CLIP = "\n    def clip(self, model):\n        return model.clip_grad_norm_(1.0)\n"


def found_in(folder: Path, classes: str) -> dict[str, set[tuple[str, str]]]:
    """Return the code and the action of what is found in each class, but for names and imports."""
    (folder / "strategies.py").write_text(classes)
    (folder / "train.py").write_text(TRAIN)
    lines = classes.splitlines()
    found: dict[str, set[tuple[str, str]]] = {}
    for use in scan_paths([folder]).uses:
        above = [line for line in lines[: use.line] if line.startswith("class ")]
        if above and use.path.endswith("strategies.py"):
            name = above[-1].partition(" ")[2].partition("(")[0].rstrip(":")
            found.setdefault(name, set()).add((use.code, use.action))
    return found


def test_what_other_classes_wrap_is_left_alone(tmp_path: Path) -> None:
    found = found_in(tmp_path, CLASSES)
    assert found == {"FSDPStrategy": {(f"FM3{number}", "rewritten") for number in ("01", "08", "11", "15")}}


@pytest.mark.parametrize(
    ("before", "after", "name", "code"),
    [
        # The base's method is run for FSDP1's models too: it is not overridden, or asked for.
        (OWN_CLIP, "", "Strategy", "FM326"),
        (
            OWN_CLIP,
            OWN_CLIP.replace("model.clip_grad_norm_(1.0)", "super().clip(model)"),
            "Strategy",
            "FM326",
        ),
        # What a class makes is not one thing, or is not seen.
        ("DDP(model)", "DDP(model) if self.on else FSDP(model)", "DDPStrategy", "FM333"),
        ("DDP(model)", "wrap(model)", "DDPStrategy", "FM333"),
        (
            "DDPStrategy(Strategy):\n    def setup(self, model):\n        return DDP(model)\n\n",
            "DDPStrategy(Others):\n",
            "DDPStrategy",
            "FM333",
        ),
    ],
)
def test_what_may_be_sharded_is_said(before: str, after: str, name: str, code: str, tmp_path: Path) -> None:
    assert before in CLASSES
    found = found_in(tmp_path, CLASSES.replace(before, after))
    assert code in {each for each, _ in found[name]}
