"""Functions of users that fail, or return what nobody expects: a clear error on every rank, and no hang."""

from __future__ import annotations

import re

import pytest

from tests import odd_calls_bodies as odd_calls
from tests.ranks import run_ranks


# By name the error on rank 0, and that on rank 1 where it is another.
INITS: dict[str, tuple[str, ...]] = {
    "fails": ("KeyError: 'mine'",),
    "fails on rank 1": (
        "ModelError: Rank 1 could not initialise unit `0`.*build it again.*KeyError: 'mine'",
        "KeyError: 'mine'",
    ),
    "takes away": ("ModelError: `param_init_fn` took away `bias` of a Linear",),
    "leaves none": ("ModelError: `param_init_fn` took away `bias` of a Linear",),
    "adds": ("ModelError: `param_init_fn` added `extra` of a Linear",),
    "renames": ("ModelError: `param_init_fn` took away `weight` of a Linear",),
    "of float64": ("ModelError: `param_init_fn` made .*several dtypes: `weight` float64, `bias` float32",),
    "a plain tensor": ("ModelError: `param_init_fn` took away `weight`",),
    "back to meta": ("ModelError: `param_init_fn` left weight, bias of a Linear on the meta device",),
    "returns": ("none:",),
    "replaces children": ("none:",),
    "whole at once": ("none:",),
    "collectives": ("none:",),
}
_RANK_1 = "RankError: Rank 1 cannot take part in the comparison, so no rank does: "
RUNS: dict[str, tuple[str, ...]] = {
    "model fails": (r"ConfigError: `--model` is 'failing', and `failing\(\)` raised KeyError",),
    "model fails on rank 1": (_RANK_1 + ".*raised KeyError", "ConfigError: .*raised KeyError"),
    "no model": ("ConfigError: .*makes a NoneType; expected a torch module",),
    "a number for a model": ("ConfigError: `model` is 3; expected a function",),
    "model and more": ("ConfigError: .*makes a tuple; expected a torch module",),
    "data is a number": ("ConfigError: `data` gives a int; expected batches",),
    "data is empty": (r"ConfigError: `data` has 0 batches for 2 steps of rank \d. Give at least 4",),
    "data fails": ("ConfigError: `data` raised KeyError.*'mine'",),
    "data fails on rank 1": (_RANK_1 + "`data` raised KeyError", "ConfigError: `data` raised KeyError"),
    "too few on rank 1": (
        _RANK_1 + "`data` has 1 batch for 2 steps of rank 1",
        "ConfigError: .*Give at least 2",
    ),
    "loss fails": ("ModelError: FSDP1 itself failed in step 1, on rank .*KeyError.*'mine'",),
    "no loss": ("ConfigError: `loss` returns None; expected a tensor of one number",),
    "loss is a number": ("ConfigError: `loss` returns 3.5; expected a tensor",),
    "loss is a vector": ("ConfigError: `loss` returns tensor.*expected a tensor of one number",),
    "a number for a loss": ("ConfigError: `loss` is 3; expected a function",),
    "no steps": ("ConfigError: `steps` is 0; expected a whole number from 1",),
    "steps on rank 1": (_RANK_1 + "`steps` is -1", "ConfigError: `steps` is -1"),
    "endless steps": ("ConfigError: `steps` is a whole number of more than 63 bits",),
    "a text for a seed": ("ConfigError: `seed` is a str; expected a whole number",),
    "endless seed": ("ConfigError: `seed` is a whole number of more than 63 bits",),
    "no such device": ("ConfigError: `device` is 'junk'; expected 'cpu'",),
    "a number for a device": ("ConfigError: `device` is 3; expected a str",),
    "optimizer fails": ("ConfigError: `optimizer`, a function of the sharded model, raised KeyError",),
    "no optimizer": ("ConfigError: `optimizer` returns a NoneType; expected an optimizer",),
    "a number for a checkpoint": ("ConfigError: `checkpoint` is 3; expected a path",),
    "a checkpoint with a NUL": ("CheckpointNotFoundError: There is nothing at",),
    "nothing prepared": ("ModelError: The model is a NoneType",),
    "not prepared": ("ModelError: The model was not sharded by prepare_fully_shard",),
    "config fails": ("ConfigError: `fsdp1_config`, a function of the model, raised KeyError",),
    "config is a number": ("ConfigError: `fsdp1_config` is a builtins.int",),
    "a number to tell": ("ConfigError: `on_step` is 3; expected a function",),
    "an optimizer that FSDP1's gradients do not suit": (
        "ModelError: FSDP1 itself failed in step 1.*_precision_grads`.*AdamW does not take.*fails so too",
    ),
    "rows beside data": ("ConfigError: `batch_size` and `seq_length` are for generated batches",),
    "a text for rows": ("ConfigError: `batch_size` is a str; expected a whole number",),
    "no tokens": ("ConfigError: `seq_length` is 0; expected a whole number from 1",),
    "a loss that is no number": ("none: .*The loss is nan under FSDP1 and nan prepared in step 1",),
}


@pytest.fixture(scope="module")
def outcomes() -> list[tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]]:
    return run_ranks(odd_calls.call_all)


@pytest.mark.parametrize("name", odd_calls.INITS)
def test_what_an_init_function_does_to_a_model(
    name: str, outcomes: list[tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]]
) -> None:
    for rank, (inits, _) in enumerate(outcomes):
        found = ": ".join(inits[name])
        assert re.match(INITS[name][min(rank, len(INITS[name]) - 1)], found, re.DOTALL), found


@pytest.mark.parametrize("name", odd_calls.RUNS)
def test_what_a_comparison_is_given(
    name: str, outcomes: list[tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]]
) -> None:
    for rank, (_, runs) in enumerate(outcomes):
        found = ": ".join(runs[name])
        assert re.match(RUNS[name][min(rank, len(RUNS[name]) - 1)], found, re.DOTALL), found
