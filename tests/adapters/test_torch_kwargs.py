"""A mapping of ``FullyShardedDataParallel``'s own arguments, wherever it stands."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.torch_kwargs import TORCH_KEYS
from fsdp_migrate.config import FSDP1Config
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch


def convert(line: str) -> TextConversion:
    text = f"trainer:\n  # arguments\n  fsdp:\n    {line}\n    x_unknown: 1\nother: 2\n"
    done = convert_text(text, key="trainer.fsdp")
    assert [block.framework for block in done.blocks] == ["torch"]
    assert convert_text(done.text, key="trainer.fsdp").text == done.text
    assert done.text.startswith("trainer:\n  # arguments\n  fsdp:\n")
    assert done.text.endswith("other: 2\n")
    return done


EACH_KEY: list[tuple[str, str, dict[str, Any], str]] = [
    ("sharding_strategy", "SHARD_GRAD_OP", {"reshard_after_forward": False}, "FM341"),
    ("sharding_strategy", "ShardingStrategy.FULL_SHARD", {"reshard_after_forward": True}, "FM341"),
    (
        "mixed_precision",
        "{param_dtype: bf16, reduce_dtype: torch.float32, cast_forward_inputs: true}",
        {"mp_policy": {"param_dtype": "bfloat16", "reduce_dtype": "float32", "cast_forward_inputs": True}},
        "FM341",
    ),
    (
        "mixed_precision",
        "fp16",
        {"mp_policy": {"param_dtype": "float16", "reduce_dtype": "float16", "cast_forward_inputs": False}},
        "FM343",
    ),
    ("mixed_precision", "null", {}, "FM342"),
    ("cpu_offload", "true", {"offload_policy": {"pin_memory": True}}, "FM341"),
    ("cpu_offload", "{offload_params: false}", {}, "FM342"),
    ("backward_prefetch", "BACKWARD_PRE", {}, "FM342"),
    ("backward_prefetch", "null", {}, "FM343"),
    ("forward_prefetch", "true", {}, "FM343"),
    ("limit_all_gathers", "true", {}, "FM342"),
    ("use_orig_params", "false", {}, "FM342"),
    ("sync_module_states", "true", {"sync_module_states": True}, "FM355"),
    ("sync_module_states", "false", {}, "FM342"),
    ("device_id", "0", {}, "FM342"),
    ("auto_wrap_policy", "{min_num_params: 5}", {"auto_wrap_policy": {"min_num_params": 5}}, "FM355"),
    ("ignored_modules", "[a]", {"ignored_modules": ["a"]}, "FM355"),
    ("ignored_states", "[a]", {"ignored_states": ["a"]}, "FM355"),
    ("param_init_fn", "null", {}, "FM342"),
    ("process_group", "null", {}, "FM342"),
    ("device_mesh", "null", {}, "FM342"),
]


@pytest.mark.parametrize(("key", "value", "after", "code"), EACH_KEY)
def test_each_argument(key: str, value: str, after: dict[str, Any], code: str) -> None:
    done = convert(f"{key}: {value}")
    found = YAML(typ="safe").load(done.text)["trainer"]["fsdp"]
    assert found == {**after, "x_unknown": 1}
    assert {f.code for f in done.findings if f.subject == f"trainer.fsdp.{key}"} == {code}


def test_every_argument_of_fsdp1_is_tried_above() -> None:
    assert {key for key, *_ in EACH_KEY} == {key.name for key in TORCH_KEYS} == set(FSDP1Config.model_fields)


@pytest.mark.parametrize("own", ["", "checkpointing: true\n"])
def test_keys_that_prepare_refuses_are_not_said_to_be_taken(own: str) -> None:
    done = convert_text(
        f"sharding_strategy: FULL_SHARD\nuse_orig_params: true\n{own}", framework="torch", key="."
    )
    [said] = [f for f in done.findings if (f.code, f.subject) == ("FM355", ".")]
    assert ("It refuses the keys" in (said.hint or "")) is bool(own)


def test_meshes_are_made_in_code() -> None:
    for strategy in ("HYBRID_SHARD", "NO_SHARD"):
        found = convert(f"sharding_strategy: {strategy}").findings
        assert {f.code for f in found if f.subject == "trainer.fsdp.sharding_strategy"} == {"FM341", "FM355"}


def test_hydras_objects_stay_objects() -> None:
    done = convert_text(
        "_target_: torch.distributed.fsdp.FullyShardedDataParallel\n_partial_: true\n"
        "mixed_precision:\n  _target_: torch.distributed.fsdp.MixedPrecision\n"
        "  param_dtype:\n    _target_: torch.__dict__.get\n    _args_:\n      - bfloat16\n"
    )
    assert YAML(typ="safe").load(done.text) == {
        "_target_": "torch.distributed.fsdp.fully_shard",
        "_partial_": True,
        "mp_policy": {
            "_target_": "torch.distributed.fsdp.MixedPrecisionPolicy",
            "param_dtype": "bfloat16",
            "reduce_dtype": "bfloat16",
            "cast_forward_inputs": False,
        },
    }


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("sharding_strategy: full_shard\nuse_orig_params: true\n", "reshard_after_forward: true\n"),
        (
            "sharding_strategy: FULL_SHARD\nuse_orig_params: true\ncpu_offload: false\n",
            "reshard_after_forward: true\n",
        ),
        ("sharding_strategy: SHARD_GRAD_OP\n", "reshard_after_forward: false\n"),
        ("limit_all_gathers: true\nbackward_prefetch: BACKWARD_PRE\n", "{}\n"),
    ],
)
def test_a_whole_document_in_words_of_a_projects_own_is_asked_for(text: str, after: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"code of its own: `fsdp-migrate config FILE --from torch --key \.`. Leave them where",
    ):
        convert_text(text)
    done = convert_text(text, framework="torch")
    assert done.text == convert_text(text, framework="torch", key=".").text == after


def test_a_whole_document_in_torchs_words_is_found_by_itself() -> None:
    done = convert_text("sharding_strategy: FULL_SHARD\nuse_orig_params: true\n")
    assert done.blocks[0].framework == "torch"
    assert done.text == "reshard_after_forward: true\n"
    assert convert_text(done.text).blocks[0].state == "fsdp2"


@pytest.mark.parametrize(
    "words", ["mixed_precision: {param_dtype: bfloat16}", "cpu_offload: {offload_params: true}"]
)
def test_fields_of_torchs_objects_are_torchs_words(words: str) -> None:
    done = convert_text(f"sharding_strategy: FULL_SHARD\n{words}\n")
    assert done.blocks[0].framework == "torch"
    assert convert_text(done.text).blocks[0].state == "fsdp2"


def test_a_whole_document_with_its_class_is_found_by_itself() -> None:
    text = "_target_: torch.distributed.fsdp.FullyShardedDataParallel\nsharding_strategy: full_shard\n"
    done = convert_text(text)
    assert done.blocks[0].framework == "torch"
    assert done.text == "_target_: torch.distributed.fsdp.fully_shard\nreshard_after_forward: true\n"
    assert convert_text(done.text).blocks[0].state == "fsdp2"
