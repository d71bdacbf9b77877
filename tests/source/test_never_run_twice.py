"""What never runs is told alike of a source by itself and of a project's file: one table for both."""

from __future__ import annotations

import ast
from pathlib import Path

import libcst as cst
import pytest

from fsdp_migrate.source.project import Module
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.never_run import NeverRun
from fsdp_migrate.source.python.scopes import Index


pytestmark = pytest.mark.any_torch


def of_a_source(text: str) -> set[str]:
    """Return the functions whose calls never run, as the source by itself shows them."""
    index = Index(cst.parse_module(text))
    never = NeverRun(index)
    calls = (cst.ensure_type(each, cst.Call) for each in index.by_kind[cst.Call])
    return {each.func.value for each in calls if isinstance(each.func, cst.Name) and never.holds(each)}


def of_a_file(text: str) -> set[str]:
    """Return the functions whose calls never run, as a project's file shows them."""
    scopes = scopes_of(Module(Path("a.py"), ("a",), ast.parse(text)))
    nodes = (node for scope in scopes for each in scope.never for node in ast.walk(each))
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return {each.id for each in calls if isinstance(each, ast.Name)}


def said(text: str) -> bool:
    """Tell whether ``fsdp1()`` never runs, by both, and nothing else does."""
    assert of_a_source(text) == of_a_file(text), text
    assert of_a_source(text) <= {"fsdp1"}
    return "fsdp1" in of_a_source(text)


FLAGS = """\
{above}
try:
    from torch.distributed.fsdp import fully_shard
    HAS = True
except ImportError{caught}:
    {other}
{below}
def main(model):
    if {test}:
        fsdp2(model)
    else:
        fsdp1(model)
"""
SETS = "def turn():\n    global HAS\n    HAS = False\n"
BINDS = (
    SETS,
    "def turn():\n    global HAS\n    for HAS in all:\n        pass\n",
    "def turn():\n    global HAS\n    import HAS\n",
    "def turn():\n    global HAS\n    del HAS\n",
    "def turn():\n    HAS = False\n    return HAS\n",
    "def turn(HAS):\n    return HAS\n",
    "turn = lambda HAS: HAS\n",
    "found = [HAS for HAS in all]\n",
    "class Turn:\n    HAS = False\n",
    "class Turn:\n    def turn(self):\n        global HAS\n        HAS = None\n",
    "with lib.found() as HAS:\n    pass\n",
    "with lib.found() as (HAS, other):\n    pass\n",
    "try:\n    lib()\nexcept ValueError as HAS:\n    pass\n",
    "match lib.found:\n    case HAS:\n        pass\n",
    "match lib.found:\n    case [1, *HAS]:\n        pass\n",
    "match lib.found:\n    case {'x': 1, **HAS}:\n        pass\n",
    "match lib.found:\n    case int() as HAS:\n        pass\n",
    "for HAS in lib.found:\n    pass\n",
    "HAS, other = lib.found\n",
    "HAS: bool = asked()\n",
    "HAS &= asked()\n",
    "print(HAS := asked())\n",
    "def HAS():\n    pass\n",
    "async def HAS():\n    pass\n",
    "class HAS:\n    pass\n",
    "import lib as HAS\n",
    "from lib import HAS\n",
    "del HAS\n",
    "del other, HAS\n",
)


def flags(
    above: str = "", below: str = "", other: str = "HAS = False", caught: str = "", test: str = "HAS"
) -> str:
    return FLAGS.format(above=above, below=below, other=other, caught=caught, test=test)


@pytest.mark.parametrize("binds", BINDS)
def test_a_name_that_is_bound_elsewhere_says_nothing(binds: str) -> None:
    assert not said(flags(above=binds))
    assert not said(flags(below=binds))


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        (flags(), True),
        (flags(above="HAS = False\n"), True),
        (flags(above="HAS = False\n", other="pass"), True),
        (flags(above="HAS: bool = False\n", other="pass"), True),
        (flags(above="HAS: bool\n"), True),
        (flags(above="HAS, other = False, lib.found\n", other="pass"), True),
        (flags(above="HAS = other = False\n"), True),
        (flags(above="HAS = None\n"), False),
        (flags(above="HAS = True\n", other="pass"), False),
        (flags(above="HAS = asked()\n"), False),
        (flags(below="HAS = False\n"), False),
        (flags(below="HAS = True\n"), False),
        (flags(below="lib.HAS = False\nprint(HAS)\nother = HAS\n"), True),
        (flags(below="def turn():\n    global HAS\n    return HAS\n"), True),
        (flags(below="del lib.found\n"), True),
        (flags(below="match lib.found:\n    case {'HAS': 1, **rest}:\n        pass\n"), True),
        (flags(above="from lib import *\n"), True),
        (flags(below="from lib import *\n"), False),
        (flags(other="from lib import *"), False),
        (flags(caught=" as HAS"), False),
        (flags(caught=" as error"), True),
        (flags(other="HAS = None"), True),
        (flags(other="HAS = lib.found"), False),
        (flags(other="from lib import HAS"), False),
        (flags(other="def HAS(): pass"), False),
        (flags(other="pass"), False),
        (flags(test="not (not HAS)"), True),
        (flags(test="HAS or asked()"), True),
        (flags(test="HAS and asked()"), False),
        (flags(test="HAS is not None", other="HAS = None"), True),
        (flags(test="HAS is not None"), True),
    ],
)
def test_names_that_say_whether_there_is_fsdp2(text: str, *, is_known: bool) -> None:
    assert said(text) is is_known


