"""Calls whose constants leave out the branch that shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

BY_SIZE = "def get(size):\n    m = Net()\n    if size > 1:\n        m = FSDP(m)\n    return m\n"
BY_DEFAULT = "def get(x, size=1):\n    m = Net(x)\n    if size == 1:\n        return m\n    return FSDP(m)\n"
BY_WORD = (
    "def get(strategy, fsdp=False):\n    m = Net()\n"
    "    m = FSDP(m) if strategy.lower() in ('fsdp', 'hsdp') else m\n"
    "    if fsdp and torch.cuda.is_available():\n        m = shard(m)\n    return m\n"
    "def shard(m):\n    return FSDP(m)\n"
)
BY_ANOTHER = (
    "def get(a, b):\n    m = Net()\n    if a:\n        m = FSDP(m)\n    m = last(m, b)\n    return m\n"
    "def last(m, b):\n    return FSDP(m) if b else m\n"
)
BY_METHOD = "def get(kind):\n    m = Net()\n    if kind.is_one():\n        m = FSDP(m)\n    return m\n"
GIVEN = f"{BY_SIZE.replace('size):', 'size, m=None):')}def own(x):\n    return FSDP(x)\n"
BOUND_ANEW = BY_SIZE.replace("    m = Net()", "    size = size or world()\n    m = Net()")
WRAPS = BY_SIZE.replace("    return m", "    my_wrap(m)\n    return m")
METHOD = (
    "class Maker:\n    def get(self, rank, size):\n        m = Net()\n        if size > 1:\n"
    "            m = FSDP(m)\n        return m\n"
)
SAVES = (
    "import torch\nfrom make import {}\n"
    "def main(args):\n    model = {}\n    torch.save(model.state_dict(), 'x')\n"
)


@pytest.mark.parametrize(
    ("makes", "call", "is_sharded"),
    [
        (BY_SIZE, "get(1)", False),
        (BY_SIZE, "get(size=1)", False),
        (BY_SIZE, "get(2)", True),
        (BY_SIZE, "get(args.size)", True),
        (BY_SIZE, "get(*args)", True),
        (BY_SIZE, "get(**args)", True),
        (BY_DEFAULT, "get(args)", False),
        (BY_DEFAULT, "get(args, 2)", True),
        (BY_DEFAULT, "get(args, **args.more)", True),
        (BY_WORD, "get('DDP')", False),
        (BY_WORD, "get('FSDP')", True),
        (BY_WORD, "get('ddp', True)", True),
        (BY_WORD, "get('ddp', fsdp=args.fsdp)", True),
        (BY_METHOD, "get('one')", True),
        (GIVEN, "get(1, setup_model(args))", True),
        (GIVEN, "get(1, load(args))", False),
        (BY_ANOTHER, "get(False, False)", True),
        (BOUND_ANEW, "get(1)", True),
        (WRAPS, "get(1)", True),
        (METHOD, "Maker().get(rank=0, size=1)", False),
        (METHOD, "Maker().get(0, args.size)", True),
    ],
)
def test_a_constant_may_leave_out_the_branch_that_shards(
    tmp_path: Path, makes: str, call: str, is_sharded: bool
) -> None:
    (tmp_path / "make.py").write_text(f"import torch\n{FSDP}{makes}")
    (tmp_path / "run.py").write_text(SAVES.format(call.partition("(")[0], call))
    if not is_sharded:
        (tmp_path / "same.py").write_text(f"import torch\n{FSDP}{makes}{SAVES.format('x', call)}")
    uses = [each for each in scan_paths([tmp_path]).uses if each.text == "model.state_dict()"]
    assert bool(uses) is is_sharded
    assert {each.code for each in uses} <= {"FM308", "FM333"}


GIVES_BACK = "def get(m, compiles=False):\n    if compiles:\n        m = torch.compile(m)\n    return m\n"
KEEPS = (
    "class T:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
    "    def get(self, compiles=False):\n        if compiles:\n            return torch.compile(self.net)\n"
    "        return self.net\n"
)


@pytest.mark.parametrize(
    ("makes", "call"),
    [
        (f"{GIVES_BACK}def main(net):\n    m = FSDP(net)\n    model = get(m)\n", "model"),
        (f"{GIVES_BACK}def main(net):\n    model = get(FSDP(net))\n", "model"),
        (
            f"{GIVES_BACK}def own(x):\n    return FSDP(x)\ndef main(net):\n    model = get(own(net))\n",
            "model",
        ),
        (f"{KEEPS}def main(net):\n    t = T(net)\n    model = t.get()\n", "model"),
    ],
)
def test_what_is_sharded_before_is_given_back(tmp_path: Path, makes: str, call: str) -> None:
    (tmp_path / "run.py").write_text(f"import torch\n{FSDP}{makes}    torch.save({call}.state_dict(), 'x')\n")
    assert "FM308" in {each.code for each in scan_paths([tmp_path]).uses}


def test_each_call_is_asked_by_itself(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(f"{FSDP}{BY_SIZE}")
    other = "def other(args):\n    large = get(args.size)\n    torch.save(large.state_dict(), 'y')\n"
    (tmp_path / "run.py").write_text(SAVES.format("get", "get(1)") + other)
    assert [each.text for each in scan_paths([tmp_path]).uses if each.code == "FM308"] == [
        "large.state_dict()"
    ]


EXPORT = (
    "import torch\ndef first(model, path):\n    torch.save(model.state_dict(), path)\n"
    "def second(model, path):\n    return torch.equal(model.a.weight, model.b.weight)\n"
    "def export(model, path, version=0):\n    if version == 0:\n        first(model, path)\n"
    "    elif version == -1:\n        second(model, path)\n        torch.save(model.state_dict(), path)\n"
)
LEAVES = EXPORT.replace(
    "        first(model, path)\n    elif version == -1:", "        return first(model, path)\n    if True:"
)
WRAPS_IT = EXPORT.replace(
    "    if version == 0:", "    if version == -1:\n        model = FSDP(model)\n    if version == 0:"
)
SETS_IT = EXPORT.replace("    if version == 0:", "    version = version or 1\n    if version == 0:")
IN_CLASS = EXPORT.replace("def export(", "class Out:\n  def export(self, ").replace("\n    ", "\n     ")


@pytest.mark.parametrize(
    ("lib", "calls", "is_reached"),
    [
        (EXPORT, "export(FSDP(net), 'x')", False),
        (EXPORT, "export(FSDP(net), 'x', 0)", False),
        (EXPORT, "export(FSDP(net), 'x', version=1)", False),
        (
            EXPORT,
            "export(model=FSDP(net), path='x', version=0)\n    export(torch.nn.Linear(1, 1), 'y', -1)",
            False,
        ),
        (LEAVES, "export(FSDP(net), 'x', 0)", False),
        (IN_CLASS, "Out().export(FSDP(net), 'x', 0)", False),
        (EXPORT, "export(FSDP(net), 'x', -1)", True),
        (EXPORT, "export(FSDP(net), 'x', args.version)", True),
        (EXPORT, "export(FSDP(net), 'x', **args)", True),
        (EXPORT, "export(FSDP(net), 'x', 0)\n    export(FSDP(net), 'x', -1)", True),
        (
            EXPORT,
            "export(FSDP(net), 'x', 0)\n    kinds = {'x': export}\n    kinds[n](FSDP(net), 'x', n)",
            True,
        ),
        (WRAPS_IT, "export(FSDP(net), 'x', 0)", True),
        (SETS_IT, "export(FSDP(net), 'x', 0)", True),
    ],
)
@pytest.mark.parametrize("is_one", [True, False])
def test_a_branch_that_a_calls_constants_leave_out(
    tmp_path: Path, lib: str, calls: str, is_reached: bool, is_one: bool
) -> None:
    main = f"def main(net, args):\n    {calls}\n"
    lib = f"{FSDP}{lib}"
    files = (
        {"main.py": f"{lib}{main}"}
        if is_one
        else {"lib.py": lib, "main.py": f"{FSDP}from lib import *\n{main}"}
    )
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = [use for use in scan_paths([tmp_path]).uses if use.code in {"FM308", "FM423", "FM450"}]
    assert any(use.line > 4 for use in found) is is_reached
