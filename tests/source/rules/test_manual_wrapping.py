"""``enable_wrap`` and ``wrap``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import assert_uncertain, codes


if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("from fairseq2.nn.fsdp import to_fsdp", "to_fsdp(net, gang, None)"),
        ("from torchtnt.utils.prepare_module import prepare_fsdp", "prepare_fsdp(net, device)"),
        ("from ray.train.torch import prepare_model", "prepare_model(net, parallel_strategy='fsdp')"),
    ],
)
def test_what_another_package_makes_stays_fsdp1(package: str, call: str) -> None:
    asks = "def is_sharded(m):\n    return isinstance(m, (DDP, FSDP))\n"
    body = f"{package}\n\n\ndef shard(net, gang, device):\n    return {call}\n\n\n{asks}"
    assert codes(body) == [("FM303", "commented"), ("FM305", "commented")]
    other = body.replace("'fsdp'", "'ddp'").replace(
        package, package.replace("to_f", "f").replace("_fsdp", "")
    )
    assert ("FM305", "rewritten") in codes(other.replace("_fsdp(", "("))


def test_another_file_has_its_model_made_by_a_package(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(f"{FSDP}\n\ndef ask(m):\n    return isinstance(m, FSDP)\n")
    make = "from fairseq2.nn.fsdp import to_fsdp\nfrom ask import ask\nask(to_fsdp(net, gang))\n"
    for own, action in (("", "commented"), ("def to_fsdp(net, gang):\n    return net\n", "rewritten")):
        (tmp_path / "make.py").write_text(f"{own}{make}")
        found = [(use.code, use.action) for use in scan_paths([tmp_path]).uses]
        assert ("FM305", action) in found
        # In the package's own project the function itself is rewritten.
        assert (("FM303", "commented") in found) is (not own)