XLA = """\
{above}
try:
    import torch_xla.core.xla_model as xm
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
except ImportError:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    xm = None
{below}
def main(model):
    if xm:
        fsdp1(model)
"""


@pytest.mark.parametrize(
    ("more", "is_known"),
    [
        ("", True),
        ("from torch.distributed.fsdp import StateDictType\n", True),
        *((binds.replace("HAS", "xm"), False) for binds in BINDS),
        *((binds.replace("HAS", "FSDP"), False) for binds in BINDS),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n", False),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as TorchFSDP\n", False),
        ("def f():\n    from torch.distributed.fsdp import FullyShardedDataParallel\n", False),
        ("import torch\nkind = torch.distributed.fsdp.FullyShardedDataParallel\n", False),
    ],
)
def test_branches_of_torch_xla(more: str, *, is_known: bool) -> None:
    assert said(XLA.format(above=more, below="")) is is_known
    assert said(XLA.format(above="", below=more)) is is_known


TRIES = """\
import torch
from torch import nn
from lib import made
class T(nn.Module):
    def shard(self):
        import apex
    def half(self):
        import apex
def helps(model):
    import apex
def main(self, model, trainer, log):
    try:
        from {home} import {names}
        {more}
        fully_shard(model)
    except ImportError:
        fsdp1(model)
"""


def tries(more: str = "pass", names: str = "fully_shard", home: str = "torch.distributed.fsdp") -> str:
    return TRIES.format(more=more, names=names, home=home)


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        (tries(), True),
        (tries(home="torch.distributed._composable.fsdp"), True),
        (tries(names="fully_shard, FSDPModule, MixedPrecision, StateDictType"), True),
        # These stand in its modules `wrap` and `sharded_grad_scaler` alone, so that the import fails.
        (tries(names="fully_shard, ShardedGradScaler"), False),
        (tries(names="fully_shard, size_based_auto_wrap_policy"), False),
        (tries(names="fully_shard, ModuleWrapPolicy"), False),
        (tries(names="fully_shard, StateDictType", home="torch.distributed._composable.fsdp"), False),
        (tries("import torch.nn as nn"), True),
        (tries("import functools, json"), True),
        (tries("from typing import Any"), True),
        (tries("from functools import partial"), True),
        (tries("from typing import override"), False),
        (tries("from typing import *"), False),
        (tries("import tomllib"), False),
        (tries("import winreg"), False),
        (tries("import distutils"), False),
        (tries("from functools import of_a_later_one"), False),
        (tries("model.to(0)"), True),
        (tries("model.half_of_it()"), False),
        (tries("model.train().to(0)"), False),
        (tries("log.info('by FSDP2')"), True),
        (tries("kinds = [m for m in model.modules() if isinstance(m, nn.Linear)]"), True),
        (tries("torch.cuda.set_device(0)"), True),
        (tries("torch.load('x')"), False),
        (tries("torch.hub.load('x', 'y')"), False),
        (tries("T.shard(model)"), False),
        (tries("T.to(model)"), False),
        (tries("model.half()"), False),
        (tries("trainer.backend.shard(model)"), False),
        (tries("trainer.shard(model)"), False),
        (tries("self.to(0)"), False),
        (tries("super().to(0)"), False),
        (tries("made.to(0)"), False),
        (tries("helps(model)"), False),
        (tries("T(model)"), False),
        (tries("unknown(model)"), False),
        (tries("list(map(helps, model.layers))"), False),
        (tries("torch.utils.checkpoint.checkpoint(helps, model)"), False),
        (tries("sorted(model.layers, key=helps)"), False),
        (tries("__import__('apex')"), False),
        (tries("exec('import apex')"), False),
        (tries("import importlib"), False),
    ],
)
def test_what_may_lack_an_import(text: str, *, is_known: bool) -> None:
    assert said(text) is is_known


LEAVES = """\
def main(args, model):
    while args.more:
        {}
        fsdp1(model)
    return last(model)
"""


@pytest.mark.parametrize(
    ("leaves", "is_known"),
    [
        ("continue", True),
        ("raise ValueError", True),
        ("if args.x: break\n        else: return None", True),
        ("if args.x: break", False),
        ("pass", False),
        ("for x in args.all: break", False),
        ("with args.all: break", False),
        ("def f(): return 1", False),
    ],
)
def test_what_stands_below_a_statement_that_leaves(leaves: str, *, is_known: bool) -> None:
    assert said(LEAVES.format(leaves)) is is_known
