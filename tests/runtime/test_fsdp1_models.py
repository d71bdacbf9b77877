"""Models that stay FSDP1's, given to the functions that take the place of FSDP1's methods."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.runtime import (
    clip_grad_norm_,
    end_process_group,
    full_optimizer_state_dict,
    full_state_dict,
    load_model_state_dict,
    no_sync,
    optim_state_dict_to_load,
    summon_full_params,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


@pytest.fixture
def model() -> Iterator[FSDP]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield FSDP(torch.nn.Linear(2, 2), use_orig_params=True, device_id=torch.device("cpu"))
    end_process_group()


def test_a_model_that_stays_fsdp1_trains(model: FSDP) -> None:
    with no_sync(model):
        model(torch.ones(1, 2)).sum().backward()
        assert not model._sync_gradients
    assert model._sync_gradients
    model(torch.ones(1, 2)).sum().backward()
    assert clip_grad_norm_(model, 0.1).item() == pytest.approx(24**0.5)
    with summon_full_params(model, writeback=False):
        assert model.module.weight.shape == (2, 2)


@pytest.mark.usefixtures("model")
def test_a_module_around_models_that_stay_fsdp1s_shows_their_whole_parameters() -> None:
    """As Fabric's and Lightning's modules are, whose strategy is left to a person."""
    flat = FSDP(torch.nn.Linear(2, 3), use_orig_params=False, device_id=torch.device("cpu"))
    outer = torch.nn.Sequential(flat)
    assert [len(each.shape) for each in outer.parameters()] == [1]
    with summon_full_params(outer, writeback=False):
        assert [tuple(each.shape) for each in outer.parameters()] == [(3, 2), (3,)]


def test_a_model_that_stays_fsdp1_is_saved_and_loaded(model: FSDP) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved = full_state_dict(model, rank0_only=False)["model"]
    states = full_optimizer_state_dict(model, optimizer, rank0_only=False)
    other = {name: value + 1 for name, value in saved.items()}
    assert not any(load_model_state_dict(model, other))
    assert torch.equal(full_state_dict(model, rank0_only=False)["model"]["weight"], other["weight"])
    for from_rank0 in (False, True):
        optimizer.load_state_dict(optim_state_dict_to_load(model, optimizer, states, from_rank0=from_rank0))
    assert all(state["step"].item() == 1.0 for state in optimizer.state.values())


class Choosing(torch.nn.Linear):
    """Has a ``load_state_dict`` of its own."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        msg = "its own method"
        raise LookupError(msg)


@pytest.mark.usefixtures("model")
def test_a_class_with_a_method_of_its_own_is_loaded_as_under_fsdp1() -> None:
    state = {"weight": torch.full((2, 2), 3.0), "bias": torch.zeros(2)}
    cpu = torch.device("cpu")
    wrapped = FSDP(Choosing(2, 2), use_orig_params=True, device_id=cpu)
    sharded = prepare_fully_shard(Choosing(2, 2), {"device_id": cpu})
    for each in (wrapped, sharded):
        assert not any(load_model_state_dict(each, state))
        assert torch.equal(full_state_dict(each, rank0_only=False)["model"]["weight"], state["weight"])
    assert load_model_state_dict(sharded, {}, strict=False).missing_keys == ["weight", "bias"]
    assert "load_state_dict" not in vars(sharded)
    with pytest.raises(LookupError, match="its own method"):
        load_model_state_dict(Choosing(2, 2), state)
