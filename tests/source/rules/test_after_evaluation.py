"""Parameters that hooks of Hugging Face's Trainer write to after an evaluation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAIN = """\
import sys
from transformers import HfArgumentParser, Trainer, TrainingArguments
from ema import EMACallback

(args,) = HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1])
trainer = Trainer(model=make(), args=args, callbacks=[EMACallback()])
trainer.train()
"""
CALLBACK = """\
import torch
from transformers import Trainer, TrainerCallback


class EMACallback(TrainerCallback):
    def {hook}(self, args, state, control, model=None, **kwargs):
        {body}
"""
PARAMETERS = "for name, param in model.named_parameters():\n            "
COPIES = f"{PARAMETERS}param.copy_(self.shadow[name])"


def said(folder: Path, text: str, *, asks: bool = True) -> list[str]:
    """Return what is said of a callback's source, where ``args.json`` asks for FSDP."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "ema.py").write_text(text)
    fsdp = {"fsdp": "shard_grad_op auto_wrap", "fsdp_config": {"transformer_layer_cls_to_wrap": "Block"}}
    given = {"output_dir": "out", "per_device_train_batch_size": 1, **(fsdp if asks else {})}
    (folder / "args.json").write_text(json.dumps(given))
    found = [use for use in scan_paths([folder]).uses if use.rule == "after-evaluation"]
    assert {use.code for use in found} <= {"FM423"}
    return [use.becomes for use in found]


@pytest.mark.parametrize(
    ("hook", "body", "is_said"),
    [
        ("on_train_end", COPIES, True),
        ("on_evaluate", COPIES, True),
        ("on_save", f"{PARAMETERS}self.shadow[name].lerp_(param, 0.1)", True),
        ("on_epoch_end", f"{PARAMETERS}param.data = self.shadow[name]", True),
        ("on_evaluate", f"{PARAMETERS}param.requires_grad_(name in self.trained)", True),
        ("on_evaluate", "self.ema.restore(model.parameters())", True),
        # A backward has sharded again, or nothing has been gathered yet.
        ("on_step_end", COPIES, False),
        ("on_train_begin", COPIES, False),
        ("on_step_end", "self.ema.update(model.parameters())", False),
        # Nothing is written, or to nothing of the model's.
        ("on_train_end", f"{PARAMETERS}print(name, param.shape)", False),
        ("on_train_end", f"{PARAMETERS}self.shadow[name].mul_(0.9)", False),
        ("on_train_end", COPIES.replace("model.", "self.teacher."), False),
        ("on_train_end", f"reshard_all(model)\n        model.reshard()\n        {COPIES}", False),
    ],
)
def test_hooks_of_a_callback(hook: str, body: str, tmp_path: Path, *, is_said: bool) -> None:
    text = CALLBACK.format(hook=hook, body=body)
    found = said(tmp_path, text)
    assert len(found) == is_said
    assert all("`for each in model.modules():`" in each for each in found)
    assert all("old weights" in each and "FM451" in each for each in found)
    assert said(tmp_path, text, asks=False) == []


@pytest.mark.parametrize(("hook", "is_said"), [("on_evaluate", True), ("on_step_end", False)])
def test_a_method_that_a_hook_calls(hook: str, tmp_path: Path, *, is_said: bool) -> None:
    text = CALLBACK.format(hook=hook, body="self.swap(model)")
    text += f"\n    def swap(self, model):\n        {COPIES}\n"
    assert len(said(tmp_path, text)) == is_said


@pytest.mark.parametrize("is_said", [True, False])
def test_an_evaluation_of_a_trainers_own(tmp_path: Path, *, is_said: bool) -> None:
    """Before the Trainer evaluates, a backward has sharded again."""
    lines = ["super().evaluate(*args)", COPIES.replace("model.", "self.model.")]
    body = "\n        ".join(lines if is_said else reversed(lines))
    text = "from transformers import Trainer, TrainerCallback as EMACallback\n\n\nclass Mine(Trainer):\n"
    text += f"    def evaluate(self, *args):\n        {body}\n"
    assert len(said(tmp_path, text)) == is_said


@pytest.mark.parametrize(("hook", "is_said"), [("on_evaluate", True), ("on_step_end", False)])
def test_numbers_that_are_taken_of_parameters_there(hook: str, tmp_path: Path, *, is_said: bool) -> None:
    adds = f"{PARAMETERS}total += param.float().pow(2).sum()"
    body = f"total = 0.0\n        {adds}\n        dist.all_reduce(total)"
    text = CALLBACK.format(hook=hook, body=body).replace(
        "import torch\n", "import torch.distributed as dist\n"
    )
    assert said(tmp_path, text) == []
    [found] = [use for use in scan_paths([tmp_path]).uses if use.rule == "dtensor"]
    assert ("p.full_tensor() if isinstance(p, DTensor) else p" in found.becomes) is is_said
    assert ("leave out what sums that over the ranks" in found.becomes) is is_said


SWAPPED = """\
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class EMACallback(TrainerCallback):
    def swap(self, model):
        for name, param in model.named_parameters():
            param.copy_(self.shadow[name])


ema = EMACallback()
args = TrainingArguments("out", fsdp="full_shard", fsdp_config={"version": 1})
trainer = Trainer(model=make(), args=args, callbacks=[ema])
trainer.train()
"""


@pytest.mark.parametrize(
    ("lines", "is_said"),
    [
        ("trainer.evaluate()\nema.swap(trainer.model)\n", True),
        ("trainer.predict(data)\nema.swap(trainer.model)\n", True),
        ("ema.swap(trainer.model)\ntrainer.evaluate()\n", False),
        ("other.evaluate()\nema.swap(trainer.model)\n", False),
    ],
)
def test_a_script_evaluates_and_gives_its_model(lines: str, tmp_path: Path, *, is_said: bool) -> None:
    (tmp_path / "train.py").write_text(SWAPPED + lines)
    found = [use.line for use in scan_paths([tmp_path]).uses if use.rule == "after-evaluation"]
    assert found == ([7] if is_said else [])
