"""What a sharded model reaches by an unusual way is named: that a plain one comes there too is no proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.test_plain_places import HELD, SAVE, named


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CALLED = "from tools import save\nfrom wrap import wrap\nimport tools\n"
MADE = "class Maker:\n    def build(self):\n        return wrap(Net())\n"
BOX = (
    "class Box(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.inner = Net()\n    def shard(self):\n        self.inner = wrap(self.inner)\n"
)
CLIPS = "def clip(params):\n    torch.nn.utils.clip_grad_norm_(params, 1.0)\n"
KEEPS = "def keep(optimizer):\n    return optimizer.state_dict()\n"
EVENT = (
    "class Hook:\n    def on_end(self, model):\n        model.state_dict()\n"
    "    def run(self, event, model):\n        getattr(self, f'on_{event}')(model)\n"
)


def said_of_tools(folder: Path, tools: str, other: str) -> list[tuple[str, str]]:
    """Return the code and the action of each thing that is said of the tools of a project."""
    named(folder, tools, f"{CALLED if 'def save(model' in tools else CALLED.partition(chr(10))[2]}{other}")
    return [(use.code, use.action) for use in scan_paths([folder]).uses if use.path.endswith("tools.py")]


@pytest.mark.parametrize(
    ("tools", "other"),
    [
        (f"{SAVE}ALL = list(vars().values())\n", "for f in tools.ALL:\n    f(wrap(Net()))\nsave(Net())\n"),
        (HELD, "getattr(lib.load('tools'), 'Sa' + 'ver')(wrap(Net())).save()\ntools.Saver(Net())\n"),
        # Decorators that make something else of it.
        (SAVE, "from lib import sharded\n@sharded\ndef make():\n    return Net()\nsave(make())\n"),
        (HELD, "@lib.wrap\nclass Big(Net):\n    pass\ntools.Saver(Big()).save()\n"),
        # In place, and by names that are no model's.
        (SAVE, "from torch.distributed.fsdp import fully_shard\nm = Net()\nfully_shard(m)\nsave(m)\n"),
        (SAVE, "def shard(x):\n    wrap(x.part)\nm = Net()\nshard(m)\nsave(m)\n"),
        (SAVE, "w = wrap(Net())\nsave(torch.nn.Sequential(w))\n"),
        (
            HELD,
            "class Box:\n    def __init__(self, x):\n        pass\ntools.Saver(Box(wrap(Net()))).save()\n",
        ),
        (HELD, f"{BOX}b = Box()\nb.shard()\ntools.Saver(b).save()\n"),
        # Lists that are not empty, and are filled on.
        (
            CLIPS,
            "m = wrap(Net())\nps = list(Net().parameters())\nps.extend(m.parameters())\ntools.clip(ps)\n",
        ),
        (
            CLIPS,
            (
                "def put(m, out):\n    for p in m.parameters():\n        out.append(p)\n"
                "ps = [Net().weight]\nput(wrap(Net()), ps)\ntools.clip(ps)\n"
            ),
        ),
        # Optimizers of what has another name.
        (KEEPS, "m = wrap(Net())\no = torch.optim.SGD(m.parameters())\ntools.keep(o)\n"),
        (
            KEEPS,
            "m = wrap(Net())\no = torch.optim.SGD([p])\no.add_param_group({'p': m.weight})\ntools.keep(o)\n",
        ),
        (
            KEEPS,
            "m = wrap(Net())\ng = [{}]\ng.append({'p': [m.weight]})\no = torch.optim.SGD(g)\ntools.keep(o)\n",
        ),
        (
            f"{KEEPS}def made(m):\n    return torch.optim.SGD(m.parameters())\n",
            "tools.keep(tools.made(wrap(Net())))\n",
        ),
        # What makes it has an attribute, a method or a variable for that.
        (
            SAVE,
            f"{MADE}def run(makers):\n    model = makers[x].build()\n    save(model)\nrun(all_of(Maker))\n",
        ),
        (
            SAVE,
            (
                "class All:\n    def build(self, x):\n        return self.makers[x]()\n"
                "every = All()\nmodel = every.build(1)\nsave(model)\n"
            ),
        ),
        # Targets of loops and contexts.
        (HELD, "s = tools.Saver(Net())\nfor s.model in [wrap(Net())]:\n    s.save()\n"),
        (HELD, "s = tools.Saver(Net())\nwith lib.ctx() as s.model:\n    s.save()\n"),
    ],
)
def test_unusual_ways_of_a_sharded_model_are_no_proof_of_a_plain_one(
    tmp_path: Path, tools: str, other: str
) -> None:
    assert said_of_tools(tmp_path, tools, other) == [("FM450", "unclear")]


@pytest.mark.parametrize(
    ("tools", "other"),
    [
        # By a name that is put together when it runs.
        (SAVE, "m = wrap(Net())\ngetattr(tools, f'sa{x}')(m)\nsave(Net())\n"),
        (SAVE, "m = wrap(Net())\ngetattr(tools, 'sa' + x)(m)\nsave(Net())\n"),
        (EVENT, "hook = tools.Hook()\nhook.on_end(Net())\nhook.run('end', wrap(Net()))\n"),
        # By a decorator.
        (
            SAVE,
            (
                "def deco(f):\n    return lambda: wrap(f())\n"
                "@deco\ndef make():\n    return Net()\nsave(make())\n"
            ),
        ),
    ],
)
def test_ways_that_are_followed_show_a_sharded_model(tmp_path: Path, tools: str, other: str) -> None:
    assert said_of_tools(tmp_path, tools, other) == [("FM308", "rewritten")]


@pytest.mark.parametrize(
    ("other", "of_plain"),
    [
        ("def run(model_fn):\n    model = model_fn(1)\n    save(model)\nrun(lambda x: wrap(Net()))\n", []),
        (
            "maker = lib.Maker()\nmaker.build = lambda: wrap(Net())\nsave(maker.build())\n",
            # What the library's own method gives is not seen.
            [("FM450", "unclear")],
        ),
    ],
)
def test_what_a_lambda_makes_is_followed(tmp_path: Path, other: str, of_plain: list[tuple[str, str]]) -> None:
    assert said_of_tools(tmp_path, SAVE, other) == [("FM308", "rewritten")]
    folder = tmp_path / "plain"
    folder.mkdir()
    assert said_of_tools(folder, SAVE, other.replace("wrap(Net())", "Net()")) == of_plain
