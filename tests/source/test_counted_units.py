"""Counts of FSDP units, where a framework shards."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.counted_units import COUNTED
from tests.source.samples import uses


pytestmark = pytest.mark.any_torch

ACCELERATED = (
    "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    'plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")\n'
    "accelerator = Accelerator(fsdp_plugin=plugin)\nmodel, opt = accelerator.prepare(net, opt)\n"
)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("print(len(FSDP.fsdp_modules(model)))\n", "len("),
        ("units = FSDP.fsdp_modules(model)\nprint(f'{len(units)}')\n", "len(units)"),
        ("n = sum(isinstance(m, FSDP) for m in model.modules())\n", "sum("),
        ("n = len([m for _, m in model.named_modules() if isinstance(m, FSDP)])\n", "len("),
        ("for unit in FSDP.fsdp_modules(model):\n    pass\n", ""),
        ("n = sum(isinstance(m, torch.nn.Linear) for m in model.modules())\n", ""),
        ("n = len(list(model.modules()))\n", ""),
    ],
)
def test_what_counts_a_frameworks_units_is_noted(body: str, count: str) -> None:
    """p17 of the written projects printed one unit more."""
    said = [use for use in uses(body, ACCELERATED) if use.becomes == COUNTED]
    assert [(use.code, use.action, use.text.startswith(count)) for use in said] == (
        [("FM305", "kept", True)] if count else []
    )


def test_units_of_a_prepared_model_are_as_many() -> None:
    body = "model = FSDP(net)\nn = len(FSDP.fsdp_modules(model))\n"
    assert not [use for use in uses(body) if use.becomes == COUNTED]
