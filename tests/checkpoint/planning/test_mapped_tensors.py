"""Tensors under a map."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    ParameterMap,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
)
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import Operation
from fsdp_migrate.errors import PlanError
from tests.checkpoint.planning.maps import MAP, MAPPED, state_of
from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_state_of_some_only(tmp_path: Path) -> None:
    state = state_of()[1]
    del state["optim"]["state"]["moe.experts.3.w1.weight"]
    path = save_with_torch(state, tmp_path / "dcp")
    with pytest.raises(
        PlanError, match=r"of 21 of the 22 .* none of `moe\.experts\.3\.w1\.weight`"
    ) as caught:
        convert_checkpoint(path, tmp_path / "out", output_options=MAPPED)
    assert [finding.code for finding in caught.value.findings] == ["FM296"]


def _without(state: dict[str, Any], name: str) -> None:
    del state["model"][name]


def _resize(state: dict[str, Any], name: str) -> None:
    state["model"][name] = torch.zeros(5, 4)


def _cast(state: dict[str, Any], name: str) -> None:
    state["model"][name] = state["model"][name].bfloat16()


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (
            _without,
            "moe.experts.4.w2.weight",
            "there are 10 like `moe.experts.0.w2.weight`, and number 4 of 11",
        ),
        (
            _without,
            "moe.experts.10.w3.weight",
            "there are 10 like `moe.experts.0.w3.weight`, and number 10 of 11",
        ),
        (_resize, "moe.experts.4.w1.weight", "the shapes differ: [3, 4] and [5, 4]"),
        (_cast, "moe.experts.4.w1.weight", "of the types bfloat16 and float32"),
    ],
)
def test_parameters_that_do_not_fit(
    change: Callable[[dict[str, Any], str], None], name: str, words: str, tmp_path: Path
) -> None:
    state = copy.deepcopy(state_of()[1])
    del state["optim"]
    change(state, name)
    path = save_with_torch(state, tmp_path / "dcp")
    with pytest.raises(PlanError) as caught:
        convert_checkpoint(path, tmp_path / "out", output_options=MAPPED)
    assert [finding.code for finding in caught.value.findings] == ["FM295"]
    assert words in str(caught.value)


def test_an_operation_that_moves_more_than_boxes(source: Path) -> None:
    rules = tuple(replace(r, operations=(*r.operations, Operation("PermuteForRope"))) for r in MAP.rules[2:])
    with pytest.raises(PlanError, match=r"FM297 .*needs `PermuteForRope`"):
        plan_conversion(
            inspect_checkpoint(source), output_options=OutputOptions(map=ParameterMap("it", rules))
        )
