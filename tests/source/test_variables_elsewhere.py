"""Accelerate's variables that one file of a project sets for another file's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CALLS = """\
from transformers import Trainer, TrainingArguments
{}
args = TrainingArguments("o", fsdp="full_shard auto_wrap"{})
Trainer(model=model, args=args).train()
"""
SETS = "import os\n\n\ndef setup():\n    {}\n"
OFFLOADS = 'os.environ["FSDP_OFFLOAD_PARAMS"] = "1"'
SAID = "FM343 `max_grad_norm`: `FSDP_OFFLOAD_PARAMS=true`"


@pytest.mark.parametrize(
    ("sets", "beside", "is_said"),
    [
        (OFFLOADS, "", True),
        ('os.environ.update({"FSDP_OFFLOAD_PARAMS": "true"})', "", True),
        ('os.environ.update(FSDP_OFFLOAD_PARAMS="true")', "", True),
        ('os.environ.setdefault("FSDP_OFFLOAD_PARAMS", "true")', "", True),
        (OFFLOADS, ", max_grad_norm=0.0", False),
        ('os.environ.update(FSDP_OFFLOAD_PARAMS="true", ACCELERATE_USE_FSDP="true")', "", False),
        ('os.environ["FSDP_OFFLOAD_PARAMS"] = "false"', "", False),
        ('os.environ["FSDP_OFFLOAD_PARAMS"] = choose()', "", False),
        # For a process that is started with it.
        ('env = {**os.environ}\n    env["FSDP_OFFLOAD_PARAMS"] = "1"', "", False),
    ],
)
def test_offload_that_another_file_switches_on(
    tmp_path: Path, sets: str, beside: str, *, is_said: bool
) -> None:
    files = {"prepare.py": SETS.format(sets), "train.py": CALLS.format("from prepare import setup", beside)}
    assert (SAID in after(tmp_path, files, "train.py")) is is_said


@pytest.mark.parametrize(
    ("main", "is_said"),
    [("from prepare import setup\nfrom train import args\n", True), ("from prepare import setup\n", False)],
)
def test_variables_hold_where_one_run_imports_both_files(tmp_path: Path, main: str, *, is_said: bool) -> None:
    files = {"prepare.py": SETS.format(OFFLOADS), "train.py": CALLS.format("", ""), "main.py": main}
    assert (SAID in after(tmp_path, files, "train.py")) is is_said


def test_variables_of_tests_say_nothing(tmp_path: Path) -> None:
    files = {
        "train.py": CALLS.format("", ""),
        "test_it.py": f"from train import args\n{SETS.format(OFFLOADS)}",
    }
    assert SAID not in after(tmp_path, files, "train.py")


def test_a_test_that_imports_both_is_no_run(tmp_path: Path) -> None:
    both = "import prepare\nimport train\n"
    files = {"prepare.py": SETS.format(OFFLOADS), "train.py": CALLS.format("", ""), "test_it.py": both}
    assert SAID not in after(tmp_path, files, "train.py")
    assert SAID in after(tmp_path, {**files, "main.py": both}, "train.py")


def test_what_imports_lead_to_counts_and_what_the_file_sets_itself_beside_it(tmp_path: Path) -> None:
    train = CALLS.format("import os\nos.environ['FSDP_FORWARD_PREFETCH'] = 'true'", "")
    files = {
        "main.py": "import one\nimport train\n",
        "one.py": "import two\n",
        "two.py": "import prepare\n",
        "prepare.py": SETS.format(OFFLOADS),
    }
    assert SAID in after(tmp_path, {**files, "train.py": CALLS.format("", "")}, "train.py")
    assert SAID in after(tmp_path, {**files, "train.py": train}, "train.py")
