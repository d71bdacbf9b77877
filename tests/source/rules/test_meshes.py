"""Two models that are sharded over other ranks."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

WRAPS = (
    "ema = FSDP(net, process_group=shard, sharding_strategy=ShardingStrategy.FULL_SHARD)\n"
    "model = FSDP(other, {}sharding_strategy=ShardingStrategy.{})\n"
)
HYBRID = ("process_group=(shard, replicate), ", "HYBRID_SHARD")


@pytest.mark.parametrize(
    ("ranks", "uses", "is_said"),
    [
        (HYBRID, "for e, p in zip(ema.parameters(), model.parameters()):\n    e.mul_(0.9).add_(p)\n", True),
        (HYBRID, "worker.update_average(model, ema, beta)\n", True),
        (HYBRID, "train(model, ema)\n", False),
        (HYBRID, "for e, p in zip(ema.parameters(), averages):\n    p.copy_(e)\n", False),
        (("process_group=shard, ", "FULL_SHARD"), "worker.update_average(model, ema, beta)\n", False),
        (("process_group=shard, ", "SHARD_GRAD_OP"), "worker.update_average(model, ema, beta)\n", False),
        (("", "FULL_SHARD"), "worker.update_average(model, ema, beta)\n", True),
    ],
)
def test_what_goes_through_two_models_together(ranks: tuple[str, str], uses: str, *, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(WRAPS.format(*ranks) + uses)) is is_said
