"""Methods of a project's own modules that ask for states of ``self``, and are called on sharded models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

NET = """import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(x)

    def keep(self, folder):
        {}
"""
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
TORCHS = f"{FSDP}{{}}def main():\n    model = FSDP(Net())\n    {{}}\n"
ACCELERATES = (
    "import torch\nfrom accelerate import Accelerator\n{}def main():\n    accelerator = Accelerator()\n"
    "    model = Net()\n    optimizer = torch.optim.SGD(model.parameters())\n"
    "    model, optimizer = accelerator.prepare(model, optimizer)\n"
    "    model = accelerator.unwrap_model(model)\n    {}\n"
)
CONFIG = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
STATES = [
    ("torch.save(self.state_dict(), folder)", "get_model_state_dict(self, "),
    ("x = {k: v.cpu() for k, v in self.head.state_dict().items()}", "get_model_state_dict(self.head, "),
    ("self.head.save_pretrained(folder)", "give it as state_dict="),
    ("self.load_state_dict(torch.load(folder))", "load_model_state_dict(self, state)"),
]


def said(folder: Path, train: str, body: str, does: str, *, is_one: bool) -> list[str]:
    """Return what is said of the class; ``is_one``: it stands in the file that trains it."""
    (folder / "fsdp.yaml").write_text(CONFIG)
    net = NET.format(body)
    (folder / "net.py").write_text("" if is_one else net)
    (folder / "t.py").write_text(train.format(net if is_one else "from net import Net\n", does))
    return [
        use.becomes
        for use in scan_paths([folder]).uses
        if "of the model" not in use.text and use.rule == "part-states"
    ]


@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize("train", [TORCHS, ACCELERATES])
@pytest.mark.parametrize(("body", "takes"), STATES)
def test_a_state_that_a_method_of_the_model_asks_for(
    train: str, body: str, takes: str, is_one: bool, tmp_path: Path
) -> None:
    [found] = said(tmp_path, train, body, "model.keep('x')", is_one=is_one)
    assert takes in found
    assert "called on a model that is sharded" in found


@pytest.mark.parametrize("is_one", [False, True])
@pytest.mark.parametrize(
    ("body", "does"),
    [
        (STATES[0][0], "Net().keep('x')"),
        (STATES[0][0], "with FSDP.summon_full_params(model):\n        model.keep('x')"),
        ("self.tokenizer.save_pretrained(folder)", "model.keep('x')"),
        ("self.head.save_pretrained(folder, state_dict=folder)", "model.keep('x')"),
        ("print(folder)", "model.keep('x')"),
    ],
)
def test_a_state_that_is_none_of_a_sharded_model(body: str, does: str, is_one: bool, tmp_path: Path) -> None:
    assert said(tmp_path, TORCHS, body, does, is_one=is_one) == []


@pytest.mark.parametrize(
    ("given", "is_said"), [("", True), (", state_dict=None", False), (", **more", False)]
)
def test_a_save_pretrained_of_the_projects_own(given: str, is_said: bool, tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(CONFIG)
    net = NET.format("pass").replace("def keep(self, folder", f"def save_pretrained(self, folder{given}")
    (tmp_path / "net.py").write_text(net)
    does = "model.save_pretrained('x')"
    (tmp_path / "t.py").write_text(ACCELERATES.format("from net import Net\n", does))
    [found] = [use.becomes for use in scan_paths([tmp_path]).uses if use.text == does]
    assert ("whose save_pretrained has no such argument" in found) is is_said


AVERAGE = (
    "class EMA:\n    def __init__(self, params):\n        self.params = [p.clone() for p in params]\n\n"
    "    def save_pretrained(self, folder{}):\n        pass\n"
)


@pytest.mark.parametrize(
    ("given", "made", "is_its"),
    [
        ("", "EMA(model.parameters())", True),
        ("", "EMA.from_pretrained(model)", True),
        (", state_dict=None", "EMA(model.parameters())", False),
        ("", "model", False),
    ],
)
def test_a_class_that_takes_no_state_is_not_to_be_given_one(
    given: str, made: str, is_its: bool, tmp_path: Path
) -> None:
    (tmp_path / "fsdp.yaml").write_text(CONFIG)
    (tmp_path / "ema.py").write_text(AVERAGE.format(given))
    does = f"model = {made}\n    model.save_pretrained('x')"
    (tmp_path / "t.py").write_text(ACCELERATES.format("from ema import EMA\n", does))
    text = "model.save_pretrained('x')"
    found = [use.becomes for use in scan_paths([tmp_path]).uses if use.text == text]
    assert any("`EMA` has a `save_pretrained` of its own" in each for each in found) is is_its
    assert not is_its or not any("state_dict=" in each for each in found)


def test_a_trainer_with_a_method_of_that_name_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET.format(STATES[0][0]))
    (tmp_path / "trainer.py").write_text(
        f"{FSDP}\n\nclass Trainer:\n    def __init__(self, model):\n        self.model = FSDP(model)\n\n"
        "    def keep(self, folder):\n        self.model.keep(folder)\n\n\n"
        "def make(model):\n    return Trainer(model)\n"
    )
    (tmp_path / "main.py").write_text(
        "from net import Net\nfrom trainer import Trainer\nTrainer(Net()).keep('x')\n"
    )
    assert [use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("net.py")] == ["FM333"]


FOUND = STATES[0][1]


@pytest.mark.parametrize(("bases", "forward", "is_said"), [("Base", True, True), ("Base", False, False)])
def test_a_module_whose_base_is_not_seen(bases: str, forward: bool, is_said: bool, tmp_path: Path) -> None:
    net = (
        NET.format(STATES[0][0])
        .replace("nn.Module", bases)
        .replace("from torch import nn", "from o import *")
    )
    (tmp_path / "net.py").write_text(net if forward else net.replace("def forward", "def other"))
    (tmp_path / "t.py").write_text(TORCHS.format("from net import Net\n", "model.keep('x')"))
    found = [use.becomes for use in scan_paths([tmp_path]).uses if use.rule == "part-states"]
    assert bool(found) is is_said
    assert all(FOUND in each for each in found)


@pytest.mark.parametrize(
    "wraps",
    [
        "FSDP(Net())",
        "FSDP(Net().to(0))",
        "FSDP(net)",
        "FSDP(net.to(0))",
        "FSDP(module=net)",
        "FSDP(\n        net, device_id=get(0)\n    )",
    ],
)
@pytest.mark.parametrize("is_one", [False, True])
def test_of_several_classes_it_is_the_one_that_is_wrapped(wraps: str, is_one: bool, tmp_path: Path) -> None:
    net = NET.format(STATES[0][0])
    other = net.replace("class Net", "class Aside").replace("self.state_dict()", "self.head.state_dict()")
    (tmp_path / "net.py").write_text(f"{net}\n\n{other}" if is_one else net)
    (tmp_path / "aside.py").write_text("" if is_one else other)
    makes = "" if "Net(" in wraps else "net = Net()\n    "
    train = TORCHS.replace("model = ", f"{makes}model = ").replace("FSDP(Net())", wraps)
    (tmp_path / "t.py").write_text(train.format("from net import Net\n", "model.keep('x')"))
    found = [use.text for use in scan_paths([tmp_path]).uses if use.rule == "part-states"]
    assert found == ["self.state_dict()"]
