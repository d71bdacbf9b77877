"""Arguments of Hugging Face's Trainer that mean something else beside FSDP2."""

from __future__ import annotations

import inspect
import re

import pytest

from fsdp_migrate.adapters.conversion.command import convert_command
from fsdp_migrate.adapters.conversion.text import convert_text


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(("value", "is_said"), [("0.1", True), ("1", True), ("0.0", False), ("0", False)])
def test_smoothed_labels_are_not_shifted_where_fsdp2_renames_the_model(value: str, *, is_said: bool) -> None:
    done = convert_text(f"output_dir: o\nfsdp: full_shard auto_wrap\nlabel_smoothing_factor: {value}\n")
    said = {each.subject: each.code for each in done.findings}
    assert (said.get("label_smoothing_factor") == "FM343") is is_said
    assert f"label_smoothing_factor: {value}\n" in done.text


def test_transformers_shifts_the_labels_by_the_name_of_the_class() -> None:
    transformers = pytest.importorskip("transformers")
    source = inspect.getsource(transformers.Trainer.compute_loss)
    assert "_get_name()" in source
    assert re.search(
        r"in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values\(\):\s+loss = self.label_smoother\(.*shift_labels=True",
        source,
    )


@pytest.mark.parametrize(("value", "is_said"), [("0.1", True), ("0", False), ("$X", False)])
@pytest.mark.parametrize(
    "command",
    [
        'torchrun train.py --output_dir o --fsdp "full_shard auto_wrap"',
        "accelerate launch --use_fsdp --fsdp_sharding_strategy 1 train.py --output_dir o",
    ],
)
def test_they_are_said_of_a_command_as_well(command: str, value: str, *, is_said: bool) -> None:
    done = convert_command(f"{command} --label_smoothing_factor {value}")
    assert any(each.subject.endswith("label_smoothing_factor") for each in done.findings) is is_said
