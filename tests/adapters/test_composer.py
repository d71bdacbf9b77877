"""Composer's and llm-foundry's YAML, for Composer's own FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.composer import COMPOSER_KEYS, FSDP2_FIELDS
from fsdp_migrate.adapters.config_objects.composer import COMPOSER_FIELDS
from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.engine.settings import Settings


pytestmark = pytest.mark.any_torch


HEAD = "max_duration: 1ep\nprecision: amp_bf16\n"


def convert(text: str, **options: Any) -> TextConversion:
    done = convert_text(text, **options)
    assert {block.framework for block in done.blocks} == {"composer"}
    assert convert_text(done.text, **options).text == done.text
    return done


EACH_KEY: list[tuple[str, str, Any, str]] = [
    ("sharding_strategy", "SHARD_GRAD_OP", None, "FM341"),
    ("mixed_precision", "PURE", "PURE", "FM354"),
    ("mixed_precision", "DEFAULT", "DEFAULT", "FM354"),
    ("mixed_precision", "FULL", "FULL", "FM340"),
    ("mixed_precision", "{param_dtype: bf16}", {"param_dtype": "bf16"}, "FM348"),
    ("state_dict_type", "sharded", "sharded", "FM340"),
    ("state_dict_type", "local", "local", "FM348"),
    ("activation_checkpointing", "true", True, "FM340"),
    ("activation_checkpointing_reentrant", "false", None, "FM342"),
    ("activation_checkpointing_reentrant", "true", None, "FM341"),
    ("activation_cpu_offload", "'false'", False, "FM341"),
    ("load_monolith_rank0_only", "true", True, "FM340"),
    ("verbose", "true", True, "FM340"),
    ("auto_wrap", "false", None, "FM343"),
    ("backward_prefetch", "BACKWARD_PRE", None, "FM342"),
    ("backward_prefetch_limit", "2", None, "FM343"),
    ("forward_prefetch", "true", None, "FM343"),
    ("forward_prefetch_limit", "1", None, "FM342"),
    ("cpu_offload", "false", None, "FM342"),
    ("data_parallel_shard_degree", "8", None, "FM342"),
    ("data_parallel_replicate_degree", "2", None, "FM343"),
    ("ignored_modules", "null", None, "FM342"),
    ("keep_low_precision_grads", "true", None, "FM343"),
    ("limit_all_gathers", "true", None, "FM342"),
    ("process_group", "node", None, "FM343"),
    ("sync_module_states", "true", None, "FM342"),
    ("use_orig_params", "true", None, "FM342"),
    ("te_checkpoint_wrapper", "true", None, "FM343"),
    ("te_shard_fp8_weight", "false", None, "FM342"),
    ("load_planner", "{x: {}}", None, "FM343"),
    ("save_planner", "null", None, "FM342"),
    ("sharded_ckpt_prefix_dir", "ba{batch}", None, "FM343"),
    ("min_params", "1e8", None, "FM342"),
    ("flatten_parameters", "true", None, "FM342"),
    ("shardng_strategy", "FULL_SHARD", "FULL_SHARD", "FM345"),
]


@pytest.mark.parametrize(("key", "value", "after", "code"), EACH_KEY)
def test_each_key(key: str, value: str, after: Any, code: str) -> None:
    text = f"{HEAD}fsdp_config:\n  {key}: {value}\n"
    done = convert_text(text, framework="composer", key="fsdp_config", settings=Settings(world_size=8))
    found = YAML(typ="safe").load(done.text)["fsdp_config"]
    assert found.pop(key, None) == after
    assert found["reshard_after_forward"] is (key != "sharding_strategy")
    assert {f.code for f in done.findings if f.subject == f"fsdp_config.{key}"} == {code}
    [told] = [f for f in done.findings if (f.code, f.subject) == ("FM355", "fsdp_config")]
    assert "Composer 0.31 and later" in told.message


def test_every_field_of_composer_is_tried_above() -> None:
    tried = {key for key, *_ in EACH_KEY}
    assert set(COMPOSER_FIELDS) <= tried
    assert {key.name for key in COMPOSER_KEYS} - tried == {"reshard_after_forward"}


def test_a_precision_that_casts_nothing_changes_nothing() -> None:
    for head, code in (("precision: fp32", "FM340"), ("precision: amp_bf16", "FM354")):
        done = convert(f"max_duration: 1ep\n{head}\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n")
        assert {f.code for f in done.findings if f.subject == "fsdp_config.mixed_precision"} == {code}


def test_what_is_left_is_what_composers_fsdp2_takes() -> None:
    given = {key: value for key, value, _, code in EACH_KEY if code not in {"FM345", "FM348"}}
    lines = "".join(f"  {key}: {value}\n" for key, value in given.items())
    done = convert_text(f"{HEAD}fsdp_config:\n{lines}", framework="composer", key="fsdp_config")
    assert set(YAML(typ="safe").load(done.text)["fsdp_config"]) <= FSDP2_FIELDS


def test_defaults_that_differ_are_written_out() -> None:
    done = convert(f"{HEAD}fsdp_config:\n  mixed_precision: PURE\n")
    assert YAML(typ="safe").load(done.text)["fsdp_config"] == {
        "mixed_precision": "PURE",
        "reshard_after_forward": True,
        "state_dict_type": "full",
    }
    assert {f.code for f in done.findings if f.subject == "fsdp_config.backward_prefetch"} == {"FM343"}


def test_nested_blocks_are_found() -> None:
    text = (
        f"name: x\nparameters:\n  {HEAD.replace(chr(10), chr(10) + '  ')}fsdp_config:\n    "
        "sharding_strategy: 1\n"
    )
    assert convert(text).blocks[0].path == "parameters.fsdp_config"
    text = "trainer:\n  parallelism_config:\n    fsdp:\n      sharding_strategy: FULL_SHARD\n"
    assert convert(text).blocks[0].path == "trainer.parallelism_config.fsdp"


def test_what_composers_fsdp2_cannot_do_is_told() -> None:
    done = convert(
        f"{HEAD}fsdp_config:\n  sharding_strategy: HYBRID_SHARD\n  data_parallel_replicate_degree: 2\n"
    )
    assert "FM353" in {f.code for f in done.findings}


@pytest.mark.parametrize(
    ("given", "made"), [("HYBRID_SHARD", "FULL_SHARD"), ("_hybrid_shard_zero2", "SHARD_GRAD_OP")]
)
def test_a_hybrid_strategy_without_replicas_is_what_composer_makes_of_it(given: str, made: str) -> None:
    """Nothing changes, so FM353 would be false: Composer warns, and takes the plain one for a 1-D mesh."""
    done = convert(f"{HEAD}fsdp_config:\n  sharding_strategy: {given}\n")
    assert "FM353" not in {f.code for f in done.findings}
    assert any(f"Composer makes {made} of it" in f.message for f in done.findings)
    for others in ("process_group: node", "data_parallel_replicate_degree: 2"):
        done = convert(f"{HEAD}fsdp_config:\n  sharding_strategy: {given}\n  {others}\n")
        assert "FM353" in {f.code for f in done.findings}
        assert not any("Composer makes" in f.message for f in done.findings)


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (
            "_target_: composer.Trainer\nmax_duration: 1ep\nfsdp_config: {sharding_strategy: FULL_SHARD}\n",
            True,
        ),
        ("max_duration: 1ep\nfsdp_config: {sharding_strategy: FULL_SHARD}\n", False),
        (
            "_target_: composer.Trainer\nparallelism_config: {fsdp: {sharding_strategy: FULL_SHARD}}\n",
            False,
        ),
    ],
)
def test_an_argument_that_the_trainer_has_no_more_is_told(text: str, is_told: bool) -> None:
    found = [f for f in convert_text(text).findings if f.subject == "parallelism_config"]
    assert bool(found) is is_told


def test_fsdp2_is_left_alone() -> None:
    done = convert(f"{HEAD}fsdp_config:\n  reshard_after_forward: true\n  mixed_precision: PURE\n")
    assert [f.code for f in done.findings] == ["FM347"]


@pytest.mark.parametrize(
    ("algorithms", "told"),
    [
        ("{gradient_clipping: {clipping_type: value, clipping_threshold: 1.0}}", True),
        ("[{_target_: composer.algorithms.GradientClipping, clipping_type: value}]", True),
        ("{gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}", False),
        ("{ema: {half_life: 50ba}}", False),
    ],
)
@pytest.mark.parametrize("block", ["fsdp_config: {}", "parallelism_config:\n  fsdp: {}"])
def test_clipping_by_value_which_composers_fsdp1_took_for_the_greatest_element(
    algorithms: str, told: bool, block: str
) -> None:
    block = block.replace("{}", "{sharding_strategy: FULL_SHARD}")
    done = convert(f"{HEAD}algorithms: {algorithms}\n{block}\n")
    found = {f.code for f in done.findings if f.subject.endswith("clipping_type")}
    assert found == ({"FM343"} if told else set())


@pytest.mark.parametrize(("size", "told"), [("auto", True), ("4", False), ("${size}", False)])
@pytest.mark.parametrize("block", ["fsdp_config: {}", "parallelism_config:\n  fsdp: {}"])
def test_automatic_microbatches_that_composers_fsdp2_refuses_are_told(
    size: str, told: bool, block: str
) -> None:
    block = block.replace("{}", "{sharding_strategy: FULL_SHARD}")
    done = convert(f"{HEAD}device_train_microbatch_size: {size}\n{block}\n")
    found = {f.code for f in done.findings if f.subject.endswith("device_train_microbatch_size")}
    assert found == ({"FM343"} if told else set())


@pytest.mark.parametrize(("size", "is_said"), [("8", True), ("${WORLD_SIZE}", False), ("1", False)])
def test_experts_with_a_mesh_of_their_own(size: str, *, is_said: bool) -> None:
    text = (
        "max_duration: 10ba\nprecision: amp_bf16\n"
        f"model: {{name: mpt_causal_lm, ffn_config: {{ffn_type: mb_dmoe, moe_world_size: {size}}}}}\n"
        "fsdp_config: {sharding_strategy: FULL_SHARD}\n"
    )
    subjects = [f.subject for f in convert_text(text).findings if "device_mesh" in f.message]
    assert subjects == ["model.ffn_config.moe_world_size"] * is_said


@pytest.mark.parametrize("value", ["0", "'no'", "'f'", "false", "'False'"])
def test_a_switch_that_is_off_in_any_word_asks_for_nothing(value: str) -> None:
    for key in ("cpu_offload", "forward_prefetch", "te_checkpoint_wrapper"):
        done = convert_text(f"max_duration: 1ep\nfsdp_config:\n  {key}: {value}\n")
        assert {f.code for f in done.findings if f.subject == f"fsdp_config.{key}"} == {"FM342"}


@pytest.mark.parametrize(
    ("before", "is_fsdp2"),
    [
        ("hydra: {job: {env_set: {FSDP_VERSION: '2'}}}\n", True),
        ("env_variables: {FSDP_VERSION: 2}\n", True),
        ("env_variables: {FSDP_VERSION: 2}\nlast: FSDP_VERSION=1 composer train.py\n", False),
        ("env_variables:\n  - {key: FSDP_VERSION, value: '2'}\n", True),
        ("env:\n  - {name: FSDP_VERSION, value: '1'}\n", False),
        ("command: |\n  export FSDP_VERSION=2\n  composer train.py\n", True),
        ("command: |\n  FSDP_VERSION=1 composer train.py\n", False),
        ("command: |\n  # export FSDP_VERSION=2\n  composer train.py\n", False),
        ("# export FSDP_VERSION=2\n", False),
        ("command: |\n  FSDP_VERSION=1 composer a.py; FSDP_VERSION=2 composer b.py\n", False),
        ("command: |\n  FSDP_VERSION=2 composer a.py; FSDP_VERSION=$V composer b.py\n", False),
        ("command: |\n  composer a.py  # later: FSDP_VERSION=2\n", False),
        ("command: |\n  FSDP_VERSION=2 composer a.py  # not FSDP_VERSION=1\n", True),
        ("command: |\n  export A=1 FSDP_VERSION='2'; composer a.py\n", True),
        ("command: |\n  composer a.py; FSDP_VERSION=2 composer b.py\n", False),
        ("command: |\n  export FSDP_VERSION=2\n  composer a.py && composer b.py\n", True),
        ("command: |\n  composer a.py\n  export FSDP_VERSION=2\n  composer b.py\n", False),
        ("one: composer a.py\ntwo: FSDP_VERSION=2 composer b.py\n", False),
        ("env_variables: {FSDP_VERSION: 2}\none: composer a.py\n", True),
        ("command: |\n  export FSDP_VERSION=2\n  unset A FSDP_VERSION\n  composer a.py\n", False),
        ("command: |\n  declare -x FSDP_VERSION=2\n  composer a.py\n", True),
        ("command: |\n  typeset -gx A=1 FSDP_VERSION=2\n  composer a.py\n", True),
        ("command: |\n  export A FSDP_VERSION=2 B='b c'\n  composer a.py\n", True),
        ("command: |\n  export -- FSDP_VERSION=2\n  composer a.py\n", True),
        ("command: |\n  declare FSDP_VERSION=2\n  composer a.py\n", False),
        ("command: |\n  FSDP_VERSION=2\n  composer a.py\n", False),
        ("command: |\n  set -a; FSDP_VERSION=2\n  composer a.py\n", True),
        ("command: |\n  FSDP_VERSION=2; export FSDP_VERSION\n  composer a.py\n", True),
        ("command: |\n  export FSDP_VERSION=1; FSDP_VERSION=2\n  composer a.py\n", False),
        ("command: |\n  export FSDP_VERSION=2; FSDP_VERSION=1\n  composer a.py\n", False),
        ("command: |\n  export FSDP_VERSION=2; unset A\n  composer a.py\n", True),
        (
            "command: |\n  FSDP_VERSION=2; unset FSDP_VERSION; export FSDP_VERSION\n  composer a.py\n",
            False,
        ),
        ("command: |\n  export FSDP_VERSION=2\n  echo it's\n  composer a.py\n", True),
        ("command: |\n  env A=1 FSDP_VERSION=2 composer a.py\n", True),
        ("command: |\n  env FSDP_VERSION=2 true; composer a.py\n", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("inner", ["use_orig_params: true", "verbose: true, backward_prefetch: BACKWARD_PRE"])
def test_a_file_that_sets_the_version_is_fsdp2_already(before: str, is_fsdp2: bool, inner: str) -> None:
    """Converted, it would save whole files, where the run that it describes saves sharded ones."""
    text = f"{before}trainer:\n  parallelism_config:\n    fsdp: {{{inner}}}\n"
    done = convert_text(text)
    assert ([block.state for block in done.blocks] == ["fsdp2"]) is is_fsdp2
    assert ({finding.code for finding in done.findings} == {"FM347"}) is is_fsdp2
    assert done.is_changed is not is_fsdp2


def test_a_block_with_keys_of_both_kinds_is_fsdp2_where_no_strategy_stands() -> None:
    """Composer's FSDP1 has no ``reshard_after_forward``, and its FSDP2 drops what it does not have."""
    alone = f"{HEAD}parallelism_config:\n  fsdp: {{reshard_after_forward: false, use_orig_params: true}}\n"
    done = convert_text(alone)
    assert [block.state for block in done.blocks] == ["fsdp2"]
    assert "FSDP2 has no `use_orig_params` there: Composer warns" in done.findings[0].message
    bare = convert_text(alone.replace(", use_orig_params: true", ""))
    assert "has no" not in bare.findings[0].message
    both = alone.replace("use_orig_params: true", "sharding_strategy: FULL_SHARD")
    assert [block.state for block in convert_text(both).blocks] == ["converted"]
    told = convert_text(f"env_variables: {{FSDP_VERSION: 2}}\n{both}")
    assert "sharding_strategy" not in told.text
    assert "FM355" not in {finding.code for finding in told.findings}
