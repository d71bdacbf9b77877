"""What cannot be sharded is named."""

from __future__ import annotations

from tests.ranks import run_ranks
from tests.sharding import words_bodies as words


def test_what_is_shared_or_wrapped_already_is_named() -> None:
    for found in run_ranks(words.refusals):
        assert {error for error, _ in found.values()} == {"ModelError"}
        for name in ("shared", "shared unit"):
            assert "`0.weight` (2 parameters in all) has been sharded already" in found[name][1]
            assert "Put both models into one module" in found[name][1]
        assert "The model is sharded by fully_shard already" in found["twice"][1]
        assert (
            "one call replaces them: `prepare_fully_shard(model, {'auto_wrap_policy': {Block}})`"
            in (found["wraps by itself"][1])
        )


def test_a_model_without_parameters_is_one() -> None:
    for rank, found in enumerate(run_ranks(words.without_parameters)):
        assert found["out"].shape == (2, 2)
        assert found["norm"] == 0
        assert found["sharded"] == {"model": {}}
        assert found["full"] == ({} if rank else {"model": {}})
        assert "has no parameters, and so nothing to communicate" in found["microbatches"]
