"""``enable_wrap`` and ``wrap``."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_uncertain, codes, turned


pytestmark = pytest.mark.any_torch


COMMENTED = [
    (
        (
            "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"
            "with enable_wrap(wrapper_cls=FSDP):\n    layer = wrap(layer)\n"
        ),
        ["FM303", "FM303", "FM303"],
    ),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)


WRAPS = "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"


@pytest.mark.parametrize(
    "wrapping",
    [
        "    with enable_wrap(wrapper_cls=FSDP):\n        net.add_module('a', wrap(net.a))\n",
        "    with enable_wrap(wrapper_cls=FSDP):\n        net = wrap(net)\n",
        "    for name, part in net.named_children():\n        setattr(net, name, FSDP(part))\n",
        "    for i in range(2):\n        net.layers[i] = FSDP(net.layers[i])\n",
    ],
)
def test_the_state_of_a_model_with_wrapped_parts_is_said(wrapping: str) -> None:
    made = f"{WRAPS}def make(net):\n{wrapping}    return net.cuda()\n\n\n"
    body = f"{made}model = make(Net())\ntorch.save(model.state_dict(), 'x.pt')\n"
    assert ("FM333", "commented") in codes(body)
    assert "FM333" not in {code for code, _ in codes(f"{made}other = Net()\nx = other.state_dict()\n")}


def test_what_is_asked_of_a_model_before_its_parts_are_wrapped() -> None:
    wrapped = "for i in range(2):\n    net.layers[i] = FSDP(net.layers[i])\n"
    assert "FM333" not in {code for code, _ in codes(f"net.load_state_dict(state)\n{wrapped}")}


TNT = (
    "from torchtnt.framework.auto_unit import AutoUnit\n"
    "from torchtnt.utils.prepare_module import FSDPStrategy\n"
)


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (f"{TNT}unit = Unit(net, FSDPStrategy())\n", True),
        (f"{TNT}super().__init__(module=net, strategy='fsdp')\n", True),
        (f"{TNT}super().__init__(module=net, strategy='ddp')\n", False),
        ("from lightning import Trainer\nt = Own(strategy='fsdp', devices=2)\n", False),
        (f"{TNT}def of(strategy):\n    return isinstance(strategy, FSDPStrategy)\n", False),
    ],
)
def test_torchtnts_strategy_makes_fsdp1s_model(body: str, *, is_said: bool) -> None:
    assert (("FM303", "commented") in codes(body)) is is_said


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("import ray.train.torch\nm = ray.train.torch.prepare_model(net, parallel_strategy='fsdp')\n", True),
        (
            "from ray.train.torch import prepare_model as f\nm = f(net, parallel_strategy='ddp')\n",
            False,
        ),
        ("from torchtnt.utils.prepare_module import prepare_fsdp\nm = prepare_fsdp(net, device, s)\n", True),
        ("from fairseq2.nn.fsdp import to_fsdp\nm = to_fsdp(net, gang)\n", True),
        ("from mine import prepare_fsdp\nm = prepare_fsdp(net)\n", False),
    ],
)
def test_what_another_package_makes_is_a_sharded_model(made: str, *, is_said: bool) -> None:
    """Who puts prepare_fully_shard in its place would save DTensors of one rank, without an error."""
    body = (
        f"{made}opt = torch.optim.SGD(m.parameters())\ntorch.save((m.state_dict(), opt.state_dict()), 'x')\n"
    )
    found = set(codes(body, "import torch\n\n"))
    assert ({("FM333", "commented"), ("FM425", "commented")} <= found) is is_said
    # Ray's function chooses the worker's device too, without which NCCL finds one GPU twice.
    is_rays = is_said and "ray." in made
    assert ("give it parallel_strategy=None" in turned(body, "import torch\n\n")) is is_rays


def test_composers_function_has_words_of_its_own() -> None:
    """Who gave what it is given, `state.fsdp_config`, gave the callback's own object, which is refused."""
    body = (
        "from composer.distributed import prepare_fsdp_module\n"
        "prepare_fsdp_module(net, None, state.fsdp_config, state.precision, state.device, False)\n"
    )
    after = turned(body, "import torch\n\n")
    assert "for each child of the ComposerModel, with the settings that the Trainer is given" in after
    assert "with what it is given" not in after
