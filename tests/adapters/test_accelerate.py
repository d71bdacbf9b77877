"""Accelerate's config files: what becomes of each key, and of what depends on several."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.accelerate import ACCELERATE_KEYS
from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.engine.base import bare
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.adapters.engine.shared_keys import CAST_ALL_BUFFERS
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch


HEAD = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_machines: 1\nnum_processes: 8\n"


def convert(keys: str, head: str = HEAD, **options: Any) -> TextConversion:
    """Convert a config with these lines below ``fsdp_config``; twice changes nothing more."""
    lines = "".join(f"  {line}\n" for line in keys.splitlines())
    done = convert_text(f"{head}fsdp_config:\n{lines}", **options)
    again = convert_text(done.text, **options)
    assert again.text == done.text
    return done


def fsdp_of(done: TextConversion) -> dict[str, Any]:
    block: dict[str, Any] = YAML(typ="safe").load(done.text)["fsdp_config"]
    return block


def codes(done: TextConversion, key: str) -> set[str]:
    return {f.code for f in done.findings if f.subject.rpartition(".")[2] == key}


@pytest.mark.parametrize(
    ("written", "frees"),
    [
        ("FULL_SHARD", True),
        ("full_shard", True),
        ("SHARD_GRAD_OP", False),
        ("'2'", False),
        ("1", True),
        ("4", True),
        ("5", False),
        ("HYBRID_SHARD_ZERO2", False),
        ("ShardingStrategy.SHARD_GRAD_OP", False),
        ("NO_SHARD", False),
        ("null", True),
    ],
)
def test_strategies_become_a_boolean(written: str, frees: bool) -> None:
    done = convert(f"fsdp_sharding_strategy: {written}")
    assert fsdp_of(done)["fsdp_reshard_after_forward"] is frees
    assert "fsdp_sharding_strategy" not in fsdp_of(done)


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("FULL_SHARD", "FM341"),
        ("true", "FM340"),
        ("SHARD_GRAD_OP", "FM343"),
        ("HYBRID_SHARD", "FM343"),
        ("'false'", "FM343"),
        ("false", "FM343"),
    ],
)
def test_fsdp2s_key_alone_did_not_change_what_fsdp1_ran(written: str, code: str) -> None:
    done = convert(f"fsdp_version: 1\nfsdp_reshard_after_forward: {written}")
    assert fsdp_of(done)["fsdp_reshard_after_forward"] is True
    assert codes(done, "fsdp_reshard_after_forward") == {code}
    assert "parallelism_config" not in done.text


def test_of_two_strategies_the_one_that_fsdp1_reads_stays() -> None:
    done = convert("fsdp_reshard_after_forward: FULL_SHARD\nfsdp_sharding_strategy: SHARD_GRAD_OP")
    assert fsdp_of(done)["fsdp_reshard_after_forward"] is False
    assert codes(done, "fsdp_reshard_after_forward") == {"FM342"}


def test_without_a_strategy_fsdp2s_default_is_fsdp1s() -> None:
    assert "fsdp_reshard_after_forward" not in fsdp_of(convert("fsdp_offload_params: false"))


EACH_KEY: list[tuple[str, str, Any, str]] = [
    ("fsdp_backward_prefetch", "BACKWARD_PRE", None, "FM342"),
    ("fsdp_backward_prefetch_policy", "backward_post", None, "FM343"),
    ("fsdp_backward_prefetch_policy", "BACKWARD_PRE", None, "FM343"),
    ("fsdp_transformer_cls_to_wrap", "A", "A", "FM345"),
    ("fsdp_backward_prefetch", "NO_PREFETCH", None, "FM343"),
    ("backward_prefetch", "null", None, "FM343"),
    ("fsdp_forward_prefetch", "true", None, "FM343"),
    ("fsdp_forward_prefetch", "'false'", None, "FM342"),
    ("fsdp_offload_params", "'true'", True, "FM341"),
    ("fsdp_offload_params", "y", True, "FM341"),
    ("fsdp_use_orig_params", "'t'", None, "FM342"),
    ("fsdp_activation_checkpointing", "n", False, "FM341"),
    ("fsdp_offload_params", "yes", "yes", "FM340"),
    ("fsdp_auto_wrap_policy", "transformer_based_wrap", "transformer_based_wrap", "FM341"),
    ("fsdp_auto_wrap_policy", "SIZE_BASED_WRAP", "SIZE_BASED_WRAP", "FM343"),
    ("fsdp_transformer_layer_cls_to_wrap", "A,B", "A,B", "FM340"),
    ("fsdp_transformer_layer_cls_to_wrap", "A, B", "A,B", "FM341"),
    ("fsdp_transformer_layer_cls_to_wrap", "[A, B]", "A,B", "FM341"),
    ("fsdp_min_num_params", "'1e8'", 100000000, "FM341"),
    ("fsdp_min_num_params", "1e8", 100000000, "FM341"),
    ("fsdp_min_num_params", "2000", 2000, "FM340"),
    ("fsdp_state_dict_type", "FULL_STATE_DICT", "FULL_STATE_DICT", "FM340"),
    ("fsdp_state_dict_type", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT", "FM343"),
    ("fsdp_state_dict_type", "2", "SHARDED_STATE_DICT", "FM343"),
    ("fsdp_use_orig_params", "false", None, "FM343"),
    ("fsdp_sync_module_states", "true", None, "FM342"),
    ("fsdp_limit_all_gathers", "true", None, "FM342"),
    ("fsdp_cpu_ram_efficient_loading", "true", True, "FM343"),
    ("fsdp_cpu_ram_efficient_loading", "false", False, "FM340"),
    ("fsdp_activation_checkpointing", "true", True, "FM340"),
    ("fsdp_ignored_modules", ".*router.*", ".*router.*", "FM343"),
    ("fsdp_ofload_params", "true", True, "FM345"),
    ("fsdp_offload_params", "${oc.env:OFFLOAD}", "${oc.env:OFFLOAD}", "FM346"),
    ("fsdp_use_orig_params", "{{ orig }}", None, "FM342"),
]


@pytest.mark.parametrize(("key", "value", "after", "code"), EACH_KEY)
def test_each_key(key: str, value: str, after: Any, code: str) -> None:
    done = convert(f"{key}: {value}")
    assert fsdp_of(done).get(key) == after
    assert codes(done, key) == {code}


@pytest.mark.parametrize("name", ["transformer_cls_to_wrap", "transformer_cls_names_to_wrap"])
def test_names_of_classes_that_the_launcher_does_not_read_say_which_it_reads(name: str) -> None:
    [said] = [f for f in convert(f"fsdp_{name}: A").findings if f.subject.endswith(name)]
    assert "`fsdp_transformer_layer_cls_to_wrap`" in said.message


@pytest.mark.parametrize(
    ("comment", "after"),
    [
        ("Options: FULL_SHARD, NO_SHARD", "fsdp_sharding_strategy: Options: FULL_SHARD, NO_SHARD"),
        ("for large models", "for large models"),
    ],
)
def test_a_comment_that_lists_the_words_of_the_strategy_gets_its_name(comment: str, after: str) -> None:
    done = convert(f"fsdp_sharding_strategy: FULL_SHARD  # {comment}")
    assert f"fsdp_reshard_after_forward: true  # {after}\n" in done.text


def test_a_reference_for_a_strategy_is_kept_and_named() -> None:
    done = convert("fsdp_sharding_strategy: ${strategy}  # from outside")
    assert fsdp_of(done)["fsdp_sharding_strategy"] == "${strategy}"
    assert codes(done, "fsdp_sharding_strategy") == {"FM346"}


def test_weights_that_rank_0_sent_and_sends_no_more_are_told() -> None:
    done = convert("fsdp_cpu_ram_efficient_loading: false\nfsdp_sync_module_states: true")
    assert codes(done, "fsdp_sync_module_states") == {"FM343"}


@pytest.mark.parametrize("loads", ["false", "'no'", "true", "${LOADS}", None])
def test_weights_that_the_launcher_has_sent_by_itself_are_told(loads: str | None) -> None:
    key = "" if loads is None else f"fsdp_cpu_ram_efficient_loading: {loads}"
    found = [f for f in convert(f"fsdp_offload_params: false\n{key}").findings if "sync_module" in f.subject]
    assert [f.code for f in found] == (["FM343"] if loads in {"false", "'no'"} else [])
    assert all("Without it FSDP1 sends rank 0's weights" in f.message for f in found)


@pytest.mark.parametrize("value", ["null", "", "~"])
def test_a_type_of_state_dicts_that_is_empty_is_that_of_fsdp1(value: str) -> None:
    done = convert(f"fsdp_state_dict_type: {value}")
    assert fsdp_of(done)["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert codes(done, "fsdp_state_dict_type") == {"FM341"}
    kept = convert("fsdp_state_dict_type: ${TYPE}")
    assert fsdp_of(kept)["fsdp_state_dict_type"] == "${TYPE}"


def test_defaults_that_differ_are_written_out() -> None:
    done = convert("fsdp_offload_params: true")
    assert fsdp_of(done) == {
        "fsdp_offload_params": True,
        "fsdp_version": 2,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
    }
    assert codes(done, "fsdp_backward_prefetch") == {"FM343"}


@pytest.mark.parametrize(("value", "is_said"), [("true", True), ("'yes'", True), ("false", False)])
def test_what_clipping_of_offloaded_gradients_needs_is_said(value: str, is_said: bool) -> None:
    found = convert(f"fsdp_version: 1\nfsdp_offload_params: {value}").findings
    [said] = [f for f in found if f.subject.endswith("offload_params")]
    assert ("Clipping needs Accelerate 1.9" in said.message) is is_said


def test_a_version_of_1_becomes_2_where_it_stands() -> None:
    done = convert("fsdp_version: 1  # old\nfsdp_state_dict_type: FULL_STATE_DICT")
    assert "  fsdp_version: 2  # old\n" in done.text


@pytest.mark.parametrize(
    ("machines", "processes", "expected"),
    [("2", "8", (2, 4)), ("1", "8", None), ("4", "32", (4, 8)), ("2", "2", None)],
)
def test_hybrid_sharding_gets_its_mesh(
    machines: str, processes: str, expected: tuple[int, int] | None
) -> None:
    head = f"distributed_type: FSDP\nnum_machines: {machines}\nnum_processes: {processes}\n"
    done = convert("fsdp_sharding_strategy: HYBRID_SHARD", head)
    mesh = YAML(typ="safe").load(done.text).get("parallelism_config")
    found = mesh and (
        mesh["parallelism_config_dp_replicate_size"],
        mesh["parallelism_config_dp_shard_size"],
    )
    assert found == expected
    assert ("FM353" in {f.code for f in done.findings}) is (machines == processes)


def test_hybrid_sharding_over_unknown_ranks_is_refused_until_they_are_given() -> None:
    head = "distributed_type: FSDP\nnum_machines: 2\n"
    done = convert("fsdp_sharding_strategy: HYBRID_SHARD", head)
    assert [f.fidelity for f in done.findings if f.code == "FM352"] == ["refused"]
    done = convert("fsdp_sharding_strategy: HYBRID_SHARD", head, settings=Settings(world_size=16))
    assert "parallelism_config_dp_shard_size: 8" in done.text


def test_no_shard_is_told() -> None:
    assert codes(convert("fsdp_sharding_strategy: NO_SHARD"), "fsdp_sharding_strategy") == {"FM341", "FM353"}


def test_mixed_precision_is_told_where_there_is_any() -> None:
    found = convert("fsdp_offload_params: false", f"{HEAD}mixed_precision: bf16\n").findings
    [said] = [f for f in found if f.code == "FM354"]
    assert said.subject == "mixed_precision"
    # What is to be written stands first: it was in the middle of 18 lines.
    assert str(said.hint).startswith("To go on as before write `model.forward = accelerator.autocast()")
    assert CAST_ALL_BUFFERS.format("bfloat16") in str(said.hint)
    assert len(f"{said.message} {said.hint}") < 1600
    found = convert("fsdp_offload_params: false", f"{HEAD}mixed_precision: 'no'\n").findings
    assert "FM354" not in {f.code for f in found}


@pytest.mark.parametrize(
    "line",
    [
        "fsdp_sharding_strategy: FULL_SHRAD",
        "fsdp_sharding_strategy: 6",
        "fsdp_offload_params: maybe",
        "fsdp_min_num_params: many",
        "fsdp_auto_wrap_policy: TRANSFORMER_WRAP",
        "fsdp_state_dict_type: HALF",
        "fsdp_version: 3",
    ],
)
def test_values_that_mean_nothing_are_refused(line: str) -> None:
    done = convert(line)
    [finding] = [f for f in done.findings if f.code == "FM348"]
    assert finding.subject == f"fsdp_config.{line.partition(':')[0]}"
    assert line.rpartition(" ")[2] in finding.message


@pytest.mark.parametrize("prefix", ["", "fsdp_"])
def test_a_misspelt_key_is_kept_and_the_nearest_one_named(prefix: str) -> None:
    done = convert(f"{prefix}sharding_stratgy: FULL_SHARD")
    [finding] = [f for f in done.findings if f.code == "FM345"]
    assert f"Did you mean `{prefix}sharding_strategy`?" in finding.message


def test_spaces_around_a_key_are_taken_off_and_told() -> None:
    done = convert('"fsdp_offload_params ": true')
    assert fsdp_of(done)["fsdp_offload_params"] is True
    assert codes(done, "fsdp_offload_params") == {"FM340", "FM343"}
    [finding] = [f for f in done.findings if f.subject.endswith("offload_params") and f.code == "FM343"]
    assert "it had no effect" in finding.message


def test_of_a_key_that_stands_twice_the_last_counts() -> None:
    done = convert("fsdp_forward_prefetch: true\nfsdp_forward_prefetch: false")
    assert codes(done, "fsdp_forward_prefetch") == {"FM342", "FM349"}


def test_fsdp2_is_left_alone() -> None:
    text = f"{HEAD}fsdp_config:\n  fsdp_version: 2\n  fsdp_sync_module_states: true\n"
    done = convert_text(text)
    assert not done.is_changed
    assert [f.code for f in done.findings] == ["FM347"]


@pytest.mark.parametrize("kind", ["DEEPSPEED", "null", "'NO'"])
@pytest.mark.parametrize("config", ["\n  fsdp_offload_params: true", " {}"])
def test_what_accelerate_does_not_read_is_left_alone_and_told(kind: str, config: str) -> None:
    text = f"distributed_type: {kind}\nmixed_precision: bf16\nmachine_rank: 0\nfsdp_config:{config}\n"
    done = convert_text(text)
    assert not done.is_changed
    assert [(b.state, f.code) for b, f in zip(done.blocks, done.findings, strict=True)] == [
        ("unused", "FM351")
    ]


@pytest.mark.parametrize("line", ["", "fsdp_config:\n", "fsdp_config: {}\n"])
def test_fsdp_by_defaults_alone_becomes_fsdp2(line: str) -> None:
    done = convert_text(f"distributed_type: FSDP\n{line}num_processes: 4\n")
    assert fsdp_of(done) == {"fsdp_version": 2, "fsdp_state_dict_type": "FULL_STATE_DICT"}
    assert convert_text(done.text).blocks[0].state == "fsdp2"


def test_nothing_about_fsdp_is_an_error() -> None:
    with pytest.raises(ConfigError, match="Nothing in it configures FSDP"):
        convert_text("distributed_type: MULTI_GPU\n")


def test_every_key_of_the_table_is_tried_above() -> None:
    tried = {bare(key) for key, *_ in EACH_KEY}
    others = {"version", "sharding_strategy", "reshard_after_forward", "activation_checkpointing_offload"}
    assert {key.name for key in ACCELERATE_KEYS} - others <= tried


def test_json_keeps_its_layout() -> None:
    text = (
        '{\n  "distributed_type": "FSDP",\n  "fsdp_config": {\n    "fsdp_sharding_strategy": 2\n  },\n'
        '  "x": 1\n}\n'
    )
    done = convert_text(text)
    assert done.text == (
        '{\n  "distributed_type": "FSDP",\n  "fsdp_config": {\n    "fsdp_reshard_after_forward": false,\n'
        '    "fsdp_version": 2,\n    "fsdp_state_dict_type": "FULL_STATE_DICT"\n  },\n  "x": 1\n}\n'
    )


def test_anchors_and_merge_keys_are_followed() -> None:
    text = (
        "base: &base\n  fsdp_use_orig_params: true\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
        "distributed_type: FSDP\nfsdp_config:\n  <<: *base\n  fsdp_offload_params: true\n"
    )
    done = convert_text(text)
    assert fsdp_of(done)["fsdp_reshard_after_forward"] is False
    assert "fsdp_use_orig_params" not in done.text
    assert "<<: *base" in done.text


def test_windows_line_ends_and_a_byte_order_mark_stay() -> None:
    text = "\ufeff" + f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: 1\n".replace("\n", "\r\n")
    done = convert_text(text)
    assert done.text.startswith("\ufeff")
    assert done.text.count("\n") == done.text.count("\r\n") == text.count("\n") + 2


def test_several_documents_in_one_file() -> None:
    text = (
        f"{HEAD}fsdp_config:\n  fsdp_sharding_strategy: 1\n---\n{HEAD}fsdp_config: "
        f"{{fsdp_sharding_strategy: 2}}\n"
    )
    done = convert_text(text)
    first, second = YAML(typ="safe").load_all(done.text)
    assert first["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert second["fsdp_config"]["fsdp_reshard_after_forward"] is False


def test_the_name_that_accelerate_does_not_read_says_so() -> None:
    done = convert("fsdp_backward_prefetch_policy: BACKWARD_PRE")
    [told] = [f for f in done.findings if "prefetch" in f.subject]
    assert "1.0 and later do not read this name" in told.message
    both = convert("fsdp_backward_prefetch_policy: BACKWARD_POST\nfsdp_backward_prefetch: BACKWARD_PRE")
    assert codes(both, "fsdp_backward_prefetch_policy") == {"FM342"}
    assert codes(both, "fsdp_backward_prefetch") == {"FM342"}


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("fsdp_transformer_layer_cls_wrap", "fsdp_transformer_layer_cls_to_wrap"),
        ("fsdp_limit_all_gather", None),
        ("fsdp_state_dict_config", None),
        ("fsdp_transformer_cls_wrap", "fsdp_transformer_layer_cls_to_wrap"),
    ],
)
def test_only_keys_that_accelerate_reads_are_named_for_unknown_ones(key: str, near: str | None) -> None:
    [told] = [f for f in convert(f"{key}: 1").findings if f.code == "FM345"]
    assert told.message.endswith(f"Did you mean `{near}`?" if near else "kept as it is.")


def test_the_version_of_accelerate_that_it_needs_is_named() -> None:
    [added] = [f for f in convert("fsdp_offload_params: true").findings if f.subject.endswith("fsdp_version")]
    assert "Accelerate 1.6, and 1.7 for FULL_STATE_DICT" in added.message


@pytest.mark.parametrize(
    ("machines", "code"), [("", "FM355"), ("num_machines: 1\n", "FM341"), ("num_machines: null\n", "FM355")]
)
def test_hybrid_sharding_on_nodes_that_the_file_does_not_count(machines: str, code: str) -> None:
    """Who launches it with ``--num_machines`` would shard over all nodes."""
    text = f"distributed_type: FSDP\n{machines}fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n"
    done = convert_text(text)
    said = [f for f in done.findings if f.message.startswith("HYBRID_SHARD") and "one" in f.message]
    assert [f.code for f in said] == [code]
    assert "parallelism_config" not in done.text
    told = convert_text(text, settings=Settings(nodes=2, world_size=8)).text
    assert "parallelism_config_dp_replicate_size: 2" in told


_BY_CLASS = "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\nfsdp_transformer_layer_cls_to_wrap: {}\n"


@pytest.mark.parametrize(
    ("beside", "code"),
    [
        ("fsdp_cpu_ram_efficient_loading: true", "FM343"),
        ("fsdp_offload_params: false", "FM343"),
        ("fsdp_cpu_ram_efficient_loading: false", "FM340"),
    ],
)
def test_ignored_modules_are_lost_where_rank_0_loads_for_all(beside: str, code: str) -> None:
    found = convert(f"fsdp_ignored_modules: '.*moe'\n{beside}").findings
    (said,) = (each for each in found if each.subject.endswith("ignored_modules"))
    assert said.code == code
    assert ("shards what" in said.message) is (code == "FM343")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("fsdp_cpu_ram_efficient_loading: true", "Kept: it means the same. But with"),
        ("cpu_ram_efficient_loading: 'true'", "is written as true. But with"),
        ("fsdp_offload_params: false", "Without it the launcher takes true. But with"),
        ("fsdp_cpu_ram_efficient_loading: false", ""),
    ],
)
def test_which_models_rank_0_cannot_load_for_all_is_said_without_a_change(keys: str, said: str) -> None:
    for names in ("LlamaDecoderLayer", "GPT2Block,Embedding", "${LAYER}", "null"):
        done = convert(_BY_CLASS.format(names) + keys)
        found = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
        told = [
            f for f in found if "stops at buffers" in f.message and f.message.endswith("for such a model.")
        ]
        assert len(told) == bool(said)
        assert all(said in f.message and f.hint is None for f in told)
        assert all(f.fidelity in {"exact", "equivalent"} for f in told)


@pytest.mark.parametrize("names", ["TransformerLayer", "Block", "torch.nn.TransformerEncoderLayer", None])
def test_a_model_that_rank_0_cannot_load_for_all_has_something_to_do(names: str | None) -> None:
    policy = "fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n" if names is None else _BY_CLASS.format(names)
    for key in ("fsdp_cpu_ram_efficient_loading: true", ""):
        done = convert(f"{policy}{key}")
        [told] = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
        assert told.code == "FM343"
        assert "stops at buffers" in told.message
        assert told.hint == "Write false for such a model."


def test_a_comment_about_the_words_of_an_old_key_gets_its_name() -> None:
    done = convert(
        "fsdp_sharding_strategy: FULL_SHARD  # one of 1 to 5\nfsdp_offload_params: 'false'  # as before\n"
        "fsdp_reshard_after_forward: false # no"
    )
    assert "  fsdp_reshard_after_forward: true  # fsdp_sharding_strategy: one of 1 to 5\n" in done.text
    assert "  fsdp_offload_params: false  # as before\n" in done.text


@pytest.mark.parametrize(
    ("word", "more", "meant"),
    [
        ("AUTO_WRAP", "fsdp_min_num_params: 1000", "With `fsdp_min_num_params` it is SIZE_BASED_WRAP."),
        ("AUTO_WRAP", "", "it is TRANSFORMER_BASED_WRAP."),
        ("TRANSFORMER_BASED_WARP", "fsdp_min_num_params: 1000", "Did you mean `TRANSFORMER_BASED_WRAP`?"),
        ("NOWRAP", "", "Did you mean `NO_WRAP`?"),
    ],
)
def test_a_policy_that_there_is_not_is_not_taken_for_its_contrary(word: str, more: str, meant: str) -> None:
    done = convert_text(f"{HEAD}fsdp_config:\n  fsdp_auto_wrap_policy: {word}\n  {more}\n")
    [said] = [f for f in done.findings if f.code == "FM348"]
    assert said.message.endswith(meant)


def test_the_root_that_the_user_names_is_no_mapping_of_flags() -> None:
    text = "fsdp_sharding_strategy: 2\nfsdp_state_dict_type: SHARDED_STATE_DICT\nfsdp_offload_optimizer: 1\n"
    done = convert_text(text, framework="accelerate", key=".")
    found = YAML(typ="safe").load(done.text)
    assert found["fsdp_version"] == 2
    assert found["fsdp_reshard_after_forward"] is False
    assert found["fsdp_state_dict_type"] == "SHARDED_STATE_DICT"
    assert not any("Another file" in f.message for f in done.findings)


def test_a_setting_that_is_commented_out_keeps_its_own_name() -> None:
    text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n"
    out = "  # fsdp_transformer_layer_cls_to_wrap: A\n"
    done = convert_text(f"{text}{out}  fsdp_use_orig_params: true\n")
    assert out in done.text
    assert "# fsdp_use_orig_params" not in done.text


def test_a_rule_above_a_comment_stays_a_rule() -> None:
    head = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n"
    rule = f"  # {'=' * 20}\n"
    done = convert_text(f"{head}\n{rule}  # sends what rank 0 has\n{rule}  fsdp_sync_module_states: true\n")
    assert f"{rule}  # fsdp_sync_module_states: sends what rank 0 has\n{rule}" in done.text
    alone = convert_text(f"{head}\n{rule}  fsdp_use_orig_params: true\n")
    assert rule in alone.text
    assert "# fsdp_use_orig_params" not in alone.text


@pytest.mark.parametrize(
    ("given", "is_said"),
    [("SLURM", True), ("AMAZON_SAGEMAKER", True), ("LOCAL_MACHINE", False), ("${PLACE}", False)],
)
def test_accelerate_starts_nothing_in_another_environment(given: str, *, is_said: bool) -> None:
    text = f"compute_environment: {given}\ndistributed_type: FSDP\n"
    done = convert_text(f"{text}fsdp_config: {{fsdp_sharding_strategy: FULL_SHARD}}\n")
    found = [f.hint for f in done.findings if f.subject == "compute_environment"]
    assert found == ["Write LOCAL_MACHINE."] * is_said
