"""States of compiled models: FSDP1's had ``_orig_mod.`` in their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source
from tests.source.projects import FSDP, after
from tests.source.samples import turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAVES = "with FSDP.state_dict_type({0}, StateDictType.FULL_STATE_DICT):\n    state = {0}.state_dict()\n"
LOST = "# fsdp-migrate: FM308 the model is compiled: FSDP1's state had `_orig_mod.` in its names"


@pytest.mark.parametrize(
    ("made", "model", "is_said"),
    [
        ("net = torch.compile(net)\nmodel = FSDP(net)\n", "model", True),
        ("model = FSDP(net)\nmodel = torch.compile(model)\n", "model", True),
        ("model = FSDP(torch.compile(net), device_id=0)\n", "model", True),
        ("model = torch.compile(net)\nmodel = FSDP(model)\n", "model", True),
        ("model = FSDP(net)\nmodel.compile()\n", "model", False),
        ("net = torch.compile(net)\nmodel = FSDP(other)\nmodel = keep(net)\n", "model", False),
        ("model = FSDP(net)\nother = torch.compile(other)\n", "model", False),
        ("model = FSDP(net)\npattern = re.compile(model)\n", "model", False),
        ("if a:\n    model = FSDP(net)\nelif b:\n    model = torch.compile(net)\n", "model", False),
        (
            "if a:\n    model = FSDP(net)\nelse:\n    net = torch.compile(net)\n    model = net\n",
            "model",
            False,
        ),
        ("if a:\n    model = FSDP(net)\nif not a:\n    model = torch.compile(net)\n", "model", False),
        ("if a:\n    net = torch.compile(net)\nelse:\n    pass\nmodel = FSDP(net)\n", "model", True),
        (
            "if a:\n    model = FSDP(net)\nelse:\n    model = torch.compile(net)\n    model = FSDP(model)\n",
            "model",
            True,
        ),
    ],
)
def test_the_prefix_of_a_compiled_model_is_said(made: str, model: str, *, is_said: bool) -> None:
    after = turned(f"{made}{SAVES.format(model)}")
    assert (LOST in after) is is_said
    assert "state = get_model_state_dict(model, options=" in after


@pytest.mark.parametrize("is_apart", [True, False])
@pytest.mark.parametrize(
    ("compiles", "is_said"),
    [("if c:\n        m = torch.compile(m)\n    return m", True), ("return m", False)],
)
def test_a_function_that_shards_what_it_is_given_and_compiles_it(
    tmp_path: Path, compiles: str, *, is_apart: bool, is_said: bool
) -> None:
    setup = f"import torch\n{FSDP}def setup(m, c):\n    m = FSDP(m)\n    {compiles}\n"
    saves = (
        "class Trainer:\n    def __init__(self, net, c):\n        self.model = setup(net, c)\n"
        "    def save(self):\n        return self.model.state_dict()\n"
    )
    files = {"setup.py": setup, "main.py": f"from setup import setup\n{saves}"}
    found = after(tmp_path, files if is_apart else {"main.py": setup + saves}, "main.py")
    assert "get_model_state_dict(self.model, " in found
    assert (LOST in found) is is_said


@pytest.mark.parametrize(
    "takes_out",
    [
        "state = {k.replace('_orig_mod.', ''): v for k, v in state.items()}\n",
        "state = {k.removeprefix('_orig_mod.'): v for k, v in state.items()}\n",
        "state = {k[len('_orig_mod.'):]: v for k, v in state.items()}\n",
        "state = {re.sub(r'^_orig_mod\\.', '', k): v for k, v in state.items()}\n",
        "P = '_orig_mod.'\nstate = {k.replace(P, ''): v for k, v in state.items()}\n",
    ],
)
def test_where_the_prefix_is_taken_out_nothing_is_lost(takes_out: str) -> None:
    made = "net = torch.compile(net)\nmodel = FSDP(net)\n"
    assert LOST not in turned(f"{made}{SAVES.format('model')}{takes_out}")


@pytest.mark.parametrize(
    "says",
    [
        "# state = {k.replace('_orig_mod.', ''): v for k, v in state.items()}\n",
        "print('names begin with _orig_mod.')\n",
        "x = state['_orig_mod.weight']\n",
    ],
)
def test_what_only_speaks_of_the_prefix_takes_nothing_out(says: str) -> None:
    made = "net = torch.compile(net)\nmodel = FSDP(net)\n"
    assert LOST in turned(f"{made}{SAVES.format('model')}{says}")


OBJECT = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class T:
    def __init__(self, net):
        {compiles}
        self.model = FSDP(net, use_orig_params=True)

class Other:
    def __init__(self, net):
        net = torch.compile(net)
        self.model = net

def main(net):
    trainer = T(net)
    state = trainer.model.state_dict()
"""


