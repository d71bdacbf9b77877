"""FSDP1's arguments as people write them: torch's objects, words, numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as torch_fsdp
from hypothesis import given, strategies as st
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.config import AlwaysWrap, ClassWrap, CPUOffload, FSDP1Config, MixedPrecision, SizeWrap
from fsdp_migrate.errors import ConfigError


STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]


def test_the_arguments_and_their_defaults_are_those_of_torch() -> None:
    parameters = inspect.signature(FullyShardedDataParallel.__init__).parameters
    theirs = {name: p.default for name, p in parameters.items() if name not in {"self", "module"}}
    assert set(FSDP1Config.model_fields) == set(theirs)
    assert FSDP1Config(**theirs) == FSDP1Config()


def test_mixed_precision_has_the_fields_and_defaults_of_torch() -> None:
    theirs = {field.name.lstrip("_") for field in dataclasses.fields(torch_fsdp.MixedPrecision)}
    assert set(MixedPrecision.model_fields) == theirs
    read = FSDP1Config(mixed_precision=torch_fsdp.MixedPrecision()).mixed_precision
    assert read is not None
    ours = MixedPrecision()
    assert read.model_dump(exclude={"module_classes_to_ignore"}) == ours.model_dump(
        exclude={"module_classes_to_ignore"}
    )
    assert [cls.__name__ for cls in read.module_classes_to_ignore] == list(ours.module_classes_to_ignore)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_spelling_of_a_strategy(strategy: str) -> None:
    member = torch_fsdp.ShardingStrategy[strategy]
    spellings: list[Any] = [
        member,
        strategy,
        strategy.lower(),
        f"ShardingStrategy.{strategy}",
        f" {strategy} ",
    ]
    spellings += [member.value, str(member.value)]
    for spelling in spellings:
        assert FSDP1Config(sharding_strategy=spelling).sharding_strategy == strategy


@pytest.mark.parametrize(
    ("given", "stands_for"),
    [
        ({"mixed_precision": False}, {"mixed_precision": None}),
        ({"backward_prefetch": False}, {"backward_prefetch": None}),
        *(
            ({name: None}, {name: False})
            for name in ("sync_module_states", "limit_all_gathers", "use_orig_params")
        ),
    ],
)
def test_what_fsdp1_took_for_no(given: dict[str, Any], stands_for: dict[str, Any]) -> None:
    assert FSDP1Config(**given) == FSDP1Config(**stands_for)


def test_accelerates_spelling_of_the_second_hybrid_strategy() -> None:
    assert FSDP1Config(sharding_strategy="HYBRID_SHARD_ZERO2").sharding_strategy == "_HYBRID_SHARD_ZERO2"


@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        (torch.bfloat16, "bfloat16"),
        ("bf16", "bfloat16"),
        ("torch.bfloat16", "bfloat16"),
        ("BFloat16", "bfloat16"),
        ("fp16", "float16"),
        (torch.half, "float16"),
        ("float", "float32"),
        ("none", None),
        (None, None),
    ],
)
def test_every_spelling_of_a_dtype(spelling: Any, dtype: str | None) -> None:
    assert MixedPrecision(param_dtype=spelling).param_dtype == dtype


def test_one_word_of_mixed_precision_is_all_three_dtypes() -> None:
    precision = FSDP1Config(mixed_precision="bf16").mixed_precision
    assert precision is not None
    assert (precision.param_dtype, precision.reduce_dtype, precision.buffer_dtype) == ("bfloat16",) * 3
    assert FSDP1Config(mixed_precision="no").mixed_precision is None


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [(True, True), ("true", True), ("Yes", True), (1, True), ("off", False), (0, False), ("False", False)],
)
def test_every_spelling_of_a_boolean(spelling: Any, expected: bool) -> None:
    assert FSDP1Config(forward_prefetch=spelling).forward_prefetch is expected
    assert FSDP1Config(cpu_offload=spelling).cpu_offload == CPUOffload(offload_params=expected)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (torch_fsdp.BackwardPrefetch.BACKWARD_POST, "BACKWARD_POST"),
        ("backward_pre", "BACKWARD_PRE"),
        ("NO_PREFETCH", None),
        (None, None),
    ],
)
def test_every_spelling_of_backward_prefetch(spelling: Any, expected: str | None) -> None:
    assert FSDP1Config(backward_prefetch=spelling).backward_prefetch == expected


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("Block", ClassWrap(classes=("Block",))),
        ("Block, Head", ClassWrap(classes=("Block", "Head"))),
        (["Block", "Head"], ClassWrap(classes=("Block", "Head"))),
        ({nn.Linear}, ClassWrap(classes=(nn.Linear,))),
        (nn.Linear, ClassWrap(classes=(nn.Linear,))),
        ({"transformer_layer_cls": {nn.Linear}}, ClassWrap(classes=(nn.Linear,))),
        ({"min_num_params": "1e8"}, SizeWrap(min_num_params=100_000_000)),
        ({"min_num_params": 1e6}, SizeWrap(min_num_params=1_000_000)),
        ("SIZE_BASED_WRAP", SizeWrap()),
        ("always_wrap_policy", AlwaysWrap()),
        ("NO_WRAP", None),
        (None, None),
    ],
)
def test_every_spelling_of_a_wrap_policy(spelling: Any, expected: object) -> None:
    assert FSDP1Config(auto_wrap_policy=spelling).auto_wrap_policy == expected


def test_devices_and_iterators_are_read_once() -> None:
    module = nn.Linear(1, 1)
    config = FSDP1Config(device_id=torch.device("cuda:1"), ignored_modules=iter([module]))
    assert config.device_id == "cuda:1"
    assert config.ignored_modules == (module,)
    assert FSDP1Config(device_id="3").device_id == 3


BAD = [
    ({"shardng_strategy": 1}, "shardng_strategy", "Did you mean `sharding_strategy`"),
    (
        {"activation_checkpointing_policy": "Block"},
        "activation_checkpointing_policy",
        "takes the layers as its keyword `activation_checkpointing=`",
    ),
    ({"activation_checkpointing": True}, "activation_checkpointing", "keyword `activation_checkpointing=`"),
    ({"mixed_precision": {"param_dtyp": "bf16"}}, "mixed_precision.param_dtyp", "Did you mean `param_dtype`"),
    ({"mixed_precision": {"param_dtype": "bf17"}}, "mixed_precision.param_dtype", "Did you mean `bf16`"),
    ({"mixed_precision": 7}, "mixed_precision", "expected torch's `MixedPrecision` or a mapping"),
    ({"cpu_offload": 3.5}, "cpu_offload", "expected torch's `CPUOffload` or a mapping"),
    ({"cpu_offload": {"ofload_params": True}}, "cpu_offload.ofload_params", "Did you mean `offload_params`"),
    ({"sharding_strategy": "FULL"}, "sharding_strategy", "Known: `FULL_SHARD`"),
    ({"sharding_strategy": 7}, "sharding_strategy", "is 7, which is no sharding strategy"),
    ({"sharding_strategy": True}, "sharding_strategy", "is True"),
    ({"sharding_strategy": [1]}, "sharding_strategy", "is a list"),
    ({"backward_prefetch": "EARLY"}, "backward_prefetch", "no backward prefetch"),
    ({"use_orig_params": "maybe"}, "use_orig_params", "expected true or false"),
    ({"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, "auto_wrap_policy", "needs the classes to wrap"),
    ({"auto_wrap_policy": {"min_num_params": "many"}}, "auto_wrap_policy.min_num_params", "whole number"),
    ({"auto_wrap_policy": {"min_num_params": 1.5}}, "auto_wrap_policy.min_num_params", "whole number"),
    ({"auto_wrap_policy": {"min_params": 1}}, "auto_wrap_policy", "expected one of"),
    ({"auto_wrap_policy": [3]}, "auto_wrap_policy", "expected names"),
    ({"auto_wrap_policy": 3}, "auto_wrap_policy", "expected a policy of torch's"),
    ({"auto_wrap_policy": "ModuleWrapPolicy({Exp})"}, "auto_wrap_policy", "names of the classes"),
    ({"device_mesh": "node"}, "device_mesh", "make it in code and pass it"),
    ({"device_mesh": (2, 4)}, "device_mesh", "Of (replicas, shards) make it: `init_device_mesh("),
    ({"process_group": {"size": 2}}, "process_group", "make it in code and pass it"),
    ({"param_init_fn": 3}, "param_init_fn", "callable"),
    ({"device_id": True}, "device_id", "expected a device"),
    ({"ignored_modules": ["a"], "ignored_states": ["b"]}, "ignored_states", "both given"),
]


@pytest.mark.parametrize(("arguments", "field", "message"), BAD, ids=[str(row[0]) for row in BAD])
def test_what_means_nothing_is_an_error_that_names_it(
    arguments: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        FSDP1Config(**arguments)
    assert message in str(caught.value)
    assert caught.value.field == field


@given(st.text(max_size=20), st.sampled_from(["sharding_strategy", "mixed_precision", "use_orig_params"]))
def test_any_word_is_read_or_is_a_config_error(word: str, field: str) -> None:
    with contextlib.suppress(ConfigError):
        FSDP1Config(**{field: word})
        return
    with pytest.raises(ConfigError) as caught:
        FSDP1Config(**{field: word})
    assert (caught.value.field or "").startswith(field)
