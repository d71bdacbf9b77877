"""Clipping by Accelerate while gradients are added up, and by Fabric where they are not finite."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.explanations import explain_code
from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\ndef main(args):\n"
    "    accelerator = Accelerator({steps})\n    model, optimizer = accelerator.prepare(net, optimizer)\n"
    "    for batch in loader:\n        {opens}\n            accelerator.backward(model(batch))\n"
    "            {clips}\n            optimizer.step()\n"
)
PLUGIN = "fsdp_plugin=FullyShardedDataParallelPlugin()"
STEPS = f"{PLUGIN}, gradient_accumulation_steps=args.steps"
OPENS = "with accelerator.accumulate(model):"
CLIPS = "accelerator.clip_grad_norm_(model.parameters(), 1.0)"
FABRIC = (
    "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n"
    "fabric = Fabric(strategy={}, devices=2, precision={})\n"
    "model, optimizer = fabric.setup(model, optimizer)\n"
    "fabric.clip_gradients(model, optimizer, {})\n"
)


def is_said(text: str) -> bool:
    return ("framework-clipping", "FM326") in {(use.rule, use.code) for use in scan_source(text)}


@pytest.mark.parametrize(
    ("steps", "opens", "clips", "expected"),
    [
        (STEPS, OPENS, CLIPS, True),
        (f"{PLUGIN}, gradient_accumulation_steps=4", OPENS, CLIPS, True),
        (f"{PLUGIN}, gradient_accumulation_plugin=plugin", OPENS, f"norm = {CLIPS}", True),
        (STEPS, OPENS, CLIPS.replace("model.parameters()", "list(model.parameters())"), True),
        (STEPS, OPENS, f"if accelerator.sync_gradients:\n                {CLIPS}", False),
        (STEPS, OPENS, f"if args.clip and accelerator.sync_gradients:\n                {CLIPS}", False),
        (PLUGIN, OPENS, CLIPS, False),
        (f"{PLUGIN}, gradient_accumulation_steps=1", OPENS, CLIPS, False),
        (STEPS, "if True:", CLIPS, False),
        (STEPS, OPENS, CLIPS.replace("model", "head"), False),
        ("gradient_accumulation_steps=4", OPENS, CLIPS, False),
    ],
)
def test_clipping_in_steps_that_only_accumulate(
    steps: str, opens: str, clips: str, *, expected: bool
) -> None:
    assert is_said(ACCELERATE.format(steps=steps, opens=opens, clips=clips)) is expected


CLASS = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\nclass Run:\n"
    "    def __init__(self, net):\n"
    "        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "        self.model = self.accelerator.prepare(net)\n\n"
    "    def free(self):\n        self.accelerator.{forgets}()\n\n"
    "    def train(self):\n"
    "        {before}\n"
    "        for batch in self.batches:\n"
    "            self.accelerator.backward(self.model(batch))\n"
    "            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)\n"
    "            {within}\n"
    "        {after}\n"
)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({"within": "self.free()"}, True),
        ({"within": "self.accelerator.free_memory()"}, True),
        ({"within": "self.accelerator.clear()"}, True),
        ({"within": "if stale: self.free()"}, True),
        ({"before": "self.free()"}, True),
        ({"forgets": "clear", "before": "self.free()"}, True),
        ({"after": "self.free()"}, False),
        ({"after": "self.accelerator.free_memory()"}, False),
        ({"within": "self.cache.clear()"}, False),
        ({"forgets": "wait_for_everyone", "within": "self.free()"}, False),
        ({"before": "self.free(); self.model = self.accelerator.prepare(self.model)"}, False),
        ({"within": "self.free(); self.model = self.accelerator.prepare(self.model)"}, False),
        ({}, False),
    ],
)
def test_a_model_that_accelerate_has_forgotten(places: dict[str, str], *, expected: bool) -> None:
    filled = {"forgets": "free_memory", "before": "pass", "within": "pass", "after": "pass", **places}
    assert is_said(CLASS.format(**filled)) is expected


APART = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\n"
    "def step(accelerator, model, batch):\n"
    "    accelerator.backward(model(batch))\n"
    "    accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
    "    accelerator.free_memory()\n\n\n"
    "def run(accelerator, net, loader):\n    {runs}\n\n\n"
    "def main(nets, loader):\n"
    "    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "    for net in nets:\n        {main}\n"
)
PREPARED = "model = accelerator.prepare(net)"
STEPS_OF_ONE = f"{PREPARED}\n    for batch in loader:\n        step(accelerator, model, batch)"
ONE_STEP = f"{PREPARED}\n    step(accelerator, model, loader)"


@pytest.mark.parametrize(
    ("runs", "main", "expected"),
    [
        (STEPS_OF_ONE, "pass", True),
        # Each round of the loop prepares a model of its own, also by what it calls.
        (ONE_STEP, "run(accelerator, net, loader)", False),
        (ONE_STEP, "Runs(accelerator).run(accelerator, net, loader)", False),
        ("pass", "model = accelerator.prepare(net); step(accelerator, model, loader)", False),
        (
            "pass",
            "model = accelerator.prepare(net)\n    for _ in nets: step(accelerator, model, loader)",
            True,
        ),
    ],
)
def test_a_model_that_a_step_forgets_at_its_end(runs: str, main: str, *, expected: bool) -> None:
    assert is_said(APART.format(runs=runs, main=main)) is expected


LEAVES = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\n"
    "def step(net, batch):\n"
    "    accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "    model = accelerator.prepare(net)\n"
    "    if batch is None:\n        accelerator.free_memory()\n        {then}\n"
    "    accelerator.backward(model(batch))\n"
    "    accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
)


@pytest.mark.parametrize(("then", "expected"), [("return", False), ("pass", True)])
def test_what_is_left_after_the_model_was_forgotten_clips_none(then: str, *, expected: bool) -> None:
    assert is_said(LEAVES.format(then=then)) is expected


LARGEST = CLIPS.replace("1.0", "1.0, norm_type=float('inf')")


@pytest.mark.parametrize(
    ("clips", "expected"),
    [
        (f"log({LARGEST})", True),
        (f"norm = {LARGEST.replace('norm_type=', '')}", True),
        (f"norm = {CLIPS.replace('1.0', '1.0, norm_type=torch.inf')}", True),
        (LARGEST, False),
        (f"norm = {CLIPS}", False),
        (f"norm = {CLIPS.replace('1.0', '1.0, norm_type=1')}", False),
        (f"norm = {LARGEST.replace('model.', 'head.')}", False),
    ],
)
def test_the_largest_gradient_is_read_of_one_rank(clips: str, *, expected: bool) -> None:
    assert is_said(ACCELERATE.format(steps=PLUGIN, opens="if True:", clips=clips)) is expected


@pytest.mark.parametrize(
    ("strategy", "given", "precision", "expected"),
    [
        ("FSDPStrategy()", "max_norm=1.0", "'16-mixed'", True),
        ("FSDPStrategy()", "max_norm=1.0", "args.precision", True),
        ("FSDPStrategy()", "max_norm=1.0", "'bf16-mixed'", True),
        ("FSDPStrategy()", "max_norm=1.0", "32", True),
        ("FSDPStrategy()", "None, 1.0", "'bf16-mixed'", True),
        ("FSDPStrategy()", "max_norm=None", "32", False),
        ("FSDPStrategy()", "0.5", "'bf16-mixed'", False),
        ("FSDPStrategy()", "**clipping", "'bf16-mixed'", True),
        ("FSDPStrategy()", "error_if_nonfinite=False, **clipping", "'bf16-mixed'", False),
        ("FSDPStrategy()", "None, 1.0, 2.0, False", "'bf16-mixed'", False),
        ("FSDPStrategy()", "max_norm=1.0, error_if_nonfinite=True", "16", True),
        ("FSDPStrategy()", "max_norm=1.0, error_if_nonfinite=False", "16", False),
        ("FSDPStrategy()", "clip_val=1.0", "16", False),
        ("'ddp'", "max_norm=1.0", "16", False),
    ],
)
def test_fabrics_norms_that_are_not_finite(
    strategy: str, given: str, precision: str, *, expected: bool
) -> None:
    text = FABRIC.format(strategy, precision, given)
    text = (
        text
        if "FSDP" in strategy
        else text.replace("from lightning.fabric.strategies import FSDPStrategy\n", "")
    )
    assert is_said(text) is expected


def test_fabrics_fsdp1_alone_takes_norms_that_are_not_finite() -> None:
    pytest.importorskip("lightning")
    from lightning.fabric.strategies.fsdp import FSDPStrategy
    from lightning.fabric.strategies.model_parallel import ModelParallelStrategy

    old = inspect.getsource(FSDPStrategy.clip_gradients_norm)
    new = inspect.getsource(ModelParallelStrategy.clip_gradients_norm)
    assert old.count("error_if_nonfinite") == 1
    assert "error_if_nonfinite: bool = True" in new
    assert "error_if_nonfinite=error_if_nonfinite" in new


def test_what_fabric_does_with_a_norm_is_said_as_its_argument_stands() -> None:
    def said(given: str) -> str:
        found = scan_source(FABRIC.format("FSDPStrategy()", "'bf16-mixed'", given))
        (use,) = (use for use in found if use.rule == "framework-clipping")
        return use.becomes

    assert "the norm is the same as before" in said("max_norm=1.0")
    assert "true unless you say otherwise" in said("max_norm=1.0")
    for given in ("max_norm=1.0, error_if_nonfinite=True", "None, 1.0, 2.0, True"):
        assert "which is true here" in said(given)


def test_the_explanation_has_every_kind_of_clipping() -> None:
    told = explain_code("FM326")
    assert "error_if_nonfinite" in told.why
    assert "`error_if_nonfinite=False`" in told.action
    for name in ("torch", "timm", "Accelerate", "Fabric"):
        assert name in told.why


CLIPS_UNSEEN = (
    "from lightning.fabric import Fabric\nfrom made import get_class\n\nclass Trainer:\n"
    "    def __init__(self, fabric: Fabric, config):\n        self.fabric = fabric\n"
    "        self.net = get_class(config.name)(fabric)\n        {}\n"
    "    def step(self):\n        norm = self.fabric.clip_gradients(self.net, self.opt, max_norm=1.0)\n"
    "        self.fabric.log_dict({{'norm': norm}})\n"
)


@pytest.mark.parametrize(
    ("strategy", "makes", "is_clipped"),
    [
        ("FSDPStrategy()", "pass", True),
        ("DDPStrategy()", "pass", False),
        ("ModelParallelStrategy()", "pass", False),
        ("FSDPStrategy()", "self.fabric = Fabric(strategy='ddp')", False),
    ],
)
def test_a_fabric_of_fsdp_clips_models_that_are_not_seen_too(
    strategy: str, makes: str, *, is_clipped: bool, tmp_path: Path
) -> None:
    """Its norm went without a word where a config names what makes the model."""
    imports = f"from lightning.fabric.strategies import {strategy.removesuffix('()')}\n"
    (tmp_path / "main.py").write_text(
        f"from lightning.fabric import Fabric\n{imports}from trainer import Trainer\n"
        f"Trainer(Fabric(strategy={strategy}), config).step()\n"
    )
    (tmp_path / "trainer.py").write_text(CLIPS_UNSEEN.format(makes))
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("trainer.py")}
    assert ({"FM326", "FM423"} <= found) is is_clipped
    assert is_clipped or not {"FM326", "FM423"} & found
