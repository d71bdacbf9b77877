"""A model is followed through the source."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp_migrate.source.python.nodes import kept
from fsdp_migrate.source.python.scopes import Index
from fsdp_migrate.source.python.text import Source
from tests.source.samples import IMPORTS, ONE_TURNED, codes, turned


pytestmark = pytest.mark.any_torch


FLOWS = [
    "def train(model):\n    model.clip_grad_norm_(1.0)\n\n\ntrain(FSDP(net))\n",
    "def train(model: FSDP):\n    model.clip_grad_norm_(1.0)\n",
    "def train(x):\n    if isinstance(x, FSDP):\n        x.clip_grad_norm_(1.0)\n",
    "def make():\n    return FSDP(net), 1\n\n\nx, one = make()\nx.clip_grad_norm_(1.0)\n",
    (
        "class T:\n    def __init__(self):\n        self.net = FSDP(net)\n\n    def step(self):\n"
        "        self.net.clip_grad_norm_(1.0)\n"
    ),
    "x = torch.compile(FSDP(net).cuda())\nx.clip_grad_norm_(1.0)\n",
    "def step(model, config):\n    if config.enable_fsdp:\n        model.clip_grad_norm_(1.0)\n",
]


@pytest.mark.parametrize("body", FLOWS)
def test_a_model_is_followed_through_the_source(body: str) -> None:
    assert ("FM311", "rewritten") in codes(body)
    after = turned(body)
    assert "clip_grad_norm_(" in after
    assert ".clip_grad_norm_(" not in after


def test_what_torch_compile_holds_is_the_model() -> None:
    body = "model = torch.compile(FSDP(net))\nmodel._orig_mod.load_state_dict(state)\n"
    assert "load_model_state_dict(model._orig_mod, state)" in turned(body)


@pytest.mark.parametrize(
    ("body", "is_turned"),
    [
        ("parts[k].load_state_dict(state)\nparts[k] = FSDP(parts[k])\n", False),
        ("parts[k] = FSDP(parts[k])\nparts[k].load_state_dict(state)\n", True),
        ("parts[0] = FSDP(net)\nparts[1].load_state_dict(state)\n", True),
    ],
)
def test_an_item_is_plain_until_it_is_wrapped(body: str, is_turned: bool) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    assert ("load_model_state_dict" in turned(f"def run(parts, state):\n{lines}{ONE_TURNED}")) is is_turned


def test_an_attribute_that_may_be_of_another_class_is_not_certain() -> None:
    body = (
        "class Pipe:\n    def __init__(self, model=None):\n"
        "        model = FSDP(net)\n        self.model = Plain() if alone else model\n"
        "    def load(self, state):\n        self.model.load_state_dict(state)\n"
    )
    assert "load_model_state_dict(self" not in turned(body)


@pytest.mark.parametrize(
    "made",
    ["model = (FSDP if sharded else Other)(net)", "kind = FSDP if sharded else Other\nmodel = kind(net)"],
)
def test_what_a_choice_of_classes_makes_may_be_a_model(made: str) -> None:
    body = f"{made}\ntorch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    assert ("FM326", "commented") in codes(body)


HOLDER = "class Holder(torch.nn.Module):\n    def __init__(self, net, x=1):\n        self.module = net\n"


@pytest.mark.parametrize("given", ["other", "net=other", "x=FSDP(third), net=other"])
def test_the_module_of_a_projects_own_class_is_what_a_call_of_it_gives(given: str) -> None:
    plain = (
        f"def use(other, third):\n    m = Holder({given})\n    m = m.module\n    m.load_state_dict(state)\n"
    )
    assert plain.replace("FSDP", "prepare_fully_shard") in turned(f"{HOLDER}Holder(FSDP(net))\n{plain}")


def test_what_another_argument_shards_may_be_the_module_of_a_projects_own_class() -> None:
    body = (
        "def use(other):\n    m = Holder(x=FSDP(other), net=other)\n    m = m.module\n"
        "    m.load_state_dict(state)\n"
    )
    assert codes(f"{HOLDER}{body}") == [("FM301", "rewritten"), ("FM333", "commented")]


def test_what_is_taken_out_of_a_projects_own_class_is_sharded() -> None:
    body = "m = Holder(FSDP(net))\nm.module.load_state_dict(x)\nm = m.module\nm.load_state_dict(x)\n"
    after = turned(f"{HOLDER}{body}")
    wanted = "load_model_state_dict(m.module, x)\nm = m.module\nload_model_state_dict(m, x)\n"
    assert after.endswith(wanted)


@pytest.mark.parametrize(
    "keeps",
    ["torch.compile(self.net)", "self.net.to(0)", "self.net.eval().half()", "torch.compile(self.net.cuda())"],
)
@pytest.mark.parametrize(("place", "expected"), [("above", False), ("below", True)])
def test_a_name_that_keeps_its_model_in_another_method_is_not_made_there(
    keeps: str, place: str, *, expected: bool
) -> None:
    ask = "        x = type(next(self.net.modules())) is Block\n        self.net.load_state_dict(s)\n"
    wrap = "        self.net = FSDP(self.net)\n"
    body = (
        f"class A:\n    def make(self):\n        self.net = Net()\n        self.net = {keeps}\n"
        f"    def shard(self):\n{ask + wrap if place == 'above' else wrap + ask}"
    )
    assert ("FM308" in dict(codes(body))) is expected


# Each pass tells what one more of these gives, which is more than there are passes.
CHAIN = "".join(f"def g{n}(net):\n    m = g{n + 1}(net)\n    return m\n\n\n" for n in range(9))
CHAIN += "def g9(net):\n    return FSDP(net)\n\n\nx = g5(net)\nx.clip_grad_norm_(1.0)\n"


@pytest.mark.parametrize("body", [*FLOWS, CHAIN])
def test_what_the_last_pass_found_is_what_is_found_anew(body: str) -> None:
    source = Source(IMPORTS + body)
    asked = [*source.calls, *source.attributes, *source.loads]
    found = [set(source.models.kinds(node)) for node in asked]
    source.models._known.clear()
    assert found == [source.models.kinds(node) for node in asked]


def test_what_is_kept_of_a_node_is_asked_once_for_each_source() -> None:
    asked: list[cst.CSTNode] = []

    @kept
    def place(_: Index, node: cst.CSTNode) -> int:
        asked.append(node)
        return len(asked)

    one, other = (Index(cst.parse_module("x = y\n")) for _ in range(2))
    names = [each for index in (one, other) for each in index.by_kind[cst.Name]]
    assert [place(one, each) for each in (*names, *names)] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert place(other, names[0]) == 5
