"""States whose names have the part of ``torch.compile``, as FSDP1's of compiled models had."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

import pytest
import torch

from fsdp_migrate.runtime import load_model_state_dict, optim_state_dict_to_load
from fsdp_migrate.runtime.clean_names import with_clean_names
from fsdp_migrate.runtime.optimizer_loading import OptimizerOutline


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize("part", ["_orig_mod.", "_checkpoint_wrapped_module."])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_model_takes_the_state_of_a_compiled_one(part: str, *, is_compiled: bool) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model = cast("torch.nn.Module", torch.compile(net, backend="eager")) if is_compiled else net
    state = OrderedDict({f"{part}0.weight": torch.ones(2, 2), f"{part}0.bias": torch.zeros(2)})
    assert not any(load_model_state_dict(model, state))
    assert next(net.parameters()).sum().item() == 4.0
    assert list(state) == [f"{part}0.weight", f"{part}0.bias"]
    with pytest.raises(RuntimeError, match=r"Unexpected key.*_fsdp"):
        load_model_state_dict(model, {**state, "_fsdp.0.weight": torch.ones(2, 2)})


def test_an_optimizer_takes_the_state_of_a_compiled_one() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = ["_orig_mod.weight", "_orig_mod.bias"]
    momenta = {name: {"momentum_buffer": torch.ones(1)} for name in names}
    state = {"state": momenta, "param_groups": [{"lr": 0.5, "params": names}]}
    loaded = optim_state_dict_to_load(model, optimizer, state)
    assert sorted(loaded["state"]) == [0, 1]
    assert loaded["param_groups"][0]["lr"] == 0.5
    assert OptimizerOutline.of(state).params == (("weight", "bias"),)


def test_names_that_would_become_one_stay() -> None:
    state = {"_orig_mod.weight": 1, "weight": 2}
    assert with_clean_names(state) == state
