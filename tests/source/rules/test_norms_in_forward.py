"""Norms that a model's forward takes of its own parameters, some of which are DTensors there (FM423)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MODEL = """\
import torch
from torch import nn
from transformers import LlamaForCausalLM


class Net(LlamaForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        total = 0.0
        {}
        return super().forward(x), total
"""
LOOP = "for p in self.parameters():\n            total += torch.linalg.vector_norm(p) ** 2"
TRAIN = """\
from accelerate import Accelerator
from model import Net

accelerator = Accelerator()
model, optimizer = accelerator.prepare(Net.from_pretrained("x"), optimizer)
"""
YAML = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"


def found_in(folder: Path, model: str, train: str = TRAIN, kind: str = "FSDP") -> list[str]:
    (folder / "model.py").write_text(model)
    (folder / "train.py").write_text(train)
    (folder / "fsdp.yaml").write_text(YAML.format(kind))
    return [use.code for use in scan_paths([folder]).uses if use.rule == "norms-in-forward"]


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (LOOP, True),
        (LOOP.replace("self.", "self.layers."), True),
        ("for n, p in self.named_parameters():\n            total = total + (p.data - 1).abs().sum()", True),
        ("total = sum(p.pow(2).sum() for p in self.parameters())", True),
        ("total = torch.norm(torch.cat([p.view(-1) for p in self.parameters()]))", True),
        ("for p, q in zip(self.parameters(), self.old):\n            total += ((p - q) ** 2).sum()", True),
        # One layer of torch's is the root's, which shows it whole and plain.
        (LOOP.replace("self.", "self.head."), False),
        ("total = sum(p.numel() for p in self.parameters() if p.requires_grad)", False),
        ("total = next(self.parameters()).device", False),
        ("for p in self.parameters():\n            total += p.norm().item()", False),
        ("for p in self.parameters():\n            total += p.full_tensor().norm()", False),
        ("for n, p in self.named_parameters():\n            total += len(n)", False),
        (LOOP.replace("self.", "x."), False),
    ],
)
def test_a_forward_that_goes_through_its_own_parameters(tmp_path: Path, body: str, *, is_said: bool) -> None:
    """Under FULL_SHARD FSDP2's units show DTensors there, and the root plain tensors."""
    model = MODEL.format(body)
    assert found_in(tmp_path, model) == ["FM423"] * is_said
    here = model + "\n\nmodel = FSDP(Net(config))\n"
    assert [use.code for use in uses(here) if use.rule == "norms-in-forward"] == ["FM423"] * is_said


def test_what_the_forward_calls(tmp_path: Path) -> None:
    """A method that a script calls by itself runs outside of the forward, where all are DTensors."""
    model = MODEL.format("total = self.norm()") + (
        "\n    def norm(self):\n        return sum(p.norm() for p in self.parameters())\n"
    )
    assert found_in(tmp_path, model) == ["FM423"]
    assert found_in(tmp_path, model.replace("total = self.norm()", "pass")) == []


@pytest.mark.parametrize(
    ("train", "kind"),
    [
        (TRAIN, "MULTI_GPU"),
        (TRAIN.replace("Net", "Other"), "FSDP"),
    ],
)
def test_classes_that_nothing_shards(tmp_path: Path, train: str, kind: str) -> None:
    assert found_in(tmp_path, MODEL.format(LOOP), train, kind) == []


def test_a_part_is_gathered_for_its_own_forward(tmp_path: Path) -> None:
    """Of a unit all parameters are whole while it runs; what is no module may hold a model all the same."""
    part = TRAIN + "\n\nclass Whole(torch.nn.Module):\n    def {}(self, x):\n        self.net = Net(x)\n"
    forward = "    def forward(self, x):\n        return self.net(x)\n"
    assert found_in(tmp_path, MODEL.format(LOOP), part.format("__init__") + "\n" + forward) == []
    assert found_in(tmp_path, MODEL.format(LOOP), part.format("make")) == ["FM423"]


def test_by_another_name_and_by_a_function(tmp_path: Path) -> None:
    named = TRAIN.replace("model, opt", "Chosen = Net\nmodel, opt").replace("Net.from", "Chosen.from")
    assert found_in(tmp_path, MODEL.format(LOOP), named) == ["FM423"]
    made = MODEL.format(LOOP) + "\n\ndef build(config):\n    return Net(config)\n"
    by_function = TRAIN.replace("import Net", "import build").replace("Net.from_pretrained", "build")
    assert found_in(tmp_path, made, by_function) == ["FM423"]
