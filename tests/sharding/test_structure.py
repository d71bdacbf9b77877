"""Models that nobody can shard are a clear error, with nothing changed; those that FSDP1 trained go on."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from torch import nn

from fsdp_migrate import apply_activation_checkpointing, plan_fully_shard
from fsdp_migrate.errors import ModelError
from fsdp_migrate.sharding.structure import check_structure
from fsdp_migrate.torch_compat import fsdp2
from tests.ranks import run_ranks
from tests.sharding import odd_models_bodies as odd_models


MESSAGES = {
    "a parameter with a dot": r"Module `0` \(Layer\) has a parameter under the name 'a.b'.*a dot.*regist",
    "a parameter without a name": "a parameter under the name '', which is empty",
    "a parameter named by a number": "a parameter under the name 3.*expected a text",
    "a parameter named by None": "a parameter under the name None.*expected a text",
    "a parameter named forward": "`0.forward` is not what the attribute of this name gives",
    "a buffer named by a number": "a buffer under the name 3.*`register_buffer`",
    "a module with a dot": "a module under the name 'a.b'.*`add_module`",
    "a module without a name": "a module under the name '', which is empty",
    "a module named by a number": "a module under the name 3.*expected a text",
    "a tensor for a module": "`0.no` is kept as a module and is a Tensor; expected a torch.nn.Module",
    "a function for a module": "`0.no` is kept as a module and is a builtin_function",
    "a class for a module": "`0.no` is kept as a module and is the class ReLU",
    "a tensor for a parameter": "is a Tensor; expected a torch.nn.Parameter or None. Wrap the tensor",
    "a number for a parameter": "`0.no` is kept as a parameter and is a float",
    "a list for a buffer": "`0.no` is kept as a buffer and is a list; expected a torch.Tensor",
    "a circle": r"`1.parent` is the model itself \(Chain\), which contains it",
    "a module in itself": r"`0.own` is `0` \(Chain\), which contains it",
    "nested too deeply": "nested 2000 levels deep; Python's recursion limit",
    "a lazy layer": "`1.weight` of a LazyLinear is lazy.*Run one forward",
    "a lazy buffer": "`1.running_mean` of a LazyBatchNorm1d is lazy",
    "a sparse parameter": "`0.odd` is a sparse_coo tensor; expected a dense one",
    "a compressed parameter": "`0.odd` is a sparse_csr tensor",
    "a nested tensor": "`0.odd` is a nested tensor",
    "a parameter without memory": r"`0.weight` of shape \(4, 4\) has no memory",
    "a scripted model": "The model is scripted.*Give prepare_fully_shard the module that was scripted",
    "a scripted child": "Module `1` is scripted.*`ignored_modules`",
    "no init": r"The model \(Unborn\) has no `_parameters`.*must call `super\(\).__init__\(\)`",
    "no init of a child": r"Module `1` \(Unborn\) has no `_parameters`",
    "no table of parameters": r"Module `0` \(Linear\) has no `_parameters`",
    "a list of modules": r"Module `0` \(Linear\) has no `_modules`",
    "a class": "The model is the class Chain; expected a torch.nn.Module.*Call the class",
    "a list": "The model is a list; expected a torch.nn.Module",
    "wrapped by DDP": "is wrapped by DistributedDataParallel. Give prepare_fully_shard its `.module`",
    "wrapped by FSDP1": "is wrapped by FullyShardedDataParallel",
    "unhashable": r"Module `1` \(Unhashable\) cannot be hashed",
    "frozen": r"fully_shard failed on unit `the root` \(Frozen\): AttributeError: frozen.*build it again",
}


@pytest.fixture(scope="module")
def outcome() -> list[tuple[dict[str, tuple[str, str, bool]], dict[str, list[Any]]]]:
    return run_ranks(odd_models.both)


@pytest.mark.parametrize("name", odd_models.REFUSED)
def test_a_model_that_cannot_be_sharded_is_a_clear_error_and_as_it_was(
    name: str, outcome: list[tuple[dict[str, tuple[str, str, bool]], dict[str, list[Any]]]]
) -> None:
    for refused, _ in outcome:
        error, text, untouched = refused[name]
        assert error == "ModelError", text
        assert re.search(MESSAGES[name], text, re.DOTALL), text
        assert untouched


@pytest.mark.parametrize("name", odd_models.TAKEN)
def test_a_strange_model_that_fsdp1_trained_trains_the_same(
    name: str, outcome: list[tuple[dict[str, tuple[str, str, bool]], dict[str, list[Any]]]]
) -> None:
    for _, trained in outcome:
        of_fsdp1, prepared = trained[name]
        if "ignored" in name and not fsdp2.HAS_IGNORED_PARAMS:
            assert prepared.startswith("`ignored_modules` needs torch 2.7 or later")
        else:
            assert of_fsdp1 == prepared


def test_a_plan_and_recomputation_refuse_a_circle_too() -> None:
    with pytest.raises(ModelError, match="which contains it"):
        plan_fully_shard(odd_models.in_a_circle(), {"auto_wrap_policy": "Linear"}, world_size=2)
    with pytest.raises(ModelError, match="which contains it"):
        apply_activation_checkpointing(odd_models.in_a_circle(), "Linear")


@pytest.mark.slow
@pytest.mark.any_torch
def test_what_is_as_deep_as_python_recurses_is_planned_and_one_level_more_is_refused() -> None:
    with pytest.raises(ModelError, match="levels deep") as refusal:
        check_structure(odd_models.nested(5000))
    # This test's own frames are counted in both; `plan_fully_shard` adds one.
    limit = int(re.findall(r"leaves torch (\d+)", str(refusal.value))[0]) - 1
    assert limit > sys.getrecursionlimit() / 2

    def ask(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or isinstance(module, nn.Linear)

    plan = plan_fully_shard(odd_models.nested(limit), {"auto_wrap_policy": ask}, world_size=2)
    assert len(plan.units) == 3
    with pytest.raises(ModelError, match=f"nested {limit + 1} levels"):
        plan_fully_shard(odd_models.nested(limit + 1), {}, world_size=2)


def test_a_module_on_many_paths_is_looked_at_once() -> None:
    module: nn.Module = nn.Linear(2, 2)
    for _ in range(60):
        module = nn.Sequential(module, module)  # 2 ** 60 paths
    check_structure(module)
