"""Names of models that a Trainer, or a call, has sharded in place, given to functions of other files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HELPERS = "import torch\n\n\ndef dump(model, path):\n    torch.save(model.state_dict(), path)\n"
HF = (
    "from transformers import Trainer, TrainingArguments\nargs = TrainingArguments('o', fsdp='full_shard')\n",
    "trainer = Trainer({}, args=args)\n    trainer.train()",
)
LIGHTNING = (
    "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n",
    "trainer = L.Trainer(strategy=FSDPStrategy())\n    trainer.fit({}, loader)",
)
COMPOSER = ("from composer import Trainer\n", "trainer = Trainer({}, fsdp_config=cfg.fsdp)")
PLUGIN = "from accelerate import Accelerator, FullyShardedDataParallelPlugin as Plugin\n"
ACCELERATE = (
    f"{PLUGIN}accelerator = Accelerator(fsdp_plugin=Plugin())\n",
    "prepared, opt = accelerator.prepare({}, opt)",
)
FABRIC = (
    "from lightning.fabric import Fabric\nfabric = Fabric(strategy='fsdp')\n",
    "prepared = fabric.setup({})",
)
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SHARDS = f"{FSDP}\n\ndef shard(net):\n    net = FSDP(net)\n    return net\n\n\nclass Runner:\n"
SHARDS += "    def __init__(self, net, lr):\n        self.model = shard(net)\n"
TORCH = (FSDP, "prepared = FSDP({})")
ALL = {"hf": HF, "pl": LIGHTNING, "composer": COMPOSER, "acc": ACCELERATE, "fabric": FABRIC, "torch": TORCH}
OTHERS = {
    "function": ("import shards\n", "prepared = shards.shard({})"),
    "class": ("from shards import Runner\n", "runner = Runner({}, 1)"),
}


def said(folder: Path, made: tuple[str, str], above: str, between: str, below: str) -> list[tuple[str, str]]:
    """Return what is said of states: the file and the code."""
    imports, line = made
    lines = (above, line.format("net"), between, below)
    main = "def main(net, cfg, opt, loader):\n" + "".join(f"    {each}\n" for each in lines)
    files = {"helpers": HELPERS, "shards": SHARDS, "train": f"from helpers import dump\n{imports}\n\n{main}"}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    uses = (use for use in scan_paths([folder]).uses if use.action == "commented")
    return [(use.path.rpartition("/")[2], use.code) for use in uses if use.code == "FM333"]


@pytest.mark.parametrize("how", [*ALL, *OTHERS])
def test_a_function_of_another_file_is_given_it(how: str, tmp_path: Path) -> None:
    made = {**ALL, **OTHERS}[how]
    given = "dump(net, 'x')"
    assert said(tmp_path, made, "pass", "pass", given) == [("helpers.py", "FM333")]
    assert said(tmp_path, made, given, "pass", "pass") == []


@pytest.mark.parametrize("name", ["net", "net: nn.Module"])
@pytest.mark.parametrize("how", [*ALL, *OTHERS])
def test_a_name_that_is_bound_anew(how: str, name: str, tmp_path: Path) -> None:
    anew = f"{name} = AutoModel.from_pretrained('x')"
    assert said(tmp_path, {**ALL, **OTHERS}[how], "pass", anew, "dump(net, 'x')") == []


@pytest.mark.parametrize("how", ["acc", "fabric", "torch", "function"])
@pytest.mark.parametrize(
    "between",
    [
        "net = net.to('cuda')",
        "net = prepared",
        "net = unwrap(prepared)",
        "if cfg.again: net = AutoModel.from_pretrained('x')",
        "for _ in loader: net = AutoModel.from_pretrained('x')",
        "other = AutoModel.from_pretrained('x')",
        "def anew(): net = AutoModel.from_pretrained('x')",
    ],
)
def test_a_name_that_may_still_be_it(how: str, between: str, tmp_path: Path) -> None:
    made = {**ALL, **OTHERS}[how]
    assert said(tmp_path, made, "pass", between, "dump(net, 'x')") == [("helpers.py", "FM333")]


@pytest.mark.parametrize("between", ["net = runner.model", "net = unwrap(runner)", "net = runner.get()"])
def test_a_name_that_the_object_which_sharded_it_gives(between: str, tmp_path: Path) -> None:
    assert said(tmp_path, OTHERS["class"], "pass", between, "dump(net, 'x')") == [("helpers.py", "FM333")]


def test_a_trainer_whose_name_has_a_type(tmp_path: Path) -> None:
    typed = (HF[0], HF[1].replace("trainer =", "trainer: Trainer ="))
    assert said(tmp_path, typed, "pass", "pass", "dump(net, 'x')") == [("helpers.py", "FM333")]


@pytest.mark.parametrize("how", ["hf", "pl", "composer"])
def test_a_name_that_is_bound_anew_and_trained_again(how: str, tmp_path: Path) -> None:
    again = ALL[how][1].format("net")
    anew = f"dump(net, 'x')\n    net = Net()\n    {again}"
    assert said(tmp_path, ALL[how], "pass", anew, "dump(net, 'x')") == [("helpers.py", "FM333")]
    assert said(tmp_path, ("", "pass"), "pass", anew.replace(again, "pass"), "dump(net, 'x')") == []
    twice = (ALL[how][0], f"{ALL[how][1]}\n    net = Net()\n    {again}")
    assert said(tmp_path, twice, "pass", "pass", "dump(net, 'x')") == [("helpers.py", "FM333")]


@pytest.mark.parametrize("how", ["hf", "pl", "composer"])
def test_a_name_in_the_other_branch_than_what_shards_it(how: str, tmp_path: Path) -> None:
    imports, line = ALL[how]
    made = (imports, "if go:\n        " + line.replace("\n    ", "\n        "))
    other = "else:\n        dump(net, 'x')"
    made = (imports, made[1].format("net", "pass").removesuffix("\n    pass"))
    assert said(tmp_path, made, "pass", other, "pass") == []
    assert said(tmp_path, made, "pass", "pass", "dump(net, 'x')") == [("helpers.py", "FM333")]


def test_the_model_of_a_trainer_that_trains_again(tmp_path: Path) -> None:
    asks = "dump(trainer.model, 'x')"
    assert said(tmp_path, HF, "pass", asks, "trainer.train()") == [("helpers.py", "FM333")]
    anew = f"trainer = Trainer(net, args=args)\n    {asks}"
    assert said(tmp_path, HF, "pass", anew, "trainer.train()") == []


@pytest.mark.parametrize("how", OTHERS)
def test_what_shards_it_stands_in_another_file(how: str, tmp_path: Path) -> None:
    assert said(tmp_path, OTHERS[how], "pass", "pass", "net.state_dict()") == [("train.py", "FM333")]
    assert said(tmp_path, OTHERS[how], "net.state_dict()", "pass", "pass") == []


STRATEGY = (
    "class Strategy:\n    def __init__(self):\n        self.accelerator = Accelerator(fsdp_plugin=Plugin())\n"
    "    def prepare(self, net, opt):\n        return self.accelerator.prepare(net, opt)\n"
)
KEEPS = (
    "class Runner:\n    def __init__(self, model, opt, strategy: Strategy):\n        self.model = model\n"
    "        self.prepared, self.opt = strategy.prepare(model, opt)\n"
    "    def save(self):\n        return self.model.state_dict()\n"
)


@pytest.mark.parametrize("is_apart", [False, True])
def test_a_name_from_before_what_a_method_of_an_object_shards(tmp_path: Path, *, is_apart: bool) -> None:
    strategy = f"{PLUGIN}{STRATEGY}"
    if is_apart:
        (tmp_path / "strategy.py").write_text(strategy)
    runner = f"from strategy import Strategy\n{KEEPS}" if is_apart else f"{strategy}{KEEPS}"
    (tmp_path / "runner.py").write_text(runner)
    uses = (use for use in scan_paths([tmp_path]).uses if use.code == "FM333" and use.action == "commented")
    assert [(use.path.rpartition("/")[2], use.text) for use in uses] == [
        ("runner.py", "self.model.state_dict()")
    ]
