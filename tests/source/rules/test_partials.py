"""``functools.partial`` of the class."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_uncertain, codes, plain, turned


pytestmark = pytest.mark.any_torch


TURNED = [
    (
        "wrap = functools.partial(FSDP, device_id=0)\nmodel = wrap(net)\n",
        'wrap = functools.partial(prepare_fully_shard, fsdp1_config={"device_id": 0})\nmodel = wrap(net)\n',
    ),
    (
        "wrap = functools.partial(FSDP, device_id=0)\nactor = wrap(actor)\ncritic = wrap(critic)\n",
        (
            'wrap = functools.partial(prepare_fully_shard, fsdp1_config={"device_id": 0})\n'
            "actor = wrap(actor)\ncritic = wrap(critic)\n"
        ),
    ),
    (
        (
            "wrap = functools.partial(FSDP, device_id=0)\n"
            "adam = torch.optim.Adam(net.parameters())\nnet = wrap(net)\n"
        ),
        (
            'wrap = functools.partial(prepare_fully_shard, fsdp1_config={"device_id": 0})\n'
            "adam = torch.optim.Adam(net.parameters())\n# fsdp-migrate: FM453\n"
            "net = wrap(net, optimizers=adam)\n"
        ),
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_calls_are_turned_with_the_same_arguments(before: str, after: str) -> None:
    assert plain(before) == after


PARTIAL = "wrap = functools.partial(FSDP, device_id=0)\n"
COMMENTED = [
    ("wrap = functools.partial(FSDP, device_id=0)\nuse(wrap)\n", ["FM303"]),
    (f"{PARTIAL}for i, b in enumerate(m.blocks):\n    m.blocks[i] = wrap(b)\nm = wrap(m)\n", ["FM303"]),
    (f"{PARTIAL}m.encoder = wrap(m.encoder)\nm = wrap(m)\n", ["FM303"]),
    (f"{PARTIAL}m = torch.nn.Sequential(wrap(a), b)\n", ["FM303"]),
    (f"{PARTIAL}m = wrap(torch.nn.ModuleList([a, b]))\n", ["FM303"]),
    (f"{PARTIAL}m = wrap(torch.nn.Sequential(wrap(a), b))\n", ["FM303"]),
    (f"{PARTIAL}m.encoder = wrap(m.encoder)\nm = FSDP(m)\n", ["FM303", "FM303"]),
    (f"{PARTIAL}m.encoder = FSDP(m.encoder)\nm = wrap(m)\n", ["FM303", "FM303"]),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)


def test_parts_that_a_partial_wraps_are_told_as_those_of_the_class() -> None:
    after = turned(f"{PARTIAL}for i, b in enumerate(m.blocks):\n    m.blocks[i] = wrap(b)\nm = wrap(m)\n")
    assert "FSDP inside FSDP: shard the whole model once" in after
    assert "functools.partial(FSDP, device_id=0)" in after


WRAPPER = "wrapper = functools.partial(FSDP, device_id=0)\n"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{WRAPPER}net = wrap_blocks(net, wrapper)\nnet.state_dict()\n", "FM333"),
        ("net = wrap_blocks(net, wrap_fn=FSDP)\nnet.state_dict()\n", "FM333"),
        ("def each(net, make):\n    net = make(net)\n    net.no_sync()\neach(net, FSDP)\n", "FM312"),
        (f"def wrapper():\n    {WRAPPER}    return wrapper\nnet = wrapper()(net)\nnet.no_sync()\n", "FM312"),
        ("class Recipe:\n    wrapper = FSDP\n", "FM303"),
    ],
)
def test_the_class_as_a_value_and_what_it_makes(body: str, expected: str) -> None:
    assert expected in {code for code, _ in codes(body)}


def test_keywords_that_the_class_never_had_are_told() -> None:
    body = "wrap = functools.partial(FSDP, find_unused_parameters=True)\nnet = wrap(net)\n"
    assert {code for code, _ in codes(body)} == {"FM331", "FM422"}


FOLLOWED = """\
def build(net):
    wrap = functools.partial(FSDP, device_id=0)
    {other}
    return wrap(net)
class Trainer:
    def __init__(self):
        self.net = build(Net())
    def step(self, x):
        with self.net.no_sync():
            self.net(x)
        return self.net.module
"""


def test_what_a_partial_makes_is_followed_as_what_the_class_makes() -> None:
    after = turned(FOLLOWED.format(other="pass"))
    assert "with no_sync(self.net):" in after
    assert "return self.net\n" in after
    assert "FM333" not in after
    for other in ("DDP", "Other"):
        both = FOLLOWED.format(other=f"if ddp:\n        wrap = functools.partial({other}, device_id=0)")
        assert "FM333" in turned(both), other
        assert "with self.net.no_sync():" in turned(both), other


def test_a_process_group_of_a_partial_is_one_of_its_models() -> None:
    after = turned(
        "def save(net, g):\n    wrap = functools.partial(FSDP, process_group=g)\n    net = wrap(net)\n"
        "    with FSDP.state_dict_type(\n        net, StateDictType.FULL_STATE_DICT, "
        "FullStateDictConfig(True, True)\n    ):\n"
        "        return net.state_dict()\n"
    )
    assert "return full_state_dict(net).get(" in after


def test_parts_alone_are_not_said_to_be_in_another_wrapper() -> None:
    parts = "for name in names:\n    setattr(m, name, FSDP(getattr(m, name)))\n"
    assert "FM303 FSDP around parts of a model." in turned(parts)
    assert "FM303 FSDP inside FSDP: " in turned(f"{parts}m = FSDP(m)\n")
