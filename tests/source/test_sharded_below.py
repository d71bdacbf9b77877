"""What is done with a model above the line that shards it: it is plain there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MODEL = f"""{FSDP}

class Factory:
    @staticmethod
    def wrap(model, sync=True):
        if is_meta(model):
            raise ValueError(model)
        fsdp_model = FSDP(model, sync_module_states=sync)
        return fsdp_model

    @staticmethod
    def wrap_once(model):
        return model if isinstance(model, FSDP) else FSDP(model)


def wrap_asked(model):
    if isinstance(model, FSDP):
        return model
    return FSDP(model)


def other(model):
    return FSDP(model.head)
"""
LOADS = f"""import torch
{FSDP}from pkg.model import Factory, other, wrap_asked

PICKED = ['load']


class Loader:
    def load(self, model, path, x):
        if self.rank == 0:
            model.load_state_dict(torch.load(path))
        {{below}}
"""
STATES = f"""import torch
{FSDP}

class Saver:
    @staticmethod
    def load(path, model, ema=None):
        model.load_state_dict(torch.load(path))
        if ema is not None:
            ema.load_state_dict(torch.load(path))
        return model, ema
"""
TRAINS = """from copy import deepcopy

from pkg.model import Factory, other, wrap_asked
from pkg.states import Saver


def main(registry, path):
    model = registry[path](path)
    ema = deepcopy(model)
    {above}
    ema = Factory.wrap(ema)
    {below}
"""


def _said(folder: Path, **files: str) -> list[tuple[str, str]]:
    (folder / "pkg").mkdir()
    for name, text in {"model": MODEL, **files}.items():
        (folder / "pkg" / f"{name}.py").write_text(text)
    uses = scan_paths([folder]).uses
    return [(each.code, each.text) for each in uses if "load_state_dict(" in each.text]


@pytest.mark.parametrize(
    "below",
    [
        "return FSDP(model)",
        "return Factory.wrap(model=model, sync=False)",
        "model = model.cuda()\n        return Factory.wrap(model)",
        "model, x = x.fill(model)\n        fsdp_model = Factory.wrap(model)",
    ],
)
def test_a_load_above_it_is_of_the_plain_model(tmp_path: Path, below: str) -> None:
    assert _said(tmp_path, load=LOADS.format(below=below)) == []


@pytest.mark.parametrize(
    "below",
    [
        "return model",
        "return other(model)",
        "return wrap_asked(model)",
        "return Factory.wrap_once(model)",
        "if x:\n            Factory.wrap(model)",
        "for _ in x:\n            Factory.wrap(model)",
        "model = x.part\n        return Factory.wrap(model)",
        "return lambda: Factory.wrap(model)",
    ],
)
def test_where_it_may_be_sharded_already_it_is_named(tmp_path: Path, below: str) -> None:
    said = _said(tmp_path, load=LOADS.format(below=below))
    assert [code for code, _ in said] == ["FM450"]


def test_what_comes_as_a_sharded_one_by_some_calls_is_plain_above_it(tmp_path: Path) -> None:
    load = LOADS.format(below="return Factory.wrap(model)")
    gives = "from pkg.load import Loader\nfrom pkg.model import Factory\n\n\n"
    gives += "def run(net, path):\n    Loader().load(Factory.wrap(net), path, 1)\n"
    assert _said(tmp_path, load=load, run=gives) == []


@pytest.mark.parametrize(
    "above", ["Saver.load(path, model, ema)", "model, ema = Saver.load(path, model, ema)"]
)
def test_what_a_static_method_is_given_above_it_is_plain(tmp_path: Path, above: str) -> None:
    train = TRAINS.format(above=above, below="train(Factory.wrap(model))")
    assert _said(tmp_path, states=STATES, train=train) == []


@pytest.mark.parametrize("below", ["train(model)", "train(other(model))", "train(wrap_asked(model))"])
def test_what_is_not_sharded_below_is_named(tmp_path: Path, below: str) -> None:
    train = TRAINS.format(above="Saver.load(path, model, ema)", below=below)
    said = _said(tmp_path, states=STATES, train=train)
    assert said == [("FM450", "model.load_state_dict(torch.load(path))")]


WRAPS = f"{FSDP}\n\ndef wrap(module):\n    return FSDP(module)\n"
PRELOADS = """import torch
from wraps import wrap


class Trainer:
    def __init__(self, config):
        self.model = Both()
        {above}
        self.model.generator = wrap(self.model.generator)
        self.opt = torch.optim.AdamW(self.model.generator.parameters())
        {below}

    def {name}(self, path):
        self.model.generator.load_state_dict(torch.load(path), strict=True, assign=True)

    def resume(self, path):
        self._again(path)
"""


@pytest.mark.parametrize(
    ("name", "above", "below", "is_said"),
    [
        ("_preload", "if config.pre:\n            self._preload(config.pre)", "pass", False),
        ("_preload", "self._preload(config.pre)", "self._preload(config.ckpt)", True),
        ("_preload", "pass", "self._preload(config.ckpt)", True),
        ("_again", "self._again(config.pre)", "pass", True),  # another method calls it too
        ("preload", "self.preload(config.pre)", "pass", True),  # and so may other files
        ("_preload", "load = self._preload\n        load(config.pre)", "pass", True),
    ],
)
def test_a_private_method_that_is_called_above_it_alone(
    tmp_path: Path, name: str, above: str, below: str, *, is_said: bool
) -> None:
    (tmp_path / "wraps.py").write_text(WRAPS)
    (tmp_path / "train.py").write_text(PRELOADS.format(name=name, above=above, below=below))
    uses = scan_paths([tmp_path]).uses
    assert any("load_state_dict" in use.text for use in uses if use.action != "kept") is is_said
