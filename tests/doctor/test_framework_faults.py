"""Known faults that the config of a framework shows: each is seen where it is, and not where it is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from torch import nn

from fsdp_migrate.doctor.framework_faults import FRAMEWORK_FAULTS
from tests.doctor.sights import LOW, assert_seen, of_config


if TYPE_CHECKING:
    from fsdp_migrate.doctor import KnownFault, Sight


pytestmark = pytest.mark.any_torch


HF_2 = {"version": 2, "state_dict_type": "FULL_STATE_DICT"}
BY_SIZE = {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": "50"}

CASES: dict[str, tuple[Sight, Sight]] = {
    "trainer-ignores-version": (
        of_config("hf", {"transformers": "4.57.0"}, settings=HF_2),
        of_config("hf", settings=HF_2),
    ),
    "trainer-keeps-parameters": (
        of_config("hf", {"transformers": "5.3.0"}, settings=HF_2),
        of_config("hf", {"transformers": "5.3.0"}, settings={**HF_2, "reshard_after_forward": True}),
    ),
    "trainer-ignores-settings": (
        of_config("hf", {"transformers": "5.9.0"}, settings=HF_2),
        of_config("hf", {"transformers": "5.10.0"}, settings=HF_2),
    ),
    "trainer-defaults-to-fsdp2": (of_config("hf"), of_config("hf", settings=HF_2)),
    "trainer-wraps-by-size-no-more": (
        of_config("hf", settings={"min_num_params": 100}),
        of_config("hf", settings={"min_num_params": 100, "auto_wrap_policy": "SIZE_BASED_WRAP"}),
    ),
    "accelerate-wraps-containers": (
        of_config("accelerate", settings=BY_SIZE),
        of_config("composer", settings=BY_SIZE),
    ),
    "accelerate-recomputes-children": (
        of_config("accelerate", settings={"fsdp_activation_checkpointing": True}),
        of_config("composer", settings={"fsdp_activation_checkpointing": True}),
    ),
    "accelerate-shards-no-shard": (
        of_config("accelerate", sharding_strategy="NO_SHARD"),
        of_config("accelerate"),
    ),
    "accelerate-refuses-forward-prefetch": (
        of_config("accelerate", forward_prefetch=True),
        of_config("accelerate"),
    ),
    "composer-has-no-hybrid": (
        of_config("composer", sharding_strategy="HYBRID_SHARD"),
        of_config("composer"),
    ),
    "composer-ignores-strategy": (
        of_config("composer", sharding_strategy="SHARD_GRAD_OP"),
        of_config("composer"),
    ),
    "buffers-stay": (of_config(**LOW), of_config(mixed_precision={"param_dtype": "bf16"})),
}


@pytest.mark.parametrize("fault", FRAMEWORK_FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_seen_where_it_is_and_nowhere_else(fault: KnownFault) -> None:
    assert_seen(fault, *CASES[fault.name])


def test_hf_trainer_hands_its_checkpointing_on_to_accelerate() -> None:
    (fault,) = (each for each in FRAMEWORK_FAULTS if each.name == "accelerate-recomputes-children")
    for settings in ({"activation_checkpointing": True}, {"fsdp_activation_checkpointing": "true"}):
        assert "`activation_checkpointing` is on" in fault.sees(of_config("hf", settings=settings))
    assert not fault.sees(of_config("hf", settings={"activation_checkpointing": False}))


def test_every_case_is_one_of_a_fault() -> None:
    assert CASES.keys() == {fault.name for fault in FRAMEWORK_FAULTS}


def test_a_list_that_is_wrapped_by_size_is_named() -> None:
    (fault,) = (each for each in FRAMEWORK_FAULTS if each.name == "accelerate-wraps-containers")
    blocks = nn.Sequential(nn.ModuleList([nn.Linear(8, 8)]), nn.Linear(8, 8))
    seen = replace(of_config("accelerate", settings=BY_SIZE), model=blocks)
    assert fault.sees(seen) == "SIZE_BASED_WRAP, and `0`"
    assert not fault.sees(replace(seen, settings={**BY_SIZE, "fsdp_min_num_params": 100}))
    assert not fault.sees(replace(seen, model=blocks[1]))
    trainer = of_config("hf", settings={"min_num_params": 50})
    assert fault.sees(trainer).startswith("`min_num_params: 50`, if")
    assert not fault.sees(of_config("hf", settings={"min_num_params": 0}))
