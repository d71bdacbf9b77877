"""Branches that run only where a project makes no sharded model: on one rank, or with its switch off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

RANKS = "import torch.distributed as dist\ndef get_world_size():\n    return dist.get_world_size()\n"
WRAP = (
    f"{FSDP}from ranks import get_world_size\n\n\ndef get_model(net):\n"
    "    if get_world_size() == 1:\n        return net.cuda()\n    model = FSDP(net)\n    return model\n"
)
SAVER = (
    "import torch.distributed as dist\nfrom ranks import get_world_size\n\n\nclass Saver:\n"
    "    def __init__(self, model):\n        self.model = model\n\n"
    "    def states(self):\n        if get_world_size() > 1:\n            return None\n        else:\n"
    "            return self.model.state_dict()\n"
)
TRAIN = (
    "from saver import Saver\nfrom wrap import get_model\n\n\n"
    "def main(net):\n    Saver(get_model(net)).states()\n"
)
TEST = "if get_world_size() > 1:"


def said(folder: Path, **files: str) -> list[str]:
    """Return the codes of what is said of states in a project."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    codes = {"FM308", "FM333", "FM450"}
    return [use.code for use in scan_paths([folder]).uses if use.code in codes and use.action != "kept"]


@pytest.mark.parametrize(
    "change",
    [
        ("", ""),
        (TEST, "if get_world_size() != 1:"),
        (TEST, "if dist.get_world_size() >= 2:"),
        (TEST, "n = get_world_size()\n        if n > 1:"),
        (TEST, "if self.world_size > 1:"),
        (TEST, "if self.args.world_size > 1:"),
        (f"{TEST}\n            return None\n        else:", "if get_world_size() == 1:"),
    ],
)
def test_what_one_rank_has_is_plain(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in SAVER
    assert said(tmp_path, ranks=RANKS, wrap=WRAP, saver=SAVER.replace(*change), train=TRAIN) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        # The branch of several ranks, or a test that says nothing of their number.
        ("saver", (TEST, "if get_world_size() == 1:")),
        ("saver", (TEST, "if get_rank() > 1:")),
        ("saver", (TEST, "if get_world_size() > 8:")),
        ("saver", (TEST, "if dist.get_world_size(self.group) > 1:")),
        ("saver", (TEST, "if self.tp_world_size > 1:")),
        ("saver", (TEST, "if self.tp.world_size > 1:")),
        ("saver", (TEST, "if mesh.world_size > 1:")),
        # One rank has a sharded model as well, or the number is another one.
        ("wrap", ("    if get_world_size() == 1:\n        return net.cuda()\n", "")),
        ("wrap", ("    model = FSDP(net)", "    model = partial(FSDP, use_orig_params=True)(net)")),
        ("wrap", ("\n    return model\n", "\n    return model\n\n\ndef other(net):\n    return FSDP(net)\n")),
        ("ranks", ("dist.get_world_size()", "dist.get_world_size(tensor_parallel_group())")),
    ],
)
def test_what_may_be_sharded_is_said(tmp_path: Path, name: str, change: tuple[str, str]) -> None:
    files = {"ranks": RANKS, "wrap": WRAP, "saver": SAVER, "train": TRAIN}
    assert change[0] in files[name]
    files[name] = files[name].replace(*change)
    assert len(said(tmp_path, **files)) == 1


KEEPS = (
    f"{FSDP}\n\nclass Trainer:\n    def __init__(self, gpt, net, zero=0):\n"
    "        self.gpt, self.net, self.zero = gpt, net, zero\n\n"
    "    def state_dict(self):\n        if self.zero:\n            return None\n        else:\n"
    "            return {k: v.cpu() for k, v in self.net.state_dict().items()}\n"
)
MAKES = (
    f"{FSDP}from torch.nn.parallel import DistributedDataParallel as DDP\nfrom keeps import Trainer\n\n\n"
    "def build(args, net):\n    if args.zero:\n        gpt = FSDP(net)\n    else:\n        gpt = DDP(net)\n"
    "    return gpt\n\n\n"
    "def main(args, net):\n    gpt = build(args, net)\n    Trainer(gpt, net, args.zero).state_dict()\n"
)


@pytest.mark.parametrize(
    ("of_class", "of_main"),
    [
        (("", ""), ("", "")),
        (("if self.zero:", "if self.zero != 0:"), ("", "")),
        (("", ""), ("net, args.zero)", "net, zero=args.zero)")),
        (
            ("class Trainer:", "class Trainer(object):"),
            ("    gpt = build", "    both: tuple[int, Trainer]\n    gpt = build"),
        ),
        (("        self.gpt,", "        super(Trainer, self).__init__()\n        self.gpt,"), ("", "")),
        (("if self.zero:", "if self.args.zero:"), ("", "")),
    ],
)
def test_a_switch_that_is_kept(tmp_path: Path, of_class: tuple[str, str], of_main: tuple[str, str]) -> None:
    assert said(tmp_path, keeps=KEEPS.replace(*of_class), makes=MAKES.replace(*of_main)) == []