@pytest.mark.parametrize(("compiles", "is_said"), [("net = torch.compile(net)", True), ("pass", False)])
def test_the_state_is_asked_of_what_an_object_holds(compiles: str, is_said: bool) -> None:
    assert (LOST in rewrite_source(OBJECT.format(compiles=compiles))) is is_said


SAVER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

class Saver:
    def save(self, net):
        with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):
            state = net.state_dict()
        return state
"""
SHARDS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from saver import Saver

def compiled(net):
    return torch.compile(net)

def main(net, a):
    {}
"""


@pytest.mark.parametrize(
    ("lines", "is_said"),
    [
        ("m = FSDP(net)\nif a:\n    m = torch.compile(m)\nSaver().save(m)", True),
        ("if a:\n    net = torch.compile(net)\nm = FSDP(net)\nSaver().save(m)", True),
        ("m = FSDP(torch.compile(net))\nSaver().save(m)", True),
        ("m = FSDP(compiled(net))\nSaver().save(m)", True),
        ("m = compiled(FSDP(net))\nSaver().save(m)", True),
        ("m = FSDP(net)\nc = torch.compile(m)\nSaver().save(c)", True),
        ("m = FSDP(net)\nSaver().save(m)", False),
        ("m = FSDP(net)\nm.compile()\nSaver().save(m)", False),
        ("m = FSDP(net)\nc = torch.compile(m)\nSaver().save(m)", False),
        ("m = FSDP(net)\nSaver().save(m)\nm = torch.compile(m)", False),
        ("m = FSDP(net)\nc = torch.compile(net.loss)\nSaver().save(m)", False),
        ("if a:\n    m = FSDP(net)\nelse:\n    m = torch.compile(net)\nSaver().save(m)", False),
        (
            "if a:\n    m = FSDP(net)\nelse:\n    net = torch.compile(net)\n    m = net\nSaver().save(m)",
            False,
        ),
    ],
)
def test_the_model_is_compiled_in_another_file(tmp_path: Path, lines: str, *, is_said: bool) -> None:
    files = {"saver.py": SAVER, "main.py": SHARDS.format(lines.replace("\n", "\n    "))}
    saver = after(tmp_path, files, "saver.py")
    assert (LOST in saver) is is_said
    assert "state = get_model_state_dict(net, options=" in saver


def test_where_the_other_file_takes_the_prefix_out_nothing_is_lost(tmp_path: Path) -> None:
    main = SHARDS.format("m = torch.compile(FSDP(net))\n    Saver().save(m)")
    taken = SAVER.replace(
        "return state", "return {k.removeprefix('_orig_mod.'): v for k, v in state.items()}"
    )
    assert LOST not in after(tmp_path, {"saver.py": taken, "main.py": main}, "saver.py")


@pytest.mark.parametrize(
    ("made", "is_said"),
    [("return torch.compile(m)", True), ("return FSDP(torch.compile(net))", True), ("return m", False)],
)
def test_a_function_gives_the_compiled_model(tmp_path: Path, made: str, *, is_said: bool) -> None:
    imports = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    build = f"{imports}\ndef build(net):\n    m = FSDP(net)\n    {made}\n"
    used = f"model = build(net)\n{SAVES.format('model')}"
    assert (LOST in turned(f"import torch\n{build.removeprefix(imports)}{used}")) is is_said
    main = f"from build import build\n{SAVER.partition('class')[0]}{used}"
    assert (LOST in after(tmp_path, {"build.py": build, "main.py": main}, "main.py")) is is_said
