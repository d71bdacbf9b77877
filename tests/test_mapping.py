"""Every FSDP1 argument ends in the FSDP2 config or in a finding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from torch import nn

from fsdp_migrate.config import FSDP1Config, FSDP2Config, MixedPrecisionPolicy, OffloadPolicy
from fsdp_migrate.errors import ConfigError, FindingsError
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import Finding, raise_on_findings
from fsdp_migrate.mapping import MAPPERS, map_config


def mapped(**arguments: Any) -> tuple[FSDP2Config, dict[str, Finding]]:
    config, findings = map_config(FSDP1Config(**arguments))
    return config, {finding.code: finding for finding in findings}


VALUES: dict[str, Any] = {
    "process_group": object(),
    "sharding_strategy": "SHARD_GRAD_OP",
    "cpu_offload": True,
    "auto_wrap_policy": "Block",
    "backward_prefetch": None,
    "mixed_precision": "bf16",
    "ignored_modules": [nn.Linear(1, 1)],
    "param_init_fn": print,
    "device_id": 0,
    "sync_module_states": True,
    "forward_prefetch": True,
    "limit_all_gathers": False,
    "use_orig_params": True,
    "ignored_states": [nn.Linear(1, 1)],
    "device_mesh": SimpleNamespace(ndim=1),
}


def test_there_is_one_function_for_every_argument() -> None:
    assert set(MAPPERS) == set(FSDP1Config.model_fields) == set(VALUES)


@pytest.mark.parametrize("argument", sorted(VALUES))
def test_an_argument_that_is_given_has_a_finding_of_its_own(argument: str) -> None:
    _, findings = map_config(FSDP1Config(**{argument: VALUES[argument]}))
    assert {finding.subject.partition(".")[0] for finding in findings} == {argument}


@pytest.mark.parametrize("strategy", ["NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP"])
def test_what_is_written_in_a_forward_is_said_of_no_shard_alone(strategy: str) -> None:
    """FSDP1 kept it there; under the others a comment in the source says it where it is seen."""
    _, findings = map_config(FSDP1Config(sharding_strategy=strategy))
    said = [finding for finding in findings if "FM452" in finding.message]
    assert [finding.code for finding in said] == (["FM002"] if strategy == "NO_SHARD" else [])


TOLD: list[tuple[str, str, dict[str, Any]]] = [
    ("FM001", "exact", {"sharding_strategy": "FULL_SHARD"}),
    ("FM002", "equivalent", {"sharding_strategy": "NO_SHARD"}),
    ("FM003", "equivalent", {"process_group": VALUES["process_group"]}),
    ("FM004", "exact", {"device_mesh": VALUES["device_mesh"]}),
    ("FM005", "equivalent", {"sharding_strategy": "HYBRID_SHARD"}),
    ("FM006", "exact", {"cpu_offload": True}),
    ("FM007", "exact", {"auto_wrap_policy": "Block"}),
    ("FM008", "exact", {"backward_prefetch": None}),
    ("FM009", "changed", {"backward_prefetch": "BACKWARD_POST"}),
    ("FM010", "exact", {"mixed_precision": "fp16"}),
    ("FM011", "equivalent", {"mixed_precision": {"buffer_dtype": "bf16"}}),
    ("FM012", "changed", {"mixed_precision": {"keep_low_precision_grads": True}}),
    ("FM013", "obsolete", {"limit_all_gathers": True}),
    ("FM014", "obsolete", {"use_orig_params": False}),
    ("FM015", "exact", {"mixed_precision": {"cast_forward_inputs": True}}),
    ("FM016", "equivalent", {"mixed_precision": "bf16", "auto_wrap_policy": "Block"}),
    ("FM017", "equivalent", {"ignored_states": VALUES["ignored_states"]}),
    ("FM018", "exact", {"param_init_fn": print}),
    ("FM019", "equivalent", {"device_id": 0}),
    ("FM020", "equivalent", {"sync_module_states": True}),
    ("FM021", "exact", {"forward_prefetch": True}),
    ("FM022", "equivalent", {"mixed_precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"}}),
    ("FM022", "equivalent", {"mixed_precision": {"reduce_dtype": "bf16"}}),
]


@pytest.mark.parametrize(("code", "fidelity", "arguments"), TOLD, ids=[row[0] for row in TOLD])
def test_each_code_is_told_for_its_argument(code: str, fidelity: str, arguments: dict[str, Any]) -> None:
    _, findings = mapped(**arguments)
    assert findings[code].fidelity == fidelity
    assert findings[code].subject.partition(".")[0] in arguments


def test_every_code_of_an_argument_is_tested() -> None:
    assert {row[0] for row in TOLD} == {code for code in FINDING_CODES if code.startswith("FM0")}


def test_defaults_are_not_told_where_nothing_differs() -> None:
    config, findings = map_config(FSDP1Config())
    assert config == FSDP2Config()
    assert findings == ()


@pytest.mark.parametrize(
    ("strategy", "mesh", "reshard", "root"),
    [
        ("FULL_SHARD", "shard", True, None),
        ("SHARD_GRAD_OP", "shard", False, False),
        ("NO_SHARD", "replicate", False, False),
        ("HYBRID_SHARD", "hybrid", True, None),
        ("_HYBRID_SHARD_ZERO2", "hybrid", False, False),
    ],
)
def test_a_strategy_is_a_mesh_and_what_is_freed(
    strategy: str, mesh: str, reshard: bool, root: bool | None
) -> None:
    config, findings = mapped(sharding_strategy=strategy)
    assert (config.mesh, config.reshard_after_forward, config.root_reshard_after_forward) == (
        mesh,
        reshard,
        root,
    )
    assert ("FM005" in findings) == (mesh == "hybrid")
    assert ("FM002" in findings) == (strategy == "NO_SHARD")


@pytest.mark.parametrize(
    ("flags", "unit_casts", "root_casts"),
    [
        ({}, False, True),
        ({"cast_root_forward_inputs": False}, False, False),
        ({"cast_forward_inputs": True}, True, True),
        # torch's docs say that the root's flag goes first; its code casts where either is set.
        ({"cast_forward_inputs": True, "cast_root_forward_inputs": False}, True, True),
    ],
)
def test_inputs_are_cast_where_fsdp1_cast_them(
    flags: dict[str, bool], unit_casts: bool, root_casts: bool
) -> None:
    config, _ = mapped(mixed_precision={"param_dtype": "bf16", **flags})
    assert config.mp_policy.cast_forward_inputs is unit_casts
    assert config.root_mp_policy.cast_forward_inputs is root_casts


def test_gradients_are_reduced_in_the_parameters_dtype_unless_it_is_told() -> None:
    config, _ = mapped(mixed_precision={"param_dtype": "bf16"})
    assert config.mp_policy == MixedPrecisionPolicy(
        param_dtype="bfloat16", reduce_dtype="bfloat16", cast_forward_inputs=False
    )
    config, _ = mapped(mixed_precision={"param_dtype": "bf16", "reduce_dtype": "fp32"})
    assert config.mp_policy.reduce_dtype == "float32"


def test_batch_norm_stays_in_full_precision_only_where_fsdp1_wraps_by_itself() -> None:
    config, findings = mapped(mixed_precision="bf16", auto_wrap_policy="Block")
    assert config.full_precision_classes == ("_BatchNorm",)
    assert "units of their own" in findings["FM016"].message
    config, findings = mapped(mixed_precision="bf16")
    assert config.full_precision_classes == ()
    assert "no effect" in findings["FM016"].message
    _, findings = mapped(mixed_precision={"param_dtype": "bf16", "_module_classes_to_ignore": []})
    assert "FM016" not in findings


def test_offload_prefetch_buffers_and_sync_reach_the_config() -> None:
    config, _ = mapped(
        cpu_offload=True, backward_prefetch=None, mixed_precision="bf16", sync_module_states=True
    )
    assert config.offload_policy == OffloadPolicy(pin_memory=None)
    assert config.backward_prefetch is False
    assert config.buffer_dtype == "bfloat16"
    assert config.broadcast_from_rank0 is True


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"backward_prefetch": "BACKWARD_POST"}, "FM009"),
        ({"mixed_precision": {"keep_low_precision_grads": True}}, "FM012"),
    ],
)
def test_what_fsdp2_cannot_express_is_changed_and_stops_a_strict_run(
    arguments: dict[str, Any], code: str
) -> None:
    _, findings = mapped(**arguments)
    assert findings[code].fidelity == "changed"
    raise_on_findings(findings.values())
    with pytest.raises(FindingsError, match=code) as caught:
        raise_on_findings(findings.values(), strict=True)
    assert [finding.code for finding in caught.value.findings] == [code]
    assert caught.value.strict


@pytest.mark.parametrize("argument", ["limit_all_gathers", "use_orig_params"])
@pytest.mark.parametrize("value", [True, False])
def test_what_fsdp2_needs_no_longer_is_obsolete(argument: str, value: bool) -> None:
    config, findings = mapped(**{argument: value})
    assert config == FSDP2Config()
    assert [finding.fidelity for finding in findings.values()] == ["obsolete"]


GROUP = object()
CONTRADICTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"process_group": GROUP, "device_mesh": SimpleNamespace(ndim=1)}, "process_group", "both given"),
    ({"process_group": GROUP, "sharding_strategy": "HYBRID_SHARD"}, "process_group", "a pair of groups"),
    ({"process_group": (GROUP, GROUP)}, "process_group", "expects one group"),
    ({"process_group": (GROUP,) * 3, "sharding_strategy": 4}, "process_group", "a pair of groups"),
    ({"device_mesh": SimpleNamespace(ndim=1), "sharding_strategy": 4}, "device_mesh", "expects 2"),
    ({"device_mesh": SimpleNamespace(ndim=2)}, "device_mesh", "has 2 dimensions; FULL_SHARD expects 1"),
]


@pytest.mark.parametrize(("arguments", "field", "message"), CONTRADICTIONS)
def test_contradictory_arguments_are_errors(arguments: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        mapped(**arguments)
    assert caught.value.field == field


@given(st.sets(st.sampled_from(sorted(set(VALUES) - {"process_group", "device_mesh", "ignored_states"}))))
def test_any_set_of_arguments_is_told_in_full(names: set[str]) -> None:
    _, findings = map_config(FSDP1Config(**{name: VALUES[name] for name in names}))
    assert {finding.subject.partition(".")[0] for finding in findings} == names


def test_reshard_after_forward_may_be_a_number_and_a_boolean_stays_one() -> None:
    assert FSDP2Config(reshard_after_forward=2).reshard_after_forward == 2
    assert FSDP2Config(reshard_after_forward=True).reshard_after_forward is True