@pytest.mark.parametrize(
    ("of_class", "of_main"),
    [
        # The other branch, another switch, or one that is set anew.
        (("if self.zero:", "if not self.zero:"), ("", "")),
        (("if self.zero:", "if self.ema:"), ("", "")),
        (("if self.zero:", "if zero:"), ("", "")),
        (("    def state_dict", "    def off(self):\n        self.zero = 0\n\n    def state_dict"), ("", "")),
        (("        self.gpt,", "        zero = zero and 1\n        self.gpt,"), ("", "")),
        # Another value is given, by one of the calls.
        (("", ""), ("net, args.zero)", "net, args.ema)")),
        (("", ""), ("net, args.zero)", "net)")),
        (("", ""), ("    Trainer(", "    Trainer(gpt, net)\n    Trainer(")),
        (("", ""), ("    Trainer(", "    args.zero = 0\n    Trainer(")),
        # What is not below the switch is sharded, too.
        (("", ""), ("        gpt = DDP(net)", "        gpt = FSDP(net)")),
        (("", ""), ("    Trainer(", "    make = Trainer\n    make(gpt, net)\n    Trainer(")),
    ],
)
def test_another_switch(tmp_path: Path, of_class: tuple[str, str], of_main: tuple[str, str]) -> None:
    assert of_class[0] in KEEPS
    assert of_main[0] in MAKES
    assert len(said(tmp_path, keeps=KEEPS.replace(*of_class), makes=MAKES.replace(*of_main))) == 1


@pytest.mark.parametrize(
    ("setting", "is_said"),
    [("args.zero", False), ("config.fsdp.on", False), ("config.on", True), ("settings.zero", True)],
)
def test_settings_of_which_there_may_be_several(tmp_path: Path, setting: str, *, is_said: bool) -> None:
    keeps, makes = KEEPS.replace("self.zero:", f"self.{setting}:"), MAKES.replace("args.zero", setting)
    assert bool(said(tmp_path, keeps=keeps, makes=makes)) is is_said


def test_a_field_that_two_classes_have(tmp_path: Path) -> None:
    fields = "class Args:\n    zero: int = 0\n"
    assert said(tmp_path, keeps=KEEPS, makes=MAKES, fields=fields) == []
    assert len(said(tmp_path, keeps=KEEPS, makes=MAKES, fields=fields + fields.replace("Args", "Other"))) == 1


AVERAGES = (
    f"{FSDP}\n\nclass Trainer:\n    def __init__(self, gpt, net, zero=0, ratio=0):\n"
    "        self.gpt, self.net, self.zero = gpt, net, zero\n"
    "        self.using_ema = ratio != 0 and self.zero == 0\n\n"
    "    def ema_load(self):\n        self.kept = self.net.state_dict()\n\n"
    "    def step(self, x):\n        if self.using_ema:\n            self.ema_load()\n        self.gpt(x)\n"
)
STEPS = MAKES.replace(".state_dict()", ".step(1)")


@pytest.mark.parametrize(
    ("of_class", "is_said"),
    [
        (("", ""), False),
        (("self.zero == 0", "not self.zero"), False),
        (("ratio != 0 and self.zero == 0", "not (self.zero or ratio == 0)"), False),
        (
            (
                "        if self.using_ema:\n            self",
                "        if self.zero:\n            return\n        self",
            ),
            False,
        ),
        (("    def step", "    def both(self):\n        self.ema_load()\n\n    def step"), True),
        (("    def step", "    def on(self):\n        self.using_ema = 1\n\n    def step"), True),
        (("    def step", "    def on(self):\n        self.zero = 0\n\n    def step"), True),
        (("and self.zero", "or self.zero"), True),
        (("self.zero == 0", "self.zero"), True),
        (("self.zero == 0", "self.x == 0"), True),
        (("self.zero == 0", "zero == 0"), True),
        (("if self.using_ema", "if not self.using_ema"), True),
        (("            self.ema_load()\n", "            pass\n        self.ema_load()\n"), True),
    ],
)
def test_methods_that_run_only_with_the_switch_off(
    tmp_path: Path, of_class: tuple[str, str], *, is_said: bool
) -> None:
    assert of_class[0] in AVERAGES
    found = said(tmp_path, keeps=AVERAGES.replace(*of_class), makes=STEPS)
    assert len(found) == is_said
