"""Models in dicts, tuples and lists of one file, and what others take of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import CLIPPED, FSDP, WRAP, after
from tests.source.samples import ONE_TURNED


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_models_in_a_dict(tmp_path: Path) -> None:
    files = {
        "dist.py": f"import functools\n{FSDP}def wrapper():\n    return functools.partial(FSDP)\n"
        f"{ONE_TURNED}",
        "nets.py": "from dist import wrapper\nclass Nets:\n    def shard(self):\n"
        "        for name in self.nets:\n            self.nets[name] = wrapper()(self.nets[name])\n",
        "main.py": "from nets import Nets\nmodel = Nets()\nfor net in model.nets.values():\n"
        "    net.clip_grad_norm_(1.0)\nfor name, net2 in model.nets.items():\n    net2.no_sync()\n",
    }
    text = after(tmp_path, files, "main.py")
    assert "clip_grad_norm_(net, 1.0)" in text
    assert "no_sync(net2)" in text


def test_a_list_of_parameters_that_another_file_is_given(tmp_path: Path) -> None:
    files = {
        "cast.py": "def cast(params):\n    for p in params:\n        p.data = p.data.half()\n",
        "main.py": f"{FSDP}from cast import cast\nmodel = FSDP(net)\ncast(model.parameters())\n",
    }
    assert "# fsdp-migrate: FM423" in after(tmp_path, files, "cast.py")


@pytest.mark.parametrize("state", ['{"model": model, "step": 0}', "dict(model=model, step=0)"])
def test_a_model_in_a_dict_by_its_name(tmp_path: Path, state: str) -> None:
    files = {
        "loop.py": "class Loop:\n    def fit(self, model):\n"
        f"        state = {state}\n        self.train(state['model'])\n"
        "    def train(self, model):\n        model.clip_grad_norm_(1.0)\n",
        "main.py": f"{FSDP}from loop import Loop\nloop = Loop()\nloop.fit(FSDP(net))\n",
    }
    assert CLIPPED in after(tmp_path, files, "loop.py")


@pytest.mark.parametrize(
    "given", ["return {'model': model, 'step': 0}", "held = {'model': model}\n    return held"]
)
@pytest.mark.parametrize(
    "asked", ["held = start(net)\n    model = held['model']", "model = start(net)['model']"]
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_model_in_a_dict_that_a_function_returns(
    tmp_path: Path, given: str, asked: str, is_alone: bool
) -> None:
    start = f"{FSDP}\n\ndef start(net):\n    model = FSDP(net)\n    {given}\n"
    main = f"def main(net):\n    {asked}\n    model.clip_grad_norm_(1.0)\n"
    files = (
        {"main.py": f"{start}\n\n{main}"}
        if is_alone
        else {
            "start.py": start,
            "main.py": f"from start import start\n\n\n{main}",
        }
    )
    assert CLIPPED in after(tmp_path, files, "main.py")


def test_the_state_of_what_holds_sharded_models(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "arch.py": "import torch.nn as nn\nfrom dist import wrap\nclass Arch(nn.Module):\n"
        "    def __init__(self, parts):\n        self.teacher = nn.ModuleDict(parts)\n"
        "        for k in parts:\n            self.teacher[k] = wrap(self.teacher[k])\n",
        "main.py": "from arch import Arch\narch = Arch(parts)\nsave(arch.teacher.state_dict())\n",
    }
    assert "FM308 it holds sharded models" in after(tmp_path, files, "main.py")


@pytest.mark.parametrize(
    "call",
    [
        "parts = (cfg, model)\ntrain(*parts, last=True)\n",
        "parts = dict(cfg=cfg, model=model)\ntrain(**parts)\n",
        "train(cfg, **{'model': model})\n",
        "train(*(cfg, model))\n",
    ],
)
@pytest.mark.parametrize("is_here", [True, False])
def test_what_is_given_in_one_tuple_or_dict(tmp_path: Path, call: str, *, is_here: bool) -> None:
    train = "def train(cfg, model, last=False):\n    model.clip_grad_norm_(1.0)\n"
    start = train if is_here else "from loop import train\n"
    main = f"{start}from dist import wrap\nmodel = wrap(net)\n{call}"
    files = {"dist.py": WRAP, "loop.py": train, "main.py": main}
    assert CLIPPED in after(tmp_path, files, "main.py" if is_here else "loop.py")
