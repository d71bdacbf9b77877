"""What is said of NO_SHARD's models, of which each rank had whole parameters, and the whole state."""

from __future__ import annotations

import pytest

from tests.source.samples import codes, uses


pytestmark = pytest.mark.any_torch

SAVE = "torch.save({'m': model.state_dict(), 'opt': opt.state_dict()}, path)\n"
LOAD = "opt.load_state_dict(torch.load(path)['opt'])\n"
WHOLE = "sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True"


def _said(arguments: str, body: str) -> list[str]:
    made = f"model = FSDP(net, {arguments})\nopt = torch.optim.AdamW(model.parameters())\n"
    return [each.becomes for each in uses(made + body) if each.code == "FM425"]


@pytest.mark.parametrize(
    ("arguments", "is_whole"),
    [
        (WHOLE, True),
        ("use_orig_params=True", False),
        ("sharding_strategy=ShardingStrategy.NO_SHARD", False),  # whole, and flat
        ("sharding_strategy=kind, use_orig_params=True", False),
    ],
)
def test_an_optimizers_state_was_whole(arguments: str, *, is_whole: bool) -> None:
    """FM425 said that it was one rank's part, of flat parameters, and does not fit: it does."""
    said = _said(arguments, SAVE + LOAD)
    assert len(said) == 2
    for each in said:
        assert ("under NO_SHARD" in each) is is_whole
        assert ("one rank's part" in each) is not is_whole
    assert ("take fsdp_migrate.load_checkpoint(PATH, " in said[1]) is is_whole


@pytest.mark.parametrize(
    ("arguments", "is_whole"), [(WHOLE, True), ("use_orig_params=True", False), ("**kwargs", False)]
)
@pytest.mark.parametrize("count", ["n * dist.get_world_size()", "n"])
def test_a_count_was_that_of_the_whole(arguments: str, count: str, *, is_whole: bool) -> None:
    """FM423 stopped the run, and said that numel() counts the whole now, as it did before."""
    body = f"model = FSDP(net, {arguments})\nn = sum(p.numel() for p in model.parameters())\nx = {count}\n"
    found = {each for each, _ in codes(body)} & {"FM334", "FM423"}
    assert found == (set() if is_whole else {"FM334"} if count == "n" else {"FM423"})
