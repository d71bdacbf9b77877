"""What is private to FSDP1 and has one value under FSDP2: FM317 says which, and torch gives it."""

from __future__ import annotations

from tests.ranks import run_ranks
from tests.sharding import private_values_bodies


def test_what_is_said_of_fsdp1s_private_names_is_so() -> None:
    for found in run_ranks(private_values_bodies.asked):
        assert found == {
            "_is_fsdp_flattened": {False},
            "FlatParameter": {False},
            "_is_flat_param": {False},
            "DTensor": {True},
            "_FSDPState": {False},
            "_get_module_fsdp_state": {None},
            "_get_fsdp_states": [],
            "_get_fsdp_handles": [],
            "_get_fsdp_states_with_modules": ([], []),
            "_get_fsdp_root_states": [],
            "clean_tensor_name": {True},
            "_lazy_init": "AttributeError",
        }
