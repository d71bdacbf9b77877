"""Modules whose constructors shard parts of them, over the files of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch


CLASS = (
    f"{FSDP}from torch import nn\nclass Wrapper(nn.Module):\n    def __init__(self, module):\n"
    "        super().__init__()\n        self.module = FSDP(module)\n"
    "    def forward(self, x):\n        return self.module(x)\n"
)
IMPORT = f"{FSDP}from torch import nn\nfrom wrapper import Wrapper\n"


@pytest.mark.parametrize(
    "main",
    [
        "",
        "model = Wrapper(net)\nmodel(x)\n",
        "model = Wrapper(net).to(0) if sharded else DDP(net)\nmodel(x)\n",
        "class Trainer:\n    def __init__(self, net):\n        self.model = Wrapper(net).to(0)\n",
        "def build(net) -> Wrapper:\n    return Wrapper(net)\nother = FSDP(nn.Linear(2, 2))\n",
    ],
)
def test_a_part_of_what_nothing_shards_is_sharded(tmp_path: Path, main: str) -> None:
    text = after(tmp_path, {"wrapper.py": CLASS, "main.py": IMPORT + main}, "wrapper.py")
    assert "self.module = prepare_fully_shard(module)" in text
    assert "FM303" not in text


@pytest.mark.parametrize(
    "main",
    [
        "model = FSDP(Wrapper(net))\n",
        "model = FSDP(Wrapper(net) if sharded else net)\n",
        "model = Wrapper(net)\nmodel = FSDP(model)\n",
        "def shard(model):\n    return FSDP(model)\nshard(Wrapper(net))\n",
        "class Net(nn.Module):\n    def __init__(self, net):\n        self.part = Wrapper(net)\n",
        "model = nn.Sequential(Wrapper(a), Wrapper(b))\n",
        "class Other(Wrapper):\n    pass\n",
        "policy = {Wrapper}\n",
        "model = Wrapper(net)\nsave(model.state_dict())\n",
        "model = Wrapper(net)\nmodel = accelerator.prepare(model)\n",
    ],
)
def test_what_may_be_sharded_as_a_whole_stays_a_wall(tmp_path: Path, main: str) -> None:
    assert "FM303" in after(tmp_path, {"wrapper.py": CLASS, "main.py": IMPORT + main}, "wrapper.py")


@pytest.mark.parametrize(
    "main",
    [
        "model = Wrapper(net)\nsave(model.state_dict())\n",
        "model = Wrapper(net)\ntorch.nn.utils.clip_grad_norm_(model.named_parameters(), 1.0)\n",
    ],
)
def test_parts_of_what_is_asked_for_its_state_are_no_fsdp_in_fsdp(tmp_path: Path, main: str) -> None:
    text = after(tmp_path, {"wrapper.py": CLASS, "main.py": IMPORT + main}, "wrapper.py")
    assert "FM303 no FSDP is seen around `Wrapper`" in text
    assert "FSDP inside FSDP" not in text


@pytest.mark.parametrize(
    "main",
    [
        "model = FSDP(Wrapper(net))\nsave(model.state_dict())\n",
        "class Net(nn.Module):\n    def __init__(self, net):\n        self.part = Wrapper(net)\n",
    ],
)
def test_parts_of_what_may_be_sharded_are(tmp_path: Path, main: str) -> None:
    text = after(tmp_path, {"wrapper.py": CLASS, "main.py": IMPORT + main}, "wrapper.py")
    assert "FM303 FSDP inside FSDP" in text


def test_a_wrappers_own_parameters_are_known_over_files(tmp_path: Path) -> None:
    wrapper = "class {}(Module):\n    def __init__(self, net, *args):\n        self.module = {}\n"
    clip = "import torch\ndef train(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    imports = "from wrapper import Plain, Wrapper\nfrom train import train\nfrom other import other\n"
    files = {
        "wrapper.py": FSDP + wrapper.format("Wrapper", "FSDP(net, *args)") + wrapper.format("Plain", "net"),
        "main.py": f"{imports}train(Wrapper(net))\nother(Plain(second))\n",
        "train.py": clip,
        "other.py": clip.replace("train", "other"),
    }
    assert "FM326" in after(tmp_path, files, "train.py")
    assert (tmp_path / "other.py").read_text() == files["other.py"]
    # FSDP1 changes the model that it is given.
    assert "FM326" in after(
        tmp_path, {**files, "main.py": files["main.py"].replace("second", "net")}, "other.py"
    )


STATIC = (
    "import torch\n" + CLASS + "    {}def read(path):\n        return {}\n"
    "    KEY = 'net'\n    {}def make(*given):\n        return None\n"
).replace(
    "        self.module = FSDP(module)\n",
    "        module.load_state_dict(Wrapper.read('a.pt')[Wrapper.KEY])\n        self.module = FSDP(module)\n",
)
DECORATED = "@staticmethod\n    "


@pytest.mark.parametrize(
    ("above", "given", "main", "is_certain"),
    [
        (DECORATED, "torch.load(path)", "", True),
        (DECORATED, "torch.load(path)", "Wrapper.read('b.pt')\n", True),
        ("@classmethod\n    ", "torch.load(path)", "", False),
        (DECORATED, "FSDP(Wrapper(path))", "", False),
        (DECORATED, "torch.load(path)", "model = FSDP(Wrapper.make(net))\nprint(Wrapper)\n", False),
    ],
)
@pytest.mark.parametrize("name", ["read", "load_state"])
def test_a_static_method_asks_no_object(
    tmp_path: Path, above: str, given: str, main: str, name: str, *, is_certain: bool
) -> None:
    """`Pipeline.load_state(path)` only reads a file: nothing is asked of objects."""
    text = STATIC.format(above, given, DECORATED).replace("read(", f"{name}(")
    files = {"wrapper.py": text, "main.py": IMPORT + main.replace("read(", f"{name}(")}
    assert ("FM303" not in after(tmp_path, files, "wrapper.py")) is is_certain
