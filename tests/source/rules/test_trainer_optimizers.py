"""Optimizers that Hugging Face's arguments name, where a config asks the Trainer for FSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
HEADER = "from transformers import Trainer, TrainingArguments\n\n\n"
TRAINS = "Trainer(model=model, args=args, train_dataset=data).train()\n"
CLASS = (
    "@dataclass\nclass Mine(TrainingArguments):\n    optim: str = field(default='paged_adamw_32bit')\n\n\n"
    "args = parse(Mine)\n"
)


SMOOTHED = "label_smoothing_factor: float"
PARSED = "p.add_argument('--optim', default='paged_adamw_32bit')\nargs = given(optim=p.parse_args().optim)\n"
OWN = (
    "@dataclass\nclass ScriptArguments:\n    optim: str = field(default='paged_adamw_32bit')\n\n\n"
    "args = given(ScriptArguments)\n"
)
GIVEN = "more = {'optim': 'adamw_bnb_8bit'}\nargs = TrainingArguments(**more)\n"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("args = TrainingArguments(output_dir='o', optim='adafactor')\n", "adamw_torch"),
        ("args = TrainingArguments(optim='adamw_torch' if x else 'paged_adamw_8bit')\n", "adamw_torch_8bit"),
        (CLASS, "bitsandbytes"),
        ("args = parse()\nargs.optim = 'lion_8bit'\n", "bitsandbytes"),
        (PARSED, "bitsandbytes"),
        (OWN, "bitsandbytes"),
        (OWN.replace("field(default='paged_adamw_32bit')", "'adamw_8bit'"), "bitsandbytes"),
        (GIVEN, "bitsandbytes"),
        # A script's own option may mean another thing by such a name.
        (PARSED.replace("paged_adamw_32bit", "adafactor"), ""),
        (OWN.replace("paged_adamw_32bit", "adafactor"), ""),
        (OWN.replace("optim:", "renamed:"), ""),
        (GIVEN.replace("adamw_bnb_8bit", "adamw_torch"), ""),
        ("NAMES = ['paged_adamw_32bit']\nargs = parse()\n", ""),
        (
            "args = TrainingArguments(output_dir='o', label_smoothing_factor=0.1)\n",
            "shift_labels=True, num_items_in_batch=num_items_in_batch)",
        ),
        ("args = parse()\nargs.label_smoothing_factor = 0.1\n", "compute_loss_func"),
        (CLASS.replace("optim: str", SMOOTHED).replace("'paged_adamw_32bit'", "0.1"), "compute_loss_func"),
        ("args = TrainingArguments(output_dir='o', label_smoothing_factor=0.0)\n", ""),
        ("args = TrainingArguments(output_dir='o', label_smoothing_factor=x)\n", ""),
        ("args = TrainingArguments(output_dir='o', optim='adamw_torch')\n", ""),
        ("args = TrainingArguments(output_dir='o', optim=x)\n", ""),
        ("x = Settings(optim='adafactor')\n", ""),
    ],
)
def test_what_fsdp2_cannot_step(tmp_path: Path, made: str, said: str) -> None:
    (tmp_path / "train.py").write_text(f"{HEADER}{made}{TRAINS}")
    for kind, expected in (("FSDP", bool(said)), ("MULTI_GPU", False)):
        (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
        found = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM343"]
        assert [said in each for each in found] == [True] * expected
    (tmp_path / "fsdp.yaml").write_text(YAML.format("FSDP"))
    # The arguments may stand in a file of their own.
    (tmp_path / "train.py").write_text(f"{HEADER}from arguments import args\n{TRAINS}")
    (tmp_path / "arguments.py").write_text(f"from transformers import TrainingArguments\n\n\n{made}")
    found = [use.path[-12:] for use in scan_paths([tmp_path]).uses if use.code == "FM343"]

    assert "parse()" in made or found == ["arguments.py"] * bool(said)
    rewrite_paths([tmp_path], write=True)
    assert rewrite_paths([tmp_path]).changed == ()


OWN = (
    "from transformers import Trainer\n\n\nclass Own(Trainer):\n    def __init__(self, head, *a, **k):\n"
    "        super().__init__(*a, **k)\n        self.head = head\n        self.body = self.model.body\n\n"
    "    def create_optimizer(self, model=None):\n        super().create_optimizer()\n        {}\n"
    "        return self.optimizer\n"
)
ADDS = "self.optimizer.add_param_group({{'params': {}}})"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (ADDS.format("list(self.head.parameters())"), "`self.head`"),
        (ADDS.format("self.head.parameters()"), "`self.head`"),
        ("self.optimizer = AdamW([*self.model.parameters(), *self.head.parameters()])", "`self.head`"),
        ("groups = [{'params': self.head.parameters()}]", "`self.head`"),
        ("bare = unwrap_model(self.head)\n        " + ADDS.format("list(bare.parameters())"), "`self.head`"),
        ("head = self.head\n        " + ADDS.format("head.parameters()"), "`self.head`"),
        ("bare = unwrap_model(self.model)\n        " + ADDS.format("bare.parameters()"), ""),
        (ADDS.format("self.model.head.parameters()"), ""),
        (ADDS.format("self.body.parameters()"), ""),
        (ADDS.format("model.parameters()"), ""),
        (ADDS.format("self.accelerator.unwrap_model(self.model).parameters()"), ""),
        (ADDS.format("self.accelerator.unwrap_model(self.head).parameters()"), "`self.head`"),
        (
            f"inner = self.accelerator.unwrap_model(self.head)\n        {ADDS.format('inner.parameters()')}",
            "head",
        ),
        (
            f"inner = self.accelerator.unwrap_model(self.model)\n        {ADDS.format('inner.parameters()')}",
            "",
        ),
        (f"inner = self.head\n        {ADDS.format('list(inner.parameters())')}", "`self.head`"),
        ("self.second = AdamW(self.head.parameters())", ""),
        ("for p in self.head.parameters(): p.requires_grad = False", ""),
    ],
)
def test_an_optimizer_of_a_trainers_own_that_holds_more_than_its_model(
    tmp_path: Path, line: str, named: str
) -> None:
    """FSDP2 stops at what it finds in no model (``hold_more`` of accelerate_bodies)."""
    (tmp_path / "own.py").write_text(OWN.format(line.replace("{{", "{").replace("}}", "}")))
    (tmp_path / "train.py").write_text(
        f"from own import Own\n{HEADER}{TRAINS.replace('Trainer(', 'Own(head, ')}"
    )
    for kind in ("FSDP", "MULTI_GPU"):
        (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
        found = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM449"]
        assert [named in each for each in found] == [True] * (bool(named) and kind == "FSDP")
