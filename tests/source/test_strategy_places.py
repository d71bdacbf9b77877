"""Strategies of a project: what shuts Fabric's FSDP1 out wherever it is made, and its own classes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

LOADS = """\
import torch


def load(fabric, model, path, devices, strict=True):
    if {}:
        fabric.load_raw(path, model, strict=strict)
    else:
        model.load_state_dict(torch.load(path), strict=strict)
"""
SETUP = """\
import lightning as L
from lightning.fabric.strategies import FSDPStrategy

from utils import load


def setup(devices):
    {}
    fabric = L.Fabric(devices=devices, strategy=strategy)
    fabric.launch(main)


def main(fabric):
    model = fabric.setup_module(GPT())
    load(fabric, model, "a.pth", 2)
"""
BELOW = "strategy = 'auto'\n    if devices > 1:\n        strategy = FSDPStrategy()"


def said(folder: Path, **files: str) -> set[str]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return {use.code for use in scan_paths([folder]).uses if use.action in {"commented", "unclear"}} - {
        "FM319"
    }


@pytest.mark.parametrize(
    ("test", "strategy", "is_said"),
    [
        ("fabric.world_size > 1", BELOW, False),
        ("not fabric.world_size == 1", BELOW, False),
        ("devices > 1", BELOW, False),
        ("fabric.world_size > 1", "strategy = FSDPStrategy() if devices > 1 else 'auto'", False),
        (
            "fabric.world_size > 1",
            f"if devices == 1:\n        return\n    {'strategy = FSDPStrategy()'}",
            False,
        ),
        # A strategy of FSDP may have one rank as well: the model is sharded then, too.
        ("fabric.world_size > 1", "strategy = FSDPStrategy()", True),
        ("fabric.world_size > 1", BELOW.replace("devices > 1", "devices > 0"), True),
        ("fabric.world_size > 1", f"{BELOW}\n    other = FSDPStrategy()", True),
        ("fabric.world_size > 2", BELOW, True),
        ("ready", BELOW, True),
    ],
)
def test_the_branch_of_one_rank_has_a_plain_model(
    tmp_path: Path, test: str, strategy: str, *, is_said: bool
) -> None:
    found = said(tmp_path, utils=LOADS.format(test), train=SETUP.format(strategy))
    assert found == ({"FM333"} if is_said else set())


MAKES = """\
def make(name, params):
    import bitsandbytes as bnb

    return bnb.optim.AdamW8bit(params)
"""
QUANTIZES = """\
import lightning as L
import torch
from lightning.fabric.plugins import BitsandbytesPrecision
from lightning.fabric.strategies import FSDPStrategy

from own import make


def setup(quantize, devices):
    strategy = "auto"
    if devices > 1:
        if quantize:
            {leaves}
        strategy = FSDPStrategy()
    fabric = L.Fabric(devices=devices, strategy=strategy)
    fabric.launch(main, quantize)


def main(fabric, quantize):
    model = fabric.setup_module(GPT())
    {makes}
    optimizer = fabric.setup_optimizers(optimizer)
"""
RAISES = "raise NotImplementedError"
BY_FUNCTION = """\
if {}:
        optimizer = make("adamw", model.parameters())
    else:
        optimizer = torch.optim.AdamW(model.parameters())"""
BY_NAME = """\
if {}:
        import bitsandbytes as bnb

        optimizer_cls = bnb.optim.PagedAdamW
    else:
        optimizer_cls = torch.optim.AdamW
    optimizer = optimizer_cls(model.parameters())"""


@pytest.mark.parametrize("makes", [BY_FUNCTION, BY_NAME])
@pytest.mark.parametrize(
    ("test", "leaves", "is_said"),
    [
        ('quantize and quantize.startswith("bnb.")', RAISES, False),
        ("isinstance(fabric.strategy.precision, BitsandbytesPrecision)", RAISES, False),
        ('quantize and quantize.startswith("bnb.")', "print('slow')", True),
        ("args.small", RAISES, True),
        ("not quantize", RAISES, True),
    ],
)
def test_an_optimizer_of_quantized_weights(
    tmp_path: Path, makes: str, test: str, leaves: str, *, is_said: bool
) -> None:
    train = QUANTIZES.format(leaves=leaves, makes=makes.format(test))
    assert ("FM445" in said(tmp_path, own=MAKES, train=train)) is is_said


def test_a_function_that_others_call_as_well_is_of_both(tmp_path: Path) -> None:
    train = QUANTIZES.format(leaves=RAISES, makes=BY_FUNCTION.format("quantize"))
    more = "    second = make('adamw', model.parameters())\n"
    assert "FM445" in said(tmp_path, own=MAKES, train=f"{train}{more}")


# Strategy classes that another file chooses from: what their methods are given.
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


OF_FSDP = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{base}

class {name}:
    def prepare(self, model, optimizer=None):
        {wraps}

    def state(self, model):
        return model.module.state_dict()

    def load(self, model, state):
        model.load_state_dict(state)

    def clip(self, model):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def optimizer_state(self, optimizer):
        return optimizer.state_dict()

    def load_optimizer(self, optimizer, state):
        optimizer.load_state_dict(state)
"""
IN_BASE = "from base import Strategy\n"
SHARDS = "return FSDP(model)"


def _lone(name: str = "Sharded(Strategy)", wraps: str = SHARDS, base: str = IN_BASE) -> str:
    return OF_FSDP.format(name=name, wraps=wraps, base=base)


@pytest.mark.parametrize(
    "classes",
    [
        _lone(),
        _lone("FSDPStrategy"),
        _lone("ShardedBackend"),
        _lone(wraps="model = FSDP(model)\n        return model, optimizer"),
        _lone("Sharded(Other)", base="class Other:\n    def prepare(self, model):\n        return model\n"),
    ],
)
def test_a_class_that_shards_is_evidence_by_itself(classes: str) -> None:
    """Nothing was said of these: no call is seen, because a registry makes the class."""
    found = _commented(classes)
    found.pop("prepare", None)
    assert found == {
        "state": {"FM333"},
        "load": {"FM333"},
        "clip": {"FM326"},
        "optimizer_state": {"FM425"},
        "load_optimizer": {"FM425"},
    }


@pytest.mark.parametrize(
    "classes",
    [
        _lone(wraps="return torch.nn.parallel.DistributedDataParallel(model)"),
        _lone(wraps="return FSDP(model) if self.shards else model"),
        _lone("Trainer", base=""),
    ],
)
def test_and_one_that_does_not_is_none(classes: str) -> None:
    assert _commented(classes) == {}


def _commented(classes: str) -> dict[str, set[str]]:
    """Return by methods the codes of the comments in them."""
    found: dict[str, set[str]] = {}
    for use in scan_source(classes):
        above = [line for line in classes.splitlines()[: use.line] if line.startswith("    def ")]
        if use.action == "commented":
            found.setdefault(above[-1].partition("def ")[2].partition("(")[0], set()).add(use.code)
    return found


def test_what_the_class_itself_gives_a_method_counts_before_that() -> None:
    own = "\n    def begin(self, net):\n        self.load(net, {})\n        return self.prepare(net)\n"
    assert "load" not in _commented(_lone() + own)
