"""Parameters that a framework's training sets again between its evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.doctor.late_settings import is_in_full_precision, late_settings
from fsdp_migrate.doctor.source_faults import SOURCE_FAULTS
from tests.doctor.sights import is_seen, of_config, seeing


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SETS = "def unfreeze(model, epoch):\n    for n, p in model.named_parameters():\n        {}\n"
EPOCHS = "    for epoch in range(3):\n{}        train(model)\n        validate(model)\n"
LOOP = EPOCHS.format("        unfreeze(model, epoch)\n")
ONCE = "    unfreeze(model, 0)\n" + EPOCHS.format("")
MAIN = "from accelerate import Accelerator\ndef main(accelerator, model):\n"
HOOK = "from transformers import TrainerCallback as T\nclass C(T):\n    def {}(self, *args, model=None):\n"
FREEZES = "        for p in model.parameters():\n            p.requires_grad_(True)\n"
EVALUATES = "    def on_evaluate(self, *args):\n        pass\n"


@pytest.mark.parametrize(
    ("text", "is_set", "is_written"),
    [
        (SETS.format("p.requires_grad = 'out' in n") + MAIN + LOOP, True, True),
        (SETS.format("p.requires_grad_(epoch > 0)") + MAIN + LOOP, True, True),
        (SETS.format("p.data.copy_(old[n])") + MAIN + LOOP, False, True),
        (SETS.format("p.copy_(old[n])") + MAIN + LOOP, False, True),
        (SETS.format("old[n].copy_(p)") + MAIN + LOOP, False, False),
        (SETS.format("print(p.requires_grad)") + MAIN + LOOP, False, False),
        (SETS.format("p.requires_grad = 'out' in n") + MAIN + ONCE, False, False),
        (SETS.format("p.requires_grad = 'out' in n") + MAIN.replace("ccelerat", "") + LOOP, False, False),
        (SETS.format("p.requires_grad = 'out' in n") + MAIN + LOOP.replace("valid", "upd"), False, False),
        (HOOK.format("on_epoch_begin") + FREEZES + EVALUATES, True, True),
        (HOOK.format("on_train_begin") + FREEZES + EVALUATES, False, False),
        # After the step's backward, which has sharded again, and before an evaluation.
        (HOOK.format("on_step_end") + FREEZES + EVALUATES, True, False),
        (HOOK.format("on_step_begin") + FREEZES + EVALUATES, True, True),
        ("print 'Python 2', requires_grad, accelerate, no_grad\n", False, False),
    ],
)
def test_what_is_set_between_evaluations(text: str, *, is_set: bool, is_written: bool) -> None:
    sight = seeing(sources={"train.py": text})
    assert bool(late_settings(sight, is_written=False)) is is_set
    assert bool(late_settings(sight, is_written=True)) is is_written


CALLBACK = "from transformers import TrainerCallback\nclass C(TrainerCallback):\n    @torch.no_grad()\n"
SWAP = (
    "    def swap(self, model):\n        for n, p in model.named_parameters():\n            p.copy_(old[n])\n"
)
TRAINER = "class T({}):\n    def {}(self, *args):\n        ema.swap(self.model)\n"


@pytest.mark.parametrize(
    ("other", "is_written"),
    [
        (TRAINER.format("Trainer", "evaluate"), True),
        (
            "def main():\n    for epoch in epochs:\n        train_epoch(model)\n        ema.swap(model)\n",
            True,
        ),
        (TRAINER.format("Trainer", "__init__"), False),
        (TRAINER.format("object", "evaluate"), False),
        # Whose `swap` is called is not known.
        (TRAINER.format("Trainer", "evaluate") + "def swap(model): ...\n", False),
        ("", False),
    ],
)
def test_a_method_that_another_source_calls(other: str, *, is_written: bool) -> None:
    sight = seeing(sources={"callbacks.py": CALLBACK + SWAP, "train.py": other})
    assert bool(late_settings(sight, is_written=True)) is is_written


SUMMONED = (
    "    def swap(self, model):\n        with {}:\n"
    "            for p, s in zip(model.parameters(), self.saved):\n"
    "                p.data.copy_(s)\n"
)


@pytest.mark.parametrize(
    ("entered", "is_written"),
    [
        ("FSDP.summon_full_params(model, writeback=True)", False),
        ("torch.no_grad(), summon_full_params(model)", False),
        ("torch.no_grad()", True),
        ("held", True),
    ],
)
def test_what_is_written_to_summoned_parameters_is_kept(entered: str, *, is_written: bool) -> None:
    sources = {
        "callbacks.py": CALLBACK + SUMMONED.format(entered),
        "train.py": TRAINER.format("Trainer", "evaluate"),
    }
    assert bool(late_settings(seeing(sources=sources), is_written=True)) is is_written


UNFREEZES = "model = FSDP(model{})\nfor p in model.parameters():\n    p.requires_grad_(True)\n"
TRAINS = "args = TrainingArguments(**cfg)\n"


@pytest.mark.parametrize(
    ("text", "config", "is_full"),
    [
        (UNFREEZES.format(""), "", True),
        (UNFREEZES.format(", mixed_precision=MixedPrecision(param_dtype=d)"), "", False),
        (UNFREEZES.format("") + "with torch.autocast('cuda'):\n    pass\n", "", False),
        (UNFREEZES.format(""), "dtype: bfloat16\n", False),
        (MAIN, "distributed_type: FSDP\nmixed_precision: 'no'\ndowncast_bf16: 'no'\n", True),
        (MAIN, "distributed_type: FSDP\nmixed_precision: bf16\n", False),
        # A command, or a config elsewhere, may say it.
        (MAIN, "", False),
        (TRAINS, "training:\n  max_steps: 3\n", True),
        (TRAINS, "training:\n  bf16: true\n", False),
        ("(args,) = HfArgumentParser(TrainingArguments).parse_args()\n" + TRAINS, "", False),
    ],
)
def test_what_is_unfrozen_in_full_precision_is_no_fault(
    text: str, config: str, tmp_path: Path, *, is_full: bool
) -> None:
    (tmp_path / "c.yaml").write_text(config)
    sight = seeing(sources={"train.py": text}, configs=(tmp_path / "c.yaml", tmp_path / "gone.yaml"))
    assert is_in_full_precision(sight) is is_full
    if "requires_grad" in text:
        (fault,) = (each for each in SOURCE_FAULTS if each.name == "unfreezing-later")
        assert is_seen(fault, sight) is not is_full


def test_a_config_that_is_given_says_the_precision() -> None:
    assert is_in_full_precision(of_config(settings={"mixed_precision": "no"}))
    assert not is_in_full_precision(of_config(settings={"mixed_precision": "bf16"}))
    assert not is_in_full_precision(of_config(mixed_precision={"param_dtype": "bf16"}))
