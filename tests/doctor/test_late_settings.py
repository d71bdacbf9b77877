"""Parameters that a framework's training sets again between its evaluations."""

from __future__ import annotations

import pytest

from fsdp_migrate.doctor.late_settings import late_settings
from tests.doctor.sights import seeing


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
        ("print 'Python 2', requires_grad, accelerate, no_grad\n", False, False),
    ],
)
def test_what_is_set_between_evaluations(text: str, *, is_set: bool, is_written: bool) -> None:
    sight = seeing(sources={"train.py": text})
    assert bool(late_settings(sight, is_written=False)) is is_set
    assert bool(late_settings(sight, is_written=True)) is is_written


SWAPS = (
    "class Average{}:\n    def swap(self, model):\n        for n, p in model.named_parameters():\n"
    "            p.data.copy_(self.old[n])\n"
)
OF_CALLBACK = "from transformers import TrainerCallback\n" + SWAPS.format("(TrainerCallback)")
TRAINER = (
    "from transformers import Trainer\nfrom {} import {}\nclass Own(Trainer):\n"
    "    def evaluate(self, *args):\n        {}\n        {}\n"
)
BEFORE, AFTER = (
    ("self.average.swap(self.model)", "super().evaluate(*args)"),
    (
        "super().evaluate(*args)",
        "self.average.swap(self.model)",
    ),
)
LOOPS = f"from averages import Average\n{MAIN}    average = Average()\n" + EPOCHS.format("")


@pytest.mark.parametrize(
    ("own", "train", "is_seen"),
    [
        (OF_CALLBACK, TRAINER.format("averages", "Average", *AFTER), True),
        (SWAPS.format(""), TRAINER.format("averages", "Average", *AFTER), True),
        (SWAPS.format(""), f"{LOOPS}        average.swap(model)\n", True),
        (OF_CALLBACK, TRAINER.format("averages", "Average", *BEFORE), False),
        (SWAPS.format(""), TRAINER.format("others", "Other", *AFTER), False),
        (SWAPS.format(""), TRAINER.format("averages", "Average", *AFTER).replace("Trainer", "Base"), False),
        (SWAPS.format(""), f"{LOOPS}    average.swap(model)\n", True),
        (SWAPS.format(""), LOOPS.replace("    for", "    average.swap(model)\n    for"), False),
        (SWAPS.format(""), LOOPS, False),
    ],
)
def test_what_is_written_is_followed_over_files(own: str, train: str, *, is_seen: bool) -> None:
    sight = seeing(sources={"lib/averages.py": own, "train.py": train})
    assert bool(late_settings(sight, is_written=True)) is is_seen
