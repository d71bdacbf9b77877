"""Names that a model had before it was sharded, in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths
from tests.source.samples import codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


ACCELERATE = "from accelerate import Accelerator, FullyShardedDataParallelPlugin as Plugin\n"
BY = {
    "torch": "model = FSDP(model)",
    "on a device": "model = FSDP(model.to(0), device_id=0)",
    "accelerate": "model, opt = accelerator.prepare(model, opt)",
    "alone": "net = accelerator.prepare(model)",
    "fabric": "net, opt = fabric.setup(model, opt)",
}
MADE = {
    "accelerate": f"{ACCELERATE}accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy=1))\n",
    "alone": f"{ACCELERATE}accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy=1))\n",
    "fabric": "from lightning.fabric import Fabric\nfabric = Fabric(strategy='fsdp')\n",
}
SAVE = "raw.state_dict()"


def is_named(body: str, how: str = "torch") -> bool:
    lines = body.replace("WRAP", BY[how]).splitlines()
    code = MADE.get(how, "") + "def main(model, opt):\n" + "".join(f"    {line}\n" for line in lines)
    return ("FM333", "commented") in codes(code)


@pytest.mark.parametrize("how", BY)
def test_a_name_from_before_is_the_sharded_model(how: str) -> None:
    assert is_named(f"raw = model\nWRAP\nx = {SAVE}", how)
    assert not is_named(f"raw = model\nx = {SAVE}\nWRAP", how)


@pytest.mark.parametrize(
    ("above", "is_said"),
    [
        ("raw = model\nmodel = model.to(0)", True),
        ("raw = None\nraw = model", True),
        ("raw = model.to(0).eval()", True),
        ("inner = model.cuda()\nraw = inner", True),
        ("raw = make()\nmodel = raw", True),
        ("raw = make()\nmodel = raw.to(0)", True),
        ("raw = make()\nmodel = raw\nmodel = Net()", False),
        ("raw = model.to(0)\nraw = Net()", False),
        ("inner = model\ninner = Net()\nraw = inner", False),
        ("raw = Net()\nmodel = Net(raw)", False),
        ("raw = copy.deepcopy(model)", False),
        ("raw = model\nmodel = Net()", False),
        ("raw = model\nraw = Net()", False),
        ("raw = other", False),
        ("raw = model.head", False),
    ],
)
def test_what_was_bound_anew_is_another(above: str, *, is_said: bool) -> None:
    assert is_named(f"{above}\nWRAP\nx = {SAVE}") is is_said


KEPT = """\
from torch.nn.parallel import DistributedDataParallel as DDP

class Engine{}:
    def __init__(self, model, switch):
        super().__init__()
        self.model = model.to("cuda")
        if switch:
            model = FSDP(model)
        else:
            {}
        self.trained = model

    def save(self):
        return self.model.state_dict()
"""


@pytest.mark.parametrize("base", ["", "(torch.nn.Module)"])
@pytest.mark.parametrize(
    "other", ["pass", "self.model = DDP(self.model)", "self.model = torch.compile(self.model)"]
)
def test_another_branch_takes_no_name_from_the_sharded_model(base: str, other: str) -> None:
    assert ("FM333", "commented") in codes(f"import torch\n{KEPT.format(base, other)}")
    there = KEPT.format(base, other).replace("model = FSDP(model)", "self.sharded = FSDP(Net())")
    assert ("FM333", "commented") not in codes(f"import torch\n{there}")


def test_what_another_branch_calls_so_is_another_model() -> None:
    assert not is_named(f"if switch:\n    raw = model\nelse:\n    WRAP\n    x = {SAVE}")


FIT = """\
class Trainer:
    def fit(self, model, optimizer):
        self.inner = model
        model, optimizer = self.accelerator.prepare(model, optimizer)
        if self.accelerator.is_main_process:
            print(self.norm())

    def norm(self):
        return sum(p.grad.detach().norm(2) ** 2 for p in {}.parameters())
"""


def test_an_attribute_from_before_is_the_sharded_model_in_other_methods() -> None:
    for name, is_said in (("self.inner", True), ("self.other", False)):
        assert (("FM423", "commented") in codes(MADE["accelerate"] + FIT.format(name))) is is_said


INNER = {
    "torch": ("net = FSDP({})", ""),
    "accelerate": ("net = accelerator.prepare({})", "accelerate"),
    "with others": ("net, opt = accelerator.prepare({}, opt)", "accelerate"),
    "fabric": ("net = fabric.setup({})", "fabric"),
    "in a choice": ("net = FSDP({}) if opt.shard else other", ""),
    "alone": ("train(FSDP({}))", ""),
    "as an attribute": ("self.model = FSDP({})", ""),
    "by a function": ("net = shard({})", ""),
    "by a class": ("net = Runner({})", ""),
    "by two": ("net = shard_twice({})", ""),
}
SHARD = """\
def shard(inner):
    inner = inner.to(0)
    inner = FSDP(inner)
    return inner
def shard_twice(given):
    return shard(given)
def copied(given):
    given = copy.deepcopy(given)
    return FSDP(given)
class Runner:
    def __init__(self, net):
        self.net = FSDP(net)
