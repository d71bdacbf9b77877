"""Functions that are kept in lists and dicts, or looked up by a name; and what stands above functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

LIB = """\
import functools
import torch

def penalty(model, rate=1):
    return sum(p.norm() ** 2 for p in model.parameters())

def plain(model):
    return model(1)

STEPS = {"a": penalty}
PAIRS = [("a", penalty, plain)]
LATER = {"a": functools.partial(penalty, rate=2)}

def listed():
    return [plain, penalty]

def named():
    found = {"a": penalty}
    return found

def penalty_of(model):
    return 0
"""
MAIN = f"""\
{FSDP}import importlib
import lib
from lib import *
from lib import LATER, PAIRS, STEPS, listed, named, penalty, plain


def main(net, other, cfg):
    model = FSDP(net)
    {{}}
"""
PICKED = [
    "STEPS[cfg.step](model).backward()",
    "lib.STEPS.get(cfg.step)(model).backward()",
    "LATER[cfg.step](model).backward()",
    "{'a': penalty}[cfg.step](model)",
    "(penalty if cfg.step else plain)(model)",
    "step = STEPS[cfg.step]\n    step(model)",
    "for step in [plain, penalty]:\n        step(model)",
    "for step in STEPS.values():\n        step(model)",
    "for name, step in STEPS.items():\n        step(model)",
    "for number, step in enumerate([penalty]):\n        step(model)",
    "for step, name in zip([penalty], cfg.names):\n        step(model)",
    "for name, step, _ in PAIRS:\n        step(model)",
    "for step, args in [(penalty, (model, 1))]:\n        step(*args)",
    "for step in listed():\n        step(model)",
    "named()[cfg.step](model)",
    "steps = []\n    steps += [penalty]\n    for step in steps:\n        step(model)",
    "steps = {}\n    steps.update({'a': penalty})\n    steps['a'](model)",
    "steps = {}\n    steps.setdefault('a', []).append(penalty)\n    for step in steps['a']: step(model)",
    "getattr(lib, cfg.step)(model)",
    "getattr(lib, 'penalty')(model)",
    "getattr(lib, f'pen{cfg.step}')(model)",
    "getattr(lib, 'pen' + cfg.step)(model)",
    "getattr(lib, 'pen{}'.format(cfg.step))(model)",
    "getattr(lib, 'pen%s' % cfg.step)(model)",
    "vars(lib)[cfg.step](model)",
    "lib.__dict__[cfg.step](model)",
    "step = getattr(lib, cfg.step)\n    step(model)",
    "getattr(importlib.import_module('lib'), cfg.step)(model)",
]
OTHERS = [
    "for name, _, step in PAIRS:\n        step(model)",
    "for name, step in enumerate([plain]):\n        step(model)",
    "for step in [plain]:\n        step(model)",
    "for step in lib.unknown():\n        step(model)",
    "getattr(lib, f'pla{cfg.step}')(model)",
    "getattr(lib, 'penalty_of')(model)",
    "getattr(lib, cfg.step)(model, 1, 2)",
    "getattr(torch.nn, cfg.step)(model)",
    "vars(cfg)[cfg.step](model)",
]


@pytest.mark.parametrize("use", PICKED)
def test_what_is_picked_is_given_the_model(tmp_path: Path, use: str) -> None:
    assert _is_said(tmp_path, {"lib.py": LIB, "main.py": MAIN.format(use)}, "lib.py")
    plain = use.replace("(model", "(other")
    assert not _is_said(tmp_path, {"lib.py": LIB, "main.py": MAIN.format(plain)}, "lib.py")


@pytest.mark.parametrize("use", OTHERS)
def test_what_is_not_picked_is_given_none(tmp_path: Path, use: str) -> None:
    assert not _is_said(tmp_path, {"lib.py": LIB, "main.py": MAIN.format(use)}, "lib.py")


@pytest.mark.parametrize(
    ("use", "code"),
    [
        ("getattr(lib, 'save')(model)", "FM308"),
        ("getattr(lib, f'sa{cfg.x}e')(model)", "FM308"),
        ("getattr(lib, cfg.step)(model)", "FM333"),
        ("getattr(lib, cfg.step)(model=model)", "FM333"),
    ],
)
def test_of_several_that_a_name_may_stand_for_none_is_certain(tmp_path: Path, use: str, code: str) -> None:
    saves = "def save(model):\n    return model.state_dict()\n\n"
    files = {
        "lib.py": saves + saves.replace("save", "keep"),
        "main.py": f"{FSDP}import lib\n\ndef main(net, cfg):\n    model = FSDP(net)\n    {use}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    said = {each.code for each in scan_paths([tmp_path]).uses if each.path.endswith("lib.py")}
    assert said - {"FM450"} == {code}


OWN = f"""\
{FSDP}
class Base:
    def __init__(self):
        self.hooks = []
        self.steps = {{}}

    def on(self, name, hook):
        self.steps.setdefault(name, []).append(hook)

    def keep(self, hook):
        self.hooks.append(hook)


