"""Models that are never called: methods that call units train as under FSDP1."""

from __future__ import annotations

import re

import pytest
import torch

from tests.ranks import run_ranks
from tests.sharding import without_forward_bodies as bodies


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_units_that_methods_call_train_as_under_fsdp1(precision: str) -> None:
    for of_rank in run_ranks(bodies.compare, precision):
        assert set(of_rank) == {(kind, policy) for kind in bodies.KINDS for policy in bodies.POLICIES}
        for name, (expected, trained) in of_rank.items():
            assert trained == expected, name


def test_parameters_that_nothing_gathers_are_told() -> None:
    for of_rank in run_ranks(bodies.told):
        own = of_rank.pop("a parameter of its own")
        assert [code for code, _ in own] == ["FM129"]
        assert "nothing gathers `scale`, as under FSDP1" in own[0][1]
        assert not any(of_rank.values())


def test_a_method_that_uses_them_is_registered() -> None:
    for ours, plain in run_ranks(bodies.registered):
        for one, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(one, other)


def test_what_fsdp1_could_not_do_with_them_works() -> None:
    (names, is_accumulated), (_, is_accumulated_there) = run_ranks(bodies.used_afterwards)
    assert "enc.up.weight" in names
    assert is_accumulated
    assert is_accumulated_there


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("no unit", "ModelError", "is a Pair, which has no `forward`, and nothing in it is a unit"),
        ("a list", "ModelError", "is a ModuleList, which has no `forward`.*by a call of its own"),
        ("ranks that skip", "UnsupportedFeatureError", "is a Pair.*`skipped_units`"),
    ],
)
def test_where_nothing_would_gather_it_is_an_error(name: str, error: str, message: str) -> None:
    for found in run_ranks(bodies.refused):
        assert found[name][0] == error
        assert re.search(message, found[name][1])
