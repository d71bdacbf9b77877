"""Classes of optimizers that a call does not name: dicts, registries, functions, attributes of configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAIN = """\
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from schema import *
{}


def create(model, config):
    {}


def main(config):
    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD"))
    model = torch.nn.Linear(4, 4)
    optimizer = create(model, config)
    model, optimizer = accelerator.prepare(model, optimizer)
"""
TABLE = 'import torch\nTABLE = {"l": torch.optim.LBFGS, "a": torch.optim.Adam}\n'
PAIRS = 'import torch\nTABLE = {"l": (torch.optim.LBFGS, 1), "a": (torch.optim.Adam, 2)}\n'
FUNCTION = """\
import torch


def get(name):
    return torch.optim.LBFGS if name else torch.optim.Adam
"""
CLASS = """\
import torch


class Registry:
    pass


TABLE = Registry()
TABLE.register("l", torch.optim.LBFGS)
"""
REGISTERS = """\
import torch

TABLE = {}


def register(name):
    def wrap(cls):
        TABLE[name] = {}
        return cls
    return wrap

"""
DECORATED = """
@register("l")
class Config:
    optimizer_class: type = torch.optim.LBFGS


@register("a")
class Other(Config):
    optimizer_class = torch.optim.Adam
"""


def said(folder: Path, schema: str, imports: str, makes: str) -> list[str]:
    (folder / "schema.py").write_text(schema)
    (folder / "train.py").write_text(TRAIN.format(imports, makes))
    return [use.becomes for use in scan_paths([folder]).uses if use.code == "FM445"]


@pytest.mark.parametrize(
    ("schema", "imports", "makes"),
    [
        (TABLE, "from schema import TABLE", "return TABLE[config.name](model.parameters())"),
        (TABLE, "import schema", "return schema.TABLE[config.name](model.parameters())"),
        (TABLE, "from schema import TABLE", "return TABLE.get(config.name)(model.parameters(), lr=1)"),
        (
            PAIRS,
            "from schema import TABLE",
            "cls, n = TABLE[config.name]\n    return cls(model.parameters())",
        ),
        (FUNCTION, "from schema import get", "cls = get(config)\n    return cls(list(model.parameters()))"),
        ("", TABLE, "return TABLE[config.name](model.parameters())"),
        (
            REGISTERS.replace("[name] = {}", "[name] = cls") + "register('l')(torch.optim.LBFGS)\n",
            "from schema import TABLE",
            "return TABLE[config.name](model.parameters())",
        ),
        (
            REGISTERS.replace("[name] = {}", "[name] = (cls.optimizer_class, cls)") + DECORATED,
            "from schema import TABLE",
            "cls = TABLE[config.name][0]\n    return cls(model.parameters(), lr=config.lr)",
        ),
        (
            DECORATED.replace('@register("l")', "import torch").replace('@register("a")', ""),
            "",
            "return config.optimizer_class(model.parameters())",
        ),
        (
            CLASS,
            "from schema import TABLE",
            "return TABLE.get(config.name)(model.parameters())",
        ),
    ],
)
def test_a_class_that_something_gives(tmp_path: Path, schema: str, imports: str, makes: str) -> None:
    (found,) = said(tmp_path, schema, imports, makes)
    assert found.startswith("this may be torch.optim.LBFGS: ")
    schema, imports = schema.replace("LBFGS", "AdamW"), imports.replace("LBFGS", "AdamW")
    assert said(tmp_path, schema, imports, makes) == []


NESTED = 'import torch\nTABLE = {"t": {"l": torch.optim.LBFGS, "a": torch.optim.Adam}, "e": {}}\n'
FILLED = 'import torch\nTABLE = {}\nTABLE["l"] = torch.optim.LBFGS\nTABLE["a"] = torch.optim.Adam\n'
FILLED_DEEP = 'import torch\nTABLE = {}\nTABLE["t"] = {"l": torch.optim.LBFGS, "a": torch.optim.Adam}\n'
UPDATED = "import torch\nTABLE = {}\nTABLE.update(l=torch.optim.LBFGS, a=torch.optim.Adam)\n"
SET_ONCE = 'import torch\nTABLE = {}\nTABLE.setdefault("l", torch.optim.LBFGS)\n'
MORE = 'import torch\nTABLE = {**{"l": torch.optim.LBFGS}, "a": torch.optim.Adam}\n'
CHOSEN = 'import torch\nTABLE = {name(): torch.optim.LBFGS, "a": torch.optim.Adam}\n'


NAMED = "import torch\nTABLE = dict(a=torch.optim.AdamW, l=torch.optim.LBFGS)\n"
JOINED = "import torch\nTABLE = {'a': torch.optim.AdamW} | {'l': torch.optim.LBFGS}\n"
JOINED_LATER = "import torch\nTABLE = {'a': torch.optim.AdamW}\nTABLE |= {'l': torch.optim.LBFGS}\n"


@pytest.mark.parametrize(
    ("schema", "picks"),
    [
        (TABLE, "TABLE['{}']"),
        (TABLE, "TABLE.get('{}')"),
        (TABLE, "(TABLE if config else TABLE)['{}']"),
        (PAIRS, "TABLE['{}'][0]"),
        (NESTED, "TABLE['t']['{}']"),
        (FILLED, "TABLE['{}']"),
        (FILLED_DEEP, "TABLE['t']['{}']"),
        (UPDATED, "TABLE['{}']"),
        (SET_ONCE, "TABLE['{}']"),
        (MORE, "TABLE['{}']"),
        (NAMED, "TABLE['{}']"),
        (JOINED, "TABLE['{}']"),
        (JOINED_LATER, "TABLE['{}']"),
    ],
)
def test_a_key_that_stands_there(tmp_path: Path, schema: str, picks: str) -> None:
    makes = f"return {picks}(model.parameters())"
    (found,) = said(tmp_path, schema, "from schema import TABLE", makes.format("l"))
    assert "torch.optim.LBFGS" in found
    assert said(tmp_path, schema, "from schema import TABLE", makes.format("a")) == []


@pytest.mark.parametrize(
    ("schema", "picks"),
    [
        (CHOSEN, "TABLE['a']"),
        (NESTED, "TABLE[config]['l']"),
        (NESTED, "TABLE['t'][config]"),
        (CLASS, "TABLE['L']"),
        (TABLE, "TABLE.get(config, 'a')"),
    ],
)
def test_a_key_that_may_be_another(tmp_path: Path, schema: str, picks: str) -> None:
    makes = f"return {picks}(model.parameters())"
    assert said(tmp_path, schema, "from schema import TABLE", makes)


def test_a_class_of_another_package(tmp_path: Path) -> None:
    schema = TABLE.replace("import torch", "import torch\nimport bitsandbytes as bnb").replace(
        "torch.optim.LBFGS", "bnb.optim.AdamW8bit"
    )
    (found,) = said(tmp_path, schema, "from schema import TABLE", "return TABLE[config](model.parameters())")
    assert "is not torch's" in found


def test_the_projects_own_class(tmp_path: Path) -> None:
    own = "class Own(torch.optim.Optimizer):\n    def step(self):\n        norm(self)\n"
    schema = REGISTERS.replace("[name] = {}", "[name] = cls") + f"@register('o')\n{own}"
    (found,) = said(tmp_path, schema, "from schema import TABLE", "return TABLE[config](model.parameters())")
    assert "norms, sums" in found


@pytest.mark.parametrize(
    "makes",
    [
        "return TABLE[config.name](model.parameters)",
        "return TABLE[config.name](model)",
        "return torch.optim.Adam(model.parameters())",
        "sizes = {'a': 1}\n    return sizes['a'](model.parameters())",
    ],
)
def test_other_things_that_are_called(tmp_path: Path, makes: str) -> None:
    schema = TABLE.replace("torch.optim.LBFGS", "make.other") if "TABLE" in makes else TABLE
    assert said(tmp_path, schema, "from schema import TABLE", makes) == []


OWN = """\
import torch


class Own(torch.optim.Optimizer):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.norm()
"""
TRIES = """\
import torch
from own import Own
from torch.nn.parallel import DistributedDataParallel


class Tries:
    def made(self, tensors):
        params = [torch.nn.Parameter(each) for each in tensors]
        return self.own_optim(params)


class OwnTries(Tries):
    def __init__(self):
        self.own_optim = Own
"""
HOOKED = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD"))
model, optimizer = accelerator.prepare(model, optimizer)
"""


@pytest.mark.parametrize(("name", "is_said"), [("test_own.py", False), ("make.py", True)])
def test_what_tests_choose_among_is_none_of_a_runs(tmp_path: Path, name: str, *, is_said: bool) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "train.py").write_text(HOOKED)
    (tmp_path / name).write_text(TRIES)
    found = {(use.path.rpartition("/")[2], use.code) for use in scan_paths([tmp_path]).uses}
    assert (("own.py", "FM445") in found) is is_said