class Trainer(Base):
    def __init__(self, net):
        super().__init__()
        self.model = FSDP(net)
        self.chosen = {{"a": self.show}}

    def show(self, net):
        print(net.head.weight.cpu().numpy())

    def run(self, name, other):
        RUN

    def fire(self, name):
        for hook in self.hooks:
            hook(self.model)
        for hook in self.steps[name]:
            hook(self.model)


def show(net):
    print(net.head.weight.cpu().numpy())


def main(net):
    trainer = Trainer(net)
    MAIN
    trainer.fire("a")
"""


@pytest.mark.parametrize(
    ("run", "main", "is_said"),
    [
        ("getattr(self, f'sh{name}')(self.model)", "pass", True),
        ("getattr(self, name)(self.model)", "pass", True),
        ("self.chosen[name](self.model)", "pass", True),
        ("globals()[name](self.model)", "pass", True),
        ("pass", "trainer.keep(show)", True),
        ("pass", "trainer.on('a', show)", True),
        ("pass", "trainer.on('a', hook=show)", True),
        ("getattr(self, f'sh{name}')(other)", "pass", False),
        ("getattr(self, f'lo{name}')(self.model)", "pass", False),
        ("getattr(self, name)(self.model, 1, 2)", "pass", False),
        ("pass", "trainer.keep(print)", False),
    ],
)
def test_what_an_object_keeps_and_looks_up(tmp_path: Path, run: str, main: str, *, is_said: bool) -> None:
    assert (
        _is_said(tmp_path, {"main.py": OWN.replace("RUN", run).replace("MAIN", main)}, "main.py") is is_said
    )


DECORATORS = f"""\
{FSDP}import functools

def sharded(make):
    @functools.wraps(make)
    def inner(*args):
        return FSDP(make(*args))
    return inner

def sharded_by(size):
    def above(make):
        def inner(*args):
            model = make(*args)
            return FSDP(model, size)
        return inner
    return above

def timed(make):
    def inner(*args):
        return make(*args)
    return inner

def with_model(run):
    def inner(net):
        model = FSDP(net)
        return run(model, 1)
    return inner

def given_net(run):
    def inner(net):
        return run(net, 1)
    return inner
"""
BUILT = "from torch import nn\nfrom above import {}\n\n@{}\ndef build(cfg):\n    return nn.Linear(4, 4)\n"
USED = "{}\ndef main(cfg):\n    model = build(cfg)\n    print(model.weight.cpu().numpy())\n"


@pytest.mark.parametrize(
    ("name", "above", "is_said"),
    [
        ("sharded", "sharded", True),
        ("sharded_by", "sharded_by(4)", True),
        ("timed", "timed", False),
        ("sharded_by", "sharded_by", False),
    ],
)
def test_a_decorator_that_shards_what_a_function_makes(
    tmp_path: Path, name: str, above: str, *, is_said: bool
) -> None:
    build = BUILT.format(name, above)
    files = {"above.py": DECORATORS, "build.py": build, "main.py": USED.format("from build import build\n")}
    assert _is_said(tmp_path, files, "main.py") is is_said
    whole = DECORATORS + USED.format(build.replace(f"from above import {name}\n", ""))
    assert _is_said(tmp_path, {"main.py": whole}, "main.py") is is_said


@pytest.mark.parametrize(("name", "is_said"), [("with_model", True), ("given_net", False)])
def test_a_decorator_that_gives_a_model(tmp_path: Path, name: str, *, is_said: bool) -> None:
    run = f"from above import {name}\n\n@{name}\ndef run(model, x):\n    print(model.weight.cpu().numpy())\n"
    assert _is_said(tmp_path, {"above.py": DECORATORS, "main.py": run}, "main.py") is is_said


def _is_said(folder: Path, files: dict[str, str], wanted: str) -> bool:
    for name, text in files.items():
        (folder / name).write_text(text)
    found = (file for file in scan_paths([folder]).files if file.path == str(folder / wanted))
    return any(use.code in {"FM334", "FM336", "FM423"} for file in found for use in file.uses)
