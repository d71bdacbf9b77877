"""What asks a model, or a part of one, for its state by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths
from tests.source.samples import MODEL, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

OWN_STATE = "get_model_state_dict({}, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"
TRAINED = """\
from transformers import Trainer, TrainingArguments

args = TrainingArguments("out", fsdp="full_shard")
trainer = Trainer(model=model, args=args)
trainer.train()
inner = trainer.accelerator.unwrap_model(trainer.model)
"""
PREPARED = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
model, optimizer = accelerator.prepare(model, optimizer)
inner = accelerator.unwrap_model(model)
"""


def said(body: str, header: str) -> list[str]:
    return [use.becomes for use in uses(body, header) if use.code in {"FM308", "FM333"}]


@pytest.mark.parametrize("header", [TRAINED, PREPARED])
@pytest.mark.parametrize("part", ["inner.encoder", "inner.rag.generator"])
def test_a_part_is_given_its_own_state(header: str, part: str) -> None:
    (found,) = said(f"{part}.save_pretrained(path)\n", header)
    assert f"give it state_dict=, of torch's {OWN_STATE.format(part)}, which every rank takes:" in found


@pytest.mark.parametrize(
    ("header", "test"),
    [
        (TRAINED, "trainer.args.process_index == 0"),
        (TRAINED, "trainer.is_world_process_zero()"),
        (TRAINED, "trainer.args.should_save"),
        (PREPARED, "accelerator.process_index == 0"),
        (PREPARED, "args.local_rank in (-1, 0)"),
    ],
)
@pytest.mark.parametrize("asked", ["inner", "inner.encoder"])
def test_every_rank_takes_the_state_above_a_branch_of_one(header: str, test: str, asked: str) -> None:
    (found,) = said(f"if {test}:\n    {asked}.save_pretrained(path)\n", header)
    assert "which every rank takes above this branch" in found


def test_a_part_of_a_model_of_the_class_is_given_its_own_state() -> None:
    (found,) = (use.becomes for use in uses(f"{MODEL}model.lm.save_pretrained(p)\n") if use.code == "FM308")
    assert OWN_STATE.format("model.lm") in found


@pytest.mark.parametrize(
    "call",
    [
        "safetensors.torch.save_model({}, path)",
        "huggingface_hub.save_torch_model({}, path)",
        "peft.get_peft_model_state_dict({})",
    ],
)
def test_functions_of_other_packages_are_given_a_part(call: str) -> None:
    imports = "import huggingface_hub, peft, safetensors.torch\n"
    (found,) = said(f"part = model.encoder\n{call.format('part')}\n", f"{imports}{PREPARED}")
    assert f"state = {OWN_STATE.format('part')}" in found
    assert said(f"{call.format('other.encoder')}\n", f"{imports}{PREPARED}") == []


def test_comments_are_written_once(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text(f"{TRAINED}inner.encoder.save_pretrained(path)\n")
    rewrite_paths([tmp_path], write=True)
    after = source.read_text()
    rewrite_paths([tmp_path], write=True)
    assert source.read_text() == after


_HOLDER = """\
class Worker:
    def build(self, net):
        self.fsdp = FSDP(net)
        self.inner = self.fsdp.{0}
    def save(self, path):
        inner = self.fsdp.{0}
        if isinstance(self.{1}, FSDP):
            {2}
        else:
            {3}
"""


@pytest.mark.parametrize("asked", ["self.inner.save_pretrained(path)", "inner.save_pretrained(path)"])
@pytest.mark.parametrize("taken", ["_fsdp_wrapped_module", "module"])
@pytest.mark.parametrize(
    ("test", "is_below", "is_said"), [("fsdp", True, True), ("fsdp", False, False), ("other", False, True)]
)
def test_what_a_wrapper_held_is_plain_where_that_is_none(
    asked: str, taken: str, test: str, *, is_below: bool, is_said: bool
) -> None:
    branches = (asked, "pass") if is_below else ("pass", asked)
    found = {use.code for use in uses(_HOLDER.format(taken, test, *branches)) if use.action == "commented"}
    assert (not found.isdisjoint({"FM308", "FM333"})) is is_said
