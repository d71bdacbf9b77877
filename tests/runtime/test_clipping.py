"""Clipping, held against FSDP1's own and against one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fsdp_migrate.errors import ConfigError
from fsdp_migrate.runtime import clip_grad_norm_
from tests.rank_bodies import runtime
from tests.ranks import run_ranks
from tests.runtime.cases import Cases, is_refused


def check_clipping(found: dict[str, Any], norm_type: float, max_norm: float) -> None:
    assert found["type"]
    assert found["norm"] == pytest.approx(found["FSDP1"], rel=1e-6)
    assert found["norm"] == pytest.approx(found["plain"], rel=1e-6)
    factor = min(1.0, max_norm / found["norm"])
    for name, grad in found["gradients"].items():
        torch.testing.assert_close(grad, found["FSDP1 gradients"][name], rtol=2e-6, atol=1e-8)
        torch.testing.assert_close(grad, found["plain gradients"][name] * factor, rtol=1e-5, atol=1e-7)


CLIPPED_KINDS = ["blocks", "NO_SHARD", "several meshes", "several meshes and plain"]
CLIPPED_KINDS += ["ignored parameters"]
NORMS = [(2.0, 0.05), (1.0, 0.5), (math.inf, 0.01)]
CLIPPED = Cases(runtime.clip, [(kind, *norm) for kind in CLIPPED_KINDS for norm in NORMS])


@pytest.mark.parametrize("kind", CLIPPED_KINDS)
@pytest.mark.parametrize(("norm_type", "max_norm"), NORMS)
def test_clipping_is_that_of_fsdp1_and_of_one_process(kind: str, norm_type: float, max_norm: float) -> None:
    for found in CLIPPED.of(kind, norm_type, max_norm):
        if kind in runtime.IGNORING and is_refused(found):
            continue
        assert found["norm"] > max_norm
        check_clipping(found, norm_type, max_norm)


def test_gradients_below_the_limit_are_left_alone() -> None:
    for found in run_ranks(runtime.clip, "blocks", 2.0, 1e6):
        check_clipping(found, 2.0, 1e6)


@pytest.mark.slow
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_replicas_count_once_at_two_by_two_ranks(norm_type: float) -> None:
    for found in run_ranks(runtime.clip, "HYBRID_SHARD", norm_type, 0.01, world_size=4, timeout=400):
        check_clipping(found, norm_type, 0.01)


def test_clipping_what_is_missing_infinite_or_given_twice() -> None:
    ranks = run_ranks(runtime.clip_oddly)
    for found in ranks:
        assert found["nothing"] == 0.0
        assert found["generator"]
        assert found["twice"]
        assert found["one"] == pytest.approx(0.0, abs=1e-6)
        assert found["one by one"]
        assert found["halved"] < 1e-6
        assert found["missing on one rank"] == ranks[0]["missing on one rank"] > 0
        assert found["infinite"][0] == "ModelStateError"
        assert "norm of order 2 of the gradients is inf" in found["infinite"][1]
        assert found["untouched"]
        assert found["norm_type"] == (
            "ConfigError",
            "`norm_type` is 0.0; expected a number above 0, or `inf`.",
        )
        assert found["max_norm"][0] == "ConfigError"


def test_norms_of_low_precision_gradients_are_summed_in_float32() -> None:
    assert run_ranks(runtime.clip_bfloat16) == [(386.0, "torch.bfloat16")] * 2


def test_numbers_may_be_texts_as_under_fsdp1() -> None:
    """FSDP1 took what ``float`` takes: ``norm_type="inf"`` of a config, ``max_norm="0.5"`` of a command."""
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.grad = torch.tensor([[3.0, 4.0]])
    texts: dict[str, Any] = {"max_norm": "2.0", "norm_type": "inf"}
    assert clip_grad_norm_(layer, **texts) == 4.0
    assert torch.allclose(layer.weight.grad, torch.tensor([[1.5, 2.0]]))
    with pytest.raises(ConfigError, match="is a str; expected a number"):
        clip_grad_norm_(layer, **{**texts, "norm_type": "two"})
