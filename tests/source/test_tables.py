"""Models of classes that a table holds, and what constructors and DistributedDataParallel make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.test_plain_places import SAVE, named


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAID = {"FM308", "FM333", "FM450"}
NETS = "class Small(Net):\n    pass\nclass Wide(Net):\n    pass\ndef sharded(x):\n    return wrap(Net(x))\n"
USES = "from tools import save\nfrom wrap import wrap\n"
NESTED = "TABLE = {'a': {'cls': Small, 'size': 1}, 'b': {'cls': Wide, 'size': 2}}\n"
FLAT = "TABLE = {'a': Small, 'b': Wide}\n"
BY_FLAT = "def run(x):\n    model = TABLE[x](1)\n    save(model)\nrun(1)\n"
BY_NESTED = "def run(x):\n    its = TABLE[x]\n    model = its['cls'](**its)\n    save(model)\nrun(1)\n"


def is_said(folder: Path, tools: str, other: str) -> bool:
    """Tell whether anything is said of a state in the tools of a project."""
    named(folder, tools, other)
    uses = scan_paths([folder]).uses
    return any(each.code in SAID and each.path.endswith("tools.py") for each in uses)


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        (f"{FLAT}{BY_FLAT}", False),
        (f"{FLAT}{BY_FLAT.replace('TABLE[x]', 'TABLE.get(x)')}", False),
        (f"{FLAT}print(', '.join(TABLE), len(TABLE))\n{BY_FLAT}", False),
        (f"{NESTED}{BY_NESTED}", False),
        (f"{FLAT.replace('Wide', 'lib.Wide')}{BY_FLAT}", True),
        (f"{FLAT.replace('Wide', 'lambda x: wrap(Net())')}{BY_FLAT}", True),
        (f"{FLAT.replace('Wide', 'sharded')}{BY_FLAT}", True),
        (f"{NESTED.replace('Wide', 'sharded')}{BY_NESTED}", True),
        (f"{FLAT}TABLE['c'] = lib.Large\n{BY_FLAT}", True),
        (f"{FLAT}TABLE.update(lib.more)\n{BY_FLAT}", True),
        (f"{FLAT}lib.fill(TABLE)\n{BY_FLAT}", True),
        (f"{FLAT}lib.fill(into=TABLE)\n{BY_FLAT}", True),
        (f"{FLAT}import other\nother.TABLE |= lib.more\n{BY_FLAT}", True),
        (f"{FLAT}# TABLE['c'] = lib.Large, or lib.fill(TABLE)\n{BY_FLAT}", False),
        (f"{FLAT}print(f'{{len(TABLE)}}', tuple(TABLE))\n{BY_FLAT}", False),
        (f'{FLAT}"""TABLE.update(x)"""\n{BY_FLAT}', False),
        (f"{FLAT.replace('}', ', **lib.more}')}{BY_FLAT}", True),
        (f"{FLAT}def fill():\n    global TABLE\n    TABLE = lib.more\n{BY_FLAT}", True),
        (f"{FLAT}{BY_FLAT.replace('TABLE[x]', 'TABLE.get(x, lib.Wide)')}", True),
        (f"{FLAT}{BY_FLAT.replace('TABLE[x](1)', 'TABLE[x](wrap(Net()))')}", True),
        (f"{FLAT}{BY_FLAT.replace('save(model)', 'wrap(model)' + chr(10) + '    save(model)')}", True),
    ],
)
def test_what_a_table_of_the_projects_classes_makes(tmp_path: Path, other: str, *, is_named: bool) -> None:
    assert is_said(tmp_path, SAVE, f"{USES}{NETS}{other}") is is_named


VLM = (
    "class Vlm(torch.nn.Module):\n    def __init__(self, part):\n        super().__init__()\n"
    "        self.net = part\n"
    "    def fsdp_wrapping_policy(self):\n        return lib.policy(Net)\n"
    "    @classmethod\n    def {method}(cls, part, path):\n        vlm = cls(part)\n"
    "        vlm.net.load_state_dict(torch.load(path))\n        return vlm\n"
)
LOADS = "from tools import Vlm\nfrom wrap import wrap\nvlm = Vlm.{method}({part}, 'x')\n{more}wrap(vlm)\n"


@pytest.mark.parametrize(
    ("method", "part", "more", "is_named"),
    [
        ("from_file", "Net()", "", False),
        ("from_file", "wrap(Net())", "", True),
        ("from_file", "lib.net", "", True),
        ("from_file", "Net()", "Vlm.from_file(lib.net, 'y')\n", True),
        ("from_file", "Net()", "class Other(Vlm):\n    pass\nOther.from_file(wrap(Net()), 'y')\n", True),
    ],
)
def test_what_a_classmethod_of_a_module_has_just_made(
    tmp_path: Path, method: str, part: str, more: str, *, is_named: bool
) -> None:
    other = LOADS.format(method=method, part=part, more=more)
    assert is_said(tmp_path, VLM.format(method=method), other) is is_named


@pytest.mark.parametrize(
    ("method", "more", "is_named"),
    [
        ("from_file", "", False),
        ("from_file", "lib.call(Vlm.from_file)\n", True),
        ("_load_from_state_dict", "", True),  # torch calls it
    ],
)
def test_who_else_may_call_a_modules_method(
    tmp_path: Path, method: str, more: str, *, is_named: bool
) -> None:
    vlm = (
        VLM.format(method=method)
        .replace("(cls, part, path)", "(cls, net, path)")
        .replace("cls(part)", "cls(net)")
    )
    assert is_said(tmp_path, vlm, LOADS.format(method=method, part="Net()", more=more)) is is_named


DDPS = (
    "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    "class Strategy:\n    def __init__(self, vlm, x):\n        self.vlm = vlm\n{init}"
    "class Ddps(Strategy):\n    def setup(self, x):\n{setup}"
    "    def save(self):\n        torch.save(self.vlm.module.state_dict(), 'x')\n"
)
WRAPPED = "        self.vlm = DDP(self.vlm)\n"


@pytest.mark.parametrize(
    ("setup", "is_named"),
    [
        (WRAPPED, False),
        (f"        if x:\n    {WRAPPED}", True),
        ("        self.vlm = DDP(self.vlm) if x else self.vlm\n", True),
        ("        self.vlm = lib.DDP(self.vlm)\n", True),
        ("        self.vlm = self.vlm.eval()\n", True),
    ],
)
def test_what_a_class_puts_into_ddp_in_any_case(tmp_path: Path, setup: str, *, is_named: bool) -> None:
    made = "from tools import Ddps\nd = Ddps(lib.net, 1)\nd.setup(1)\nd.save()\n"
    assert bool(named(tmp_path, DDPS.format(init="", setup=setup), made)) is is_named


@pytest.mark.parametrize(("value", "is_named"), [("DDP(net)", False), ("lib.wrap(net)", True)])
def test_what_a_function_puts_into_ddp(tmp_path: Path, value: str, *, is_named: bool) -> None:
    does = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        f"def run(net, x):\n    net = {value}\n    torch.save(net.module.state_dict(), x)\n"
    )
    assert bool(named(tmp_path, does, "from tools import run\nrun(lib.net, 1)\n")) is is_named


FITS = (
    "class Keeper:\n    def keep(self, net, path):\n        torch.save(net.state_dict(), path)\n"
    "def get(cls_of_lib, x):\n    lib.{call}\n"
)
KEPT = "from tools import Keeper\nKeeper().keep(Net(), 'x')\n"


@pytest.mark.parametrize(
    ("call", "is_named"),
    [
        ("thing.keep(x)", False),  # it lacks an argument: another method of that name
        ("thing.keep(x, y, z)", False),
        ("thing.keep(x, other=1)", False),
        ("thing.keep(x.net, 1)", True),
        ("thing.keep(*x)", True),
        ("thing.keep(**x)", True),
        ("thing.keep(path=1, net=x.net)", True),
    ],
)
def test_a_call_that_does_not_fit_is_of_another_method(tmp_path: Path, call: str, *, is_named: bool) -> None:
    assert is_said(tmp_path, FITS.format(call=call), KEPT) is is_named


SETS = (
    "class Keeper:\n    def __init__(self, net):\n        self.net = net\n"
    "    def keep(self):\n        torch.save(self.net.state_dict(), 'x')\n"
)


@pytest.mark.parametrize(
    ("sets", "is_named"),
    [
        ("for name, p in k.net.named_parameters():\n    print(name)\n", False),
        ("class State:\n    pass\ndef fill(state: State, net):\n    state.net = net\n", False),
        ("class State:\n    pass\ns = State()\ns.net = lib.net\n", False),
        ("def fill(state: Keeper, net):\n    state.net = net\n", True),
        ("class More(Keeper):\n    pass\ndef fill(state: More, net):\n    state.net = net\n", True),
        ("def fill(state, net):\n    state.net = net\n", True),
        ("k.net = lib.net\n", True),
        ("# k.net = lib.net, and class More(Keeper):\n", False),
        ("print('k.net = lib.net')\n", False),
        ("setattr(k, 'net', lib.net)\n", True),
        ("print('setattr(k, \\'net\\', x)')\n", False),
        ("with lib.open() as k.net:\n    k.keep()\n", True),
        ("[0 for k.net in lib.nets]\n", True),
        ("k.net.add_module('x', lib.net)\n", True),
        ("import tools\nclass More(tools.Keeper):\n    pass\n", True),
        ("for k.net in lib.nets:\n    k.keep()\n", True),
    ],
)
def test_who_sets_an_attribute(tmp_path: Path, sets: str, *, is_named: bool) -> None:
    other = f"from tools import Keeper\nk = Keeper(Net())\n{sets}k.keep()\n"
    assert is_said(tmp_path, SETS, other) is is_named


@pytest.mark.parametrize(
    ("made", "is_named"), [("Net()", False), ("lib.net", True), ("lib.shard(Net())", True)]
)
def test_what_a_fixture_gives(tmp_path: Path, made: str, *, is_named: bool) -> None:
    tests = (
        "import pytest\nfrom tools import save\nfrom wrap import wrap\n"
        f"@pytest.fixture\ndef net():\n    return {made}\n"
        "def test_save(net):\n    save(net)\n"
    )
    assert is_said(tmp_path, SAVE, tests) is is_named
