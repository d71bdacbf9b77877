"""What an object keeps of a model's parameters from a method that runs before the model is sharded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(activation_checkpointing=False))\n"
)
KEEPS = "class Runner:\n    def __init__(self):\n        self.kept = list(self.model.parameters())\n"
SHARDS = "    def setup(self):\n        self.model, self.o = accelerator.prepare(self.model, self.o)\n"
FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
CLIPS = "        clip_grad_norm_(self.kept, 1.0)\n"


@pytest.mark.parametrize(
    ("method", "is_said"),
    [
        (f"    def step(self):\n{CLIPS}", True),
        ("    def step(self):\n        for p in self.kept:\n            p.mul_(2)\n", True),
        (CLIPS, True),
        (f"    def make_optimizer(self):\n{CLIPS}", False),
        ("    def step(self):\n        print(len(self.kept))\n", False),
        (f"class Other:\n    def step(self):\n{CLIPS}", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("by", ["accelerate", "torch"])
def test_another_method_shards(method: str, by: str, *, is_said: bool) -> None:
    shards = SHARDS if by == "accelerate" else "    def setup(self):\n        self.model = FSDP(self.model)\n"
    header = ACCELERATE if by == "accelerate" else FSDP1
    found = [use.becomes for use in scan_source(header + KEEPS + shards + method) if use.code == "FM446"]
    assert len(found) == is_said
    assert all(("Accelerate" in said) is (by == "accelerate") for said in found)
    others = KEEPS.replace("self.model.parameters()", "self.other.parameters()")
    assert "FM446" not in {use.code for use in scan_source(header + others + shards + method)}


@pytest.mark.parametrize(
    ("runs", "is_said"), [("        self._keep(1)\n", True), ("        self._other()\n", False)]
)
def test_a_method_that_the_constructor_runs_keeps_them(runs: str, *, is_said: bool) -> None:
    keeps = KEEPS.replace("self.kept", f"self.o = 0\n{runs}    def _keep(self, x):\n        self.kept")
    code = f"{ACCELERATE}{keeps}{SHARDS}    def step(self):\n{CLIPS}"
    assert ("FM446" in {use.code for use in scan_source(code)}) is is_said


def said(folder: Path, files: dict[str, str]) -> dict[str, int]:
    """Return how often files are told of what they keep."""
    for name, text in files.items():
        (folder / name).write_text(text)
    changed = {each.path.rpartition("/")[2]: each.after for each in rewrite_paths([folder]).changed}
    counts = {name: text.count("fsdp-migrate: FM446") for name, text in changed.items()}
    return {name: count for name, count in counts.items() if count}


TRAINS = (
    "from transformers import TrainingArguments\nfrom own import {0}\n"
    "args = TrainingArguments('out', fsdp='full_shard')\nmade = {0}\n"
)


@pytest.mark.parametrize(
    ("keeps", "uses", "is_said"),
    [
        ("__init__(self)", "training_step(self, model, inputs)", True),
        ("create_optimizer(self)", "training_step(self, model, inputs)", True),
        ("create_optimizer(self)", "clip(self)", True),
        ("__init__(self)", "create_optimizer(self)", False),
        ("training_step(self, model, inputs)", "compute_loss(self, model, inputs)", False),
    ],
)
def test_a_trainers_own_methods(tmp_path: Path, keeps: str, uses: str, *, is_said: bool) -> None:
    own = (
        "from transformers import Trainer\n\n\nclass OwnTrainer(Trainer):\n"
        f"    def {keeps}:\n        self.kept = [p for p in self.model.parameters() if p.requires_grad]\n"
        f"    def {uses}:\n        self.accelerator.clip_grad_norm_(self.kept, 1.0)\n"
    )
    files = {"own.py": own, "train.py": TRAINS.format("OwnTrainer")}
    assert said(tmp_path, files) == ({"own.py": 1} if is_said else {})
    files["own.py"] = own.replace("self.model.parameters", "self.ref_model.parameters")
    assert said(tmp_path, files) == {}


@pytest.mark.parametrize(
    ("method", "is_said"), [("__init__(self, model)", True), ("on_train_begin(self, model)", False)]
)
def test_a_trainers_callback(tmp_path: Path, method: str, *, is_said: bool) -> None:
    own = (
        "from transformers import TrainerCallback\n\n\nclass Average(TrainerCallback):\n"
        f"    def {method}:\n        self.kept = list(model.parameters())\n"
        "    def on_step_end(self, args, state, control, **kwargs):\n"
        "        for p in self.kept:\n            use(p)\n"
    )
    trains = TRAINS.format("Average") + "import transformers\ntransformers.Trainer(callbacks=[made])\n"
    assert said(tmp_path, {"own.py": own, "train.py": trains}) == ({"own.py": 1} if is_said else {})


@pytest.mark.parametrize(
    ("keeps", "uses", "is_said"),
    [
        ("__init__(self)", "on_before_optimizer_step(self, optimizer)", True),
        # Lightning makes optimizers when it has sharded.
        ("__init__(self)", "configure_optimizers(self)", True),
        ("setup(self, stage)", "training_step(self, batch, index)", True),
        ("on_fit_start(self)", "training_step(self, batch, index)", False),
        ("__init__(self)", "setup(self, stage)", False),
    ],
)
def test_a_lightning_module(tmp_path: Path, keeps: str, uses: str, *, is_said: bool) -> None:
    own = (
        "import lightning as L\nimport torch\n\n\nclass Own(L.LightningModule):\n"
        f"    def {keeps}:\n        self.kept = list(self.net.parameters())\n"
        f"    def {uses}:\n        use(self.kept)\n"
    )
    train = "import lightning as L\nfrom own import Own\nL.Trainer(strategy='{}', devices=2).fit(Own())\n"
    assert said(tmp_path, {"own.py": own, "train.py": train.format("fsdp")}) == (
        {"own.py": 1} if is_said else {}
    )
    assert said(tmp_path, {"own.py": own, "train.py": train.format("ddp")}) == {}


_COLLECTS = (
    "    def collect(self):\n        self.kept = [p for p in self.model.parameters() if p.requires_grad]\n"
)
_LOOP = "        self.kept = []\n        for p in self.model.parameters():\n            self.kept.append(p)\n"
_RUNS = "        self.collect()\n"
_GIVES = "    def collect(self):\n        return [p for p in self.model.parameters() if p.requires_grad]\n"
_GIVEN = "    def collect(self, net):\n        self.kept = list(net.parameters())\n"
_BY = {
    "accelerate": "        self.model, self.o = accelerator.prepare(self.model, self.o)\n",
    "torch": "        self.model = FSDP(self.model)\n",
}


@pytest.mark.parametrize("by", ["accelerate", "torch"])
@pytest.mark.parametrize(
    ("above", "below", "collects", "is_said"),
    [
        (_RUNS, "", _COLLECTS, True),
        ("        self.first()\n", "", f"{_COLLECTS}    def first(self):\n{_RUNS}", True),
        ("        self.collect(self.model)\n", "", _GIVEN, True),
        ("        self.collect(self.other)\n", "", _GIVEN, False),
        ("        self.kept = self.collect()\n", "", _GIVES, True),
        (_RUNS, "", f"    def collect(self):\n{_LOOP}", True),
        (_LOOP, "", "", True),
        ("", _RUNS, _COLLECTS, False),
        (_RUNS, _RUNS, _COLLECTS, False),
        (_RUNS, "        self.kept = list(self.model.parameters())\n", _COLLECTS, False),
        (_LOOP, "        self.kept = list(self.model.parameters())\n", "", False),
        (_RUNS, _RUNS.replace("collect", "unknown"), _COLLECTS, True),
        ("", "", _COLLECTS, False),
    ],
)
@pytest.mark.parametrize("method", ["__init__", "setup"])
def test_a_method_that_runs_before_the_sharding_keeps_them(
    method: str, above: str, below: str, collects: str, by: str, *, is_said: bool
) -> None:
    header = ACCELERATE if by == "accelerate" else FSDP1
    code = f"{header}class Runner:\n    def {method}(self):\n{above}{_BY[by]}{below}{collects}"
    found = {use.code for use in scan_source(f"{code}    def step(self):\n{CLIPS}")}
    assert ("FM446" in found) is is_said
    assert "FM446" not in {
        use.code for use in scan_source(f"{code}    def step(self):\n        len(self.kept)\n")
    }


def test_a_list_that_is_made_and_read_before_the_sharding_alone() -> None:
    reads = "    def show(self):\n        for p in self.kept:\n            print(p)\n"
    body = f"    def setup(self):\n{_RUNS}        self.show()\n{_BY['accelerate']}{_COLLECTS}{reads}"
    assert "FM446" not in {use.code for use in scan_source(f"{ACCELERATE}class Runner:\n{body}")}
    ends = (
        body.replace("        self.show()\n", "")
        + f"    def run(self):\n{CLIPS.replace('self.kept', 'self.model')}"
    )
    runs = ends.replace(
        "    def run(self):\n", "    def run(self):\n        self.setup()\n        self.show()\n"
    )
    assert "FM446" in {use.code for use in scan_source(f"{ACCELERATE}class Runner:\n{runs}")}


@pytest.mark.parametrize(
    ("collects", "uses", "is_said"),
    [
        (_COLLECTS, CLIPS, True),
        (_COLLECTS.replace("collect", "on_step_end"), CLIPS, False),
        (_COLLECTS, "        print(len(self.kept))\n", False),
        (_COLLECTS.replace("self.model", "self.other"), CLIPS, False),
        (_COLLECTS, f"        self.collect()\n{CLIPS}", True),
        (_COLLECTS, f"        self.setup()\n        self.collect()\n{CLIPS}", False),
    ],
)
def test_an_order_that_nothing_shows_is_looked_at(
    tmp_path: Path, collects: str, uses: str, *, is_said: bool
) -> None:
    code = f"{ACCELERATE}class Runner:\n    def setup(self):\n{_BY['accelerate']}{collects}"
    (tmp_path / "run.py").write_text(f"{code}    def step(self):\n{uses}")
    found = [use for use in scan_paths([tmp_path]).uses if "another method" in use.becomes]
    assert [(use.code, use.action) for use in found] == [("FM450", "unclear")] * is_said
