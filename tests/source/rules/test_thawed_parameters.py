"""Parameters that are thawed in mid-run under Accelerate, whose FSDP2 then fails in bf16 (FM354)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nmixed_precision: bf16\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAIN = """\
from accelerate import Accelerator

accelerator = Accelerator()
net.requires_grad_(False)
model, optimizer = accelerator.prepare(net, optimizer)
for step, batch in enumerate(loader):
    {}
    accelerator.backward(model(batch))
    optimizer.step()
"""
CALLBACK = """\
from transformers import Trainer, TrainerCallback, TrainingArguments


class Thaw(TrainerCallback):
    def {}(self, args, state, control, model=None, **kwargs):
        model.requires_grad_(True)


arguments = TrainingArguments("out", fsdp="full_shard auto_wrap", bf16=True)
Trainer(model=model, args=arguments, callbacks=[Thaw()]).train()
"""
LOOP = "for p in model.parameters():\n            p.requires_grad = True"


@pytest.mark.parametrize(
    ("text", "kind", "is_said"),
    [
        (TRAIN.format("model.requires_grad_(True)"), "FSDP", True),
        (TRAIN.format("model.body.requires_grad_()"), "FSDP", True),
        (TRAIN.format(f"if step == 9:\n        {LOOP}"), "FSDP", True),
        (TRAIN.format("model.body.requires_grad_(False)"), "FSDP", False),
        (TRAIN.format("batch.requires_grad_(True)"), "FSDP", False),
        (TRAIN.format("pass").replace("for step", "model.requires_grad_(True)\nfor step"), "FSDP", False),
        (TRAIN.format("model.requires_grad_(True)"), "MULTI_GPU", False),
        (CALLBACK.format("on_epoch_begin"), "FSDP", True),
        (CALLBACK.format("on_train_begin"), "FSDP", False),
    ],
)
def test_what_is_thawed_between_forwards(tmp_path: Path, text: str, kind: str, *, is_said: bool) -> None:
    """It failed late, at the first backward behind it, and nothing said so; FSDP1 went on."""
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "thawed-parameters"]
    assert [(use.code, use.action) for use in found] == [("FM354", "commented")] * is_said
