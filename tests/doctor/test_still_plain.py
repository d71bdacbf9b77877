"""Lines at which a model is no sharded one."""

from __future__ import annotations

import pytest

from fsdp_migrate.doctor.still_plain import copied_shards, goes_beside
from tests.doctor.sights import seeing


pytestmark = pytest.mark.any_torch

COPY = "ema = copy.deepcopy(model).requires_grad_(False)\n"
SHARD = "model = fabric.setup_module(model)\n"


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        (COPY, True),
        (SHARD + COPY, True),
        (COPY + SHARD, False),
        (f"def main():\n    {COPY}    model, opt = accelerator.prepare(model, opt)\n", False),
        (f"def main():\n    {COPY}def shard(model):\n    {SHARD}", True),
        (COPY + SHARD.replace("(model)", "(other)"), True),
        (f"for i in x:\n    {COPY}    {SHARD}", True),
        ("print 'Python 2'\n" + COPY + SHARD, True),
    ],
)
def test_a_copy_before_the_model_is_sharded_is_one(text: str, *, is_said: bool) -> None:
    assert bool(copied_shards(seeing(sources={"train.py": text}))) is is_said


@pytest.mark.parametrize(
    ("head", "is_said"),
    [
        ("with torch.no_grad():\n", True),
        ("with summon_full_params(model):\n", False),
        ("with torch.no_grad(), FSDP.summon_full_params(model):\n", False),
    ],
)
def test_what_is_summoned_is_whole(head: str, *, is_said: bool) -> None:
    loop = "    for e, p in zip(ema.parameters(), model.parameters()):\n        e.lerp_(p, 0.2)\n"
    text = f"model = FSDP(model)\n{head}{loop}"
    assert bool(goes_beside(seeing(sources={"train.py": text}))) is is_said