"""


@pytest.mark.parametrize("how", INNER)
def test_the_name_that_the_inner_model_keeps(how: str) -> None:
    line, by = INNER[how]
    made = f"{MADE.get(by, '')}{SHARD}def main(model, opt, other, self):\n"
    assert ("FM333", "commented") in codes(f"{made}    {line.format('model')}\n    model.state_dict()\n")
    for same, above in ((line, "model.state_dict()"), (line, "other.state_dict()")):
        assert ("FM333", "commented") not in codes(f"{made}    {above}\n    {same.format('model')}\n")


@pytest.mark.parametrize(
    "lines",
    [
        "net = FSDP(model)\n    model = Net()\n    model.state_dict()",
        "net = FSDP(copy.deepcopy(model))\n    model.state_dict()",
        "net = copied(model)\n    model.state_dict()",
        "net = FSDP(model)\n    if isinstance(model, Net): pass",
        "for model in opt.models:\n        model.state_dict()\n        opt.add(FSDP(model))",
    ],
)
def test_names_of_other_models(lines: str) -> None:
    found = codes(f"{SHARD}def main(model, opt):\n    {lines}\n")
    assert {code for code, action in found if action == "commented"} == set()


NEW = "{0} = make({1})\n        {0}.load_state_dict(load())\n        "
WRAPS = "    def wrap(self):\n        self.model = FSDP(self.net)\n"
OBJECT = f"class T:\n    def build(self, net):\n        {{}}\n{WRAPS}"
LOADS = "self.net.load_state_dict(net)"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (f"def f(n):\n    for i in n:\n        {NEW.format('net', 'i')}model = FSDP(net)\n", False),
        (f"def f(n):\n    while n:\n        {NEW.format('net', '')}model = FSDP(net)\n", False),
        (f"def f(n):\n    for i in n:\n        {NEW.format('net', 'i')}setattr(n, i, FSDP(net))\n", False),
        (OBJECT.format(NEW.format("self.net", "1") + "return 1"), False),
        (
            (
                "def f(n):\n    net = make()\n    for i in n:\n        net.load_state_dict(load())\n"
                "        model = FSDP(net)\n"
            ),
            True,
        ),
        ("def f(n):\n    net = make()\n    model = FSDP(net)\n    net.load_state_dict(load())\n", True),
        (
            (
                "def f(n):\n    net = make()\n    for i in n:\n        if i: net = make(i)\n"
                "        net.load_state_dict(load())\n        model = FSDP(net)\n"
            ),
            True,
        ),
        (
            OBJECT.format("self.net = make()\n        self.wrap()\n        " + LOADS),
            True,
        ),
        (OBJECT.format("self.net = make()\n        run(self)\n        " + LOADS), True),
        (OBJECT.format("self.net = self.net.to(0)\n        " + LOADS), True),
    ],
)
def test_a_name_that_was_just_given_a_new_model_has_the_plain_one(body: str, *, is_said: bool) -> None:
    assert (("FM333", "commented") in codes(body)) is is_said


def test_fabrics_model_has_a_module_and_the_inner_one_has_not() -> None:
    lines = "    net = fabric.setup(model)\n    {}.state_dict()\n"
    for name, asked in (("net", "model.module"), ("model", "model")):
        code = f"{MADE['fabric']}def main(model):\n{lines.format(name)}"
        assert f"get_model_state_dict({asked}," in " ".join(rewrite_source(code).replace("#", "").split())


_PENALTY = (
    "import torch\n\n\ndef penalty(net, weight):\n    loss = torch.tensor(0.0)\n"
    "    for name, p in net.named_parameters():\n        loss = loss + weight * torch.norm(p)\n"
    "    return loss\n"
)
_NET = (
    "import torch\nfrom penalty import penalty\n\n\nclass Net(torch.nn.Module):\n"
    "    def train_loss(self, y):\n        return y.sum() + penalty(self, 0.1)\n"
)
_STRATEGY = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n\n\n"
    "class Strategy:\n    def prepare(self, model, optimizer):\n"
    "        return accelerator.prepare(model, optimizer)\n"
)
_TRAINS = (
    "from net import Net\nfrom strategy import Strategy\n\n\nclass Loop:\n"
    "    def __init__(self, model, optimizer, strategy: Strategy):\n        self.model = model\n"
    "        self.sharded, self.optimizer = strategy.prepare({}, optimizer)\n"
    "    def step(self, x):\n        {}\n\n\nLoop(Net(), None, Strategy()).step(1)\n"
)


@pytest.mark.parametrize(
    ("given", "asks", "is_said"),
    [
        ("model", "self.model.train_loss(self.sharded(x)).backward()", True),
        ("self.model", "self.model.train_loss(self.sharded(x)).backward()", True),
        ("model", "self.sharded(x).sum().backward()", False),
        ("other", "self.model.train_loss(self.sharded(x)).backward()", False),
    ],
)
def test_a_penalty_by_a_method_of_the_inner_model(
    tmp_path: Path, given: str, asks: str, *, is_said: bool
) -> None:
    trains = _TRAINS.format(given, asks)
    files = {"penalty.py": _PENALTY, "net.py": _NET, "strategy.py": _STRATEGY, "train.py": trains}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("penalty.py")}
    assert ("FM423" in found) is is_said
    one = "".join(text for name, text in files.items() if name != "train.py") + trains
    (tmp_path / "all").mkdir()
    for name in files:
        one = one.replace(f"from {name[:-3]} import {name[:-3].title()}\n", "")
    (tmp_path / "all" / "one.py").write_text(one.replace("from penalty import penalty\n", ""))
    assert ("FM423" in {use.code for use in scan_paths([tmp_path / "all"]).uses}) is is_said
