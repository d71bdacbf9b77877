"""Every field of Composer's FSDP1 config ends in the FSDP1 config, in a setting or in a finding."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from fsdp_migrate.adapters.config_objects.composer import (
    COMPOSER_FIELDS,
    ComposerMapping,
    ComposerSettings,
    composer_fsdp1_config,
    is_composer_config,
)
from fsdp_migrate.adapters.config_objects.composer_fields import DEFAULTS, MAPPERS
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.mapping import map_config


VALUES: dict[str, Any] = {
    "activation_checkpointing": True,
    "activation_checkpointing_reentrant": False,
    "activation_cpu_offload": True,
    "auto_wrap": False,
    "te_checkpoint_wrapper": True,
    "te_shard_fp8_weight": True,
    "backward_prefetch": "BACKWARD_PRE",
    "backward_prefetch_limit": 2,
    "cpu_offload": True,
    "data_parallel_shard_degree": 2,
    "data_parallel_replicate_degree": 2,
    "forward_prefetch": True,
    "forward_prefetch_limit": 2,
    "ignored_modules": [object()],
    "keep_low_precision_grads": True,
    "limit_all_gathers": False,
    "load_monolith_rank0_only": True,
    "load_planner": object(),
    "mixed_precision": "PURE",
    "process_group": "node",
    "save_planner": object(),
    "sharded_ckpt_prefix_dir": "ba{batch}",
    "sharding_strategy": "SHARD_GRAD_OP",
    "state_dict_type": "sharded",
    "sync_module_states": True,
    "use_orig_params": False,
    "verbose": True,
}


def mapped(fields: dict[str, Any], precision: str | None = "amp_bf16") -> ComposerMapping:
    return composer_fsdp1_config(fields, precision=precision)


def codes(fields: dict[str, Any], precision: str | None = "amp_bf16") -> dict[str, str]:
    return {finding.code: finding.subject for finding in mapped(fields, precision).findings}


def test_there_is_a_function_and_a_value_for_every_field() -> None:
    assert len(DEFAULTS) == 27
    assert set(COMPOSER_FIELDS) == set(MAPPERS) == set(VALUES)


@pytest.mark.composer
def test_the_fields_and_their_defaults_are_those_of_composer() -> None:
    from composer.utils import FSDPConfig

    fields = {field.name: field.default for field in dataclasses.fields(FSDPConfig) if field.init}
    assert dict(DEFAULTS) == fields


@pytest.mark.composer
@pytest.mark.parametrize("name", sorted(VALUES))
def test_an_object_of_composer_is_read_like_a_mapping(name: str) -> None:
    from composer.utils import FSDPConfig

    config = FSDPConfig(**{name: VALUES[name]})
    assert is_composer_config(config)
    expected = mapped({name: VALUES[name]})
    assert composer_fsdp1_config(config, precision="amp_bf16") == expected


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_field_that_is_given_is_told_of(name: str) -> None:
    found = mapped({name: VALUES[name]})
    told = {finding.subject.partition(".")[0] for finding in found.findings}
    told |= {finding.subject.partition(".")[0] for finding in map_config(found.config)[1]}
    assert name in told


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_default_that_is_given_changes_nothing(name: str) -> None:
    found, plain = mapped({name: DEFAULTS[name]}), mapped({})
    assert map_config(found.config)[0] == map_config(plain.config)[0]
    assert found.settings == plain.settings
    assert not [finding for finding in found.findings if finding.fidelity in {"changed", "refused"}]


TOLD: list[tuple[str, dict[str, Any], str]] = [
    ("FM401", {"activation_checkpointing": True}, "fp32"),
    ("FM402", {"activation_cpu_offload": True}, "fp32"),
    ("FM403", {"auto_wrap": False}, "fp32"),
    ("FM404", {"te_checkpoint_wrapper": True}, "amp_fp8"),
    ("FM405", {"te_shard_fp8_weight": True}, "amp_bf16"),
    ("FM405", {"min_params": 1e8}, "fp32"),
    ("FM405", {"load_monolith_rank0_only": True, "state_dict_type": "sharded"}, "fp32"),
    ("FM406", {"data_parallel_replicate_degree": 2}, "fp32"),
    ("FM407", {"data_parallel_replicate_degree": 2}, "fp32"),
    ("FM408", {"process_group": "mod2"}, "fp32"),
    ("FM409", {"process_group": "mod2", "data_parallel_shard_degree": 2}, "fp32"),
    ("FM410", {"backward_prefetch_limit": 3, "backward_prefetch": "NONE"}, "fp32"),
    ("FM411", {"backward_prefetch_limit": 3}, "fp32"),
    ("FM412", {"cpu_offload": True}, "fp32"),
    ("FM413", {"state_dict_type": "sharded"}, "fp32"),
    ("FM414", {"mixed_precision": "FULL"}, "fp32"),
]


@pytest.mark.parametrize(("code", "fields", "precision"), TOLD)
def test_each_code_is_told_for_its_field(code: str, fields: dict[str, Any], precision: str) -> None:
    found = codes(fields, precision)
    assert code in found
    assert found[code] in fields or code == "FM407"
    assert code in FINDING_CODES


@pytest.mark.parametrize(
    ("kind", "precision", "dtypes"),
    [
        ("PURE", "amp_bf16", ("bfloat16", "bfloat16", "bfloat16")),
        ("DEFAULT", "amp_bf16", ("bfloat16", "float32", "bfloat16")),
        ("DEFAULT", "amp_fp16", ("float16", "float32", "float16")),
        ("PURE", "fp32", ("float32", "float32", "float32")),
        ("PURE", "amp_fp8", ("bfloat16", "bfloat16", "bfloat16")),
        ("FULL", None, (None, None, None)),
        ({"param_dtype": "amp_bf16", "buffer_dtype": "torch.float32"}, None, ("bfloat16", None, "float32")),
    ],
)
def test_mixed_precision(kind: Any, precision: str | None, dtypes: tuple[str | None, ...]) -> None:
    found = mapped({"mixed_precision": kind}, precision).config.mixed_precision
    assert found is not None
    assert (found.param_dtype, found.reduce_dtype, found.buffer_dtype) == dtypes


def test_what_composer_sets_by_default_is_not_what_torch_sets() -> None:
    config = mapped({}, "fp32").config
    assert config.backward_prefetch == "BACKWARD_POST"
    assert config.use_orig_params
    assert config.model_fields_set == {"backward_prefetch", "use_orig_params", "mixed_precision"}


@pytest.mark.parametrize(
    ("strategy", "replicate", "expected"),
    [
        ("FULL_SHARD", None, "FULL_SHARD"),
        ("FULL_SHARD", 2, "HYBRID_SHARD"),
        ("SHARD_GRAD_OP", 2, "_HYBRID_SHARD_ZERO2"),
        ("HYBRID_SHARD", None, "FULL_SHARD"),
        ("_HYBRID_SHARD_ZERO2", None, "SHARD_GRAD_OP"),
        ("HYBRID_SHARD", 2, "HYBRID_SHARD"),
        ("NO_SHARD", None, "NO_SHARD"),
    ],
)
def test_the_strategy_fits_the_mesh_as_composer_makes_it(
    strategy: str, replicate: int | None, expected: str
) -> None:
    fields = {"sharding_strategy": strategy, "data_parallel_replicate_degree": replicate}
    assert mapped(fields).config.sharding_strategy == expected


def test_a_given_process_group_leaves_the_strategy_alone() -> None:
    fields = {"sharding_strategy": "HYBRID_SHARD", "process_group": ("node", "local_rank_across_nodes")}
    found = mapped(fields)
    assert found.config.sharding_strategy == "HYBRID_SHARD"
    shard, replicate = found.settings.process_group
    assert shard.ranks_of(5, 8, 4) == (4, 5, 6, 7)
    assert replicate.ranks_of(5, 8, 4) == (1, 5)


BAD: list[tuple[dict[str, Any], str | None, str, str]] = [
    ({"sharding_stratgy": 1}, "fp32", "sharding_stratgy", "Did you mean `sharding_strategy`"),
    ({"reshard_after_forward": True}, "fp32", "reshard_after_forward", "NAME.fsdp1"),
    ({"device_mesh": object()}, "fp32", "device_mesh", "data_parallel_shard_degree"),
    ({"mixed_precision": "PURE"}, None, "precision", "amp_bf16"),
    ({"mixed_precision": "HALF"}, "fp32", "mixed_precision", "PURE"),
    ({"mixed_precision": {"parm_dtype": "bf16"}}, "fp32", "mixed_precision.parm_dtype", "param_dtype"),
    ({"mixed_precision": {"param_dtype": "int8"}}, "fp32", "mixed_precision.param_dtype", "int8"),
    ({}, "bf16", "precision", "amp_bf16"),
    ({"state_dict_type": "local"}, "fp32", "state_dict_type", "0.18"),
    ({"process_group": "set0"}, "fp32", "process_group", "setK"),
    ({"process_group": [1, 1]}, "fp32", "process_group", "each once"),
    ({"data_parallel_shard_degree": 0}, "fp32", "data_parallel_shard_degree", "-1"),
    ({"data_parallel_replicate_degree": -1}, "fp32", "data_parallel_replicate_degree", "both -1"),
    (
        {"data_parallel_replicate_degree": 2, "sharding_strategy": "NO_SHARD"},
        "fp32",
        "sharding_strategy",
        "contradict",
    ),
    (
        {"activation_cpu_offload": True, "use_orig_params": False},
        "fp32",
        "activation_cpu_offload",
        "refused by Composer",
    ),
    ({"verbose": "loud"}, "fp32", "verbose", "true or false"),
    ({"sharding_strategy": "ZERO3"}, "fp32", "sharding_strategy", "no sharding strategy"),
    ({"backward_prefetch_limit": -2}, "fp32", "backward_prefetch_limit", "whole number"),
]


@pytest.mark.parametrize(("fields", "precision", "field", "text"), BAD)
def test_what_means_nothing_is_refused(
    fields: dict[str, Any], precision: str | None, field: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        mapped(fields, precision)
    assert caught.value.field == field


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"types\.SimpleNamespace"):
        composer_fsdp1_config(SimpleNamespace(sharding_strategy="FULL_SHARD"))


@pytest.mark.parametrize(
    ("fields", "world_size", "tensor_parallel", "expected"),
    [
        ({}, 8, 1, (1, 8)),
        ({"data_parallel_replicate_degree": 2}, 8, 1, (2, 4)),
        ({"data_parallel_replicate_degree": -1, "data_parallel_shard_degree": 2}, 8, 1, (4, 2)),
        ({"data_parallel_shard_degree": 4}, 8, 2, (1, 4)),
        ({"data_parallel_shard_degree": 3}, 8, 1, None),
        ({"data_parallel_shard_degree": 2, "data_parallel_replicate_degree": 2}, 8, 1, None),
        ({"data_parallel_replicate_degree": 3}, 8, 1, None),
    ],
)
def test_the_degrees_divide_the_ranks(
    fields: dict[str, Any], world_size: int, tensor_parallel: int, expected: tuple[int, int] | None
) -> None:
    settings = mapped(fields, "fp32").settings
    if expected is None:
        with pytest.raises(ConfigError, match=f"{world_size} ranks"):
            settings.mesh_shape(world_size, tensor_parallel)
    else:
        assert settings.mesh_shape(world_size, tensor_parallel) == expected


def test_nothing_given_is_composers_default() -> None:
    found = composer_fsdp1_config(None, precision="fp32")
    assert found.settings == ComposerSettings()
    assert isinstance(found.config, FSDP1Config)
    assert found.findings == ()
