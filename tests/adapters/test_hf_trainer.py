"""HF Trainer: ``fsdp`` and ``fsdp_config``, together, alone, inline and elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.engine.base import bare
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.adapters.hf_trainer import HF_KEYS
from fsdp_migrate.errors import NothingToConvertError


pytestmark = pytest.mark.any_torch


WORDS = "full_shard auto_wrap"
HEAD = "output_dir: out\nlearning_rate: 1.0e-5\n"


def convert(text: str, **options: Any) -> TextConversion:
    done = convert_text(text, **options)
    assert {block.framework for block in done.blocks} == {"hf"}
    assert convert_text(done.text, **options).text == done.text
    return done


def loaded(done: TextConversion) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(done.text)
    return document


def codes(done: TextConversion, subject: str) -> set[str]:
    return {finding.code for finding in done.findings if finding.subject == subject}


@pytest.mark.parametrize(
    ("fsdp", "after", "config"),
    [
        ('"full_shard auto_wrap"', "full_shard auto_wrap", {"reshard_after_forward": True}),
        ("auto_wrap full_shard", "auto_wrap full_shard", {"reshard_after_forward": True}),
        ("[shard_grad_op, auto_wrap]", ["shard_grad_op", "auto_wrap"], {"reshard_after_forward": False}),
        (
            "full_shard auto_wrap offload",
            "full_shard auto_wrap offload",
            {"reshard_after_forward": True, "cpu_offload": True},
        ),
        ("hybrid_shard auto_wrap", "full_shard auto_wrap", {"reshard_after_forward": True}),
        ("hybrid_shard_zero2 auto_wrap", "shard_grad_op auto_wrap", {"reshard_after_forward": False}),
        ("no_shard auto_wrap", "shard_grad_op auto_wrap", {"reshard_after_forward": False}),
        ("full_shard", "full_shard", {"reshard_after_forward": True, "auto_wrap_policy": "NO_WRAP"}),
        ("true", True, {"reshard_after_forward": True}),
    ],
)
def test_the_words_of_fsdp(fsdp: str, after: Any, config: dict[str, Any]) -> None:
    found = loaded(convert(f"{HEAD}fsdp: {fsdp}\n"))
    assert found["fsdp"] == after
    assert found["fsdp_config"] == {"version": 2, **config, "state_dict_type": "FULL_STATE_DICT"}


EACH_KEY: list[tuple[str, Any, Any, str]] = [
    ("fsdp_transformer_layer_cls_to_wrap", ["A", "B"], ["A", "B"], "FM340"),
    ("transformer_layer_cls_to_wrap", "A, B", ["A", "B"], "FM341"),
    ("min_num_params", "1e6", 1000000, "FM341"),
    ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP", "FM341"),
    ("auto_wrap_policy", "transformer_based_wrap", "TRANSFORMER_BASED_WRAP", "FM341"),
    ("fsdp_auto_wrap_policy", "size_based_wrap", "SIZE_BASED_WRAP", "FM343"),
    ("auto_wrap_policy", "no_wrap", "NO_WRAP", "FM358"),
    ("auto_wrap_policy", None, "TRANSFORMER_BASED_WRAP", "FM341"),
    ("auto_wrap_policy", "${POLICY}", "${POLICY}", "FM346"),
    ("fsdp_backward_prefetch", "backward_pre", None, "FM342"),
    ("backward_prefetch", "backward_post", None, "FM343"),
    ("forward_prefetch", "true", None, "FM343"),
    ("limit_all_gathers", True, None, "FM342"),
    ("use_orig_params", "false", None, "FM342"),
    ("sync_module_states", True, None, "FM343"),
    ("cpu_ram_efficient_loading", "true", True, "FM341"),
    ("cpu_offload", {"offload_params": True}, True, "FM358"),
    ("offload_params", True, None, "FM343"),
    ("activation_checkpointing", True, True, "FM340"),
    ("activation_checkpointing", None, False, "FM341"),
    ("activation_checkpointing", "${RECOMPUTE}", "${RECOMPUTE}", "FM346"),
    ("state_dict_type", 1, "FULL_STATE_DICT", "FM341"),
    ("state_dict_type", "3", "FULL_STATE_DICT", "FM343"),
    ("state_dict_type", None, "FULL_STATE_DICT", "FM341"),
    ("state_dict_type", "full", "FULL_STATE_DICT", "FM341"),
    ("xla", False, False, "FM340"),
    ("xla_fsdp_v2", True, True, "FM350"),
    ("xla_fsdp_settings", {"compute_dtype": "bfloat16"}, {"compute_dtype": "bfloat16"}, "FM340"),
    ("xla_fsdp_grad_ckpt", True, True, "FM340"),
    ("sharding_strategy", "SHARD_GRAD_OP", None, "FM342"),
    ("reshard_after_forward", "shard_grad_op", True, "FM341"),
    ("fsdp_version", 1, None, "FM341"),
    ("trnsformer_layer_cls_to_wrap", "A", "A", "FM345"),
]


@pytest.mark.parametrize(("key", "value", "after", "code"), EACH_KEY)
def test_each_key(key: str, value: Any, after: Any, code: str) -> None:
    text = json.dumps(
        {"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": {key: value}}, indent=2
    )
    done = convert(text)
    config = loaded(done)["fsdp_config"]
    assert config.get(key) == after
    assert config["version"] == 2
    assert codes(done, f"fsdp_config.{key}") == {code}


def test_offloading_that_fsdp1_did_not_do_says_how_to_stay_without() -> None:
    done = convert(f"{HEAD}fsdp: full_shard\nfsdp_config:\n  offload_params: true\n")
    [said] = [finding for finding in done.findings if finding.subject == "fsdp_config.offload_params"]
    assert said.hint is not None
    assert said.hint.startswith("Write `cpu_offload: true` to offload")


def test_every_key_of_the_table_is_tried_above() -> None:
    assert {key.name for key in HF_KEYS} <= {bare(key) for key, *_ in EACH_KEY}


def test_size_based_wrapping_is_named_for_later_versions() -> None:
    text = f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config:\n  fsdp_min_num_params: 1000\n"
    done = convert(text)
    assert loaded(done)["fsdp_config"]["auto_wrap_policy"] == "SIZE_BASED_WRAP"
    # Accelerate's FSDP2 wraps by size what FSDP1 does not, lists of layers among them.
    assert "FM343" in codes(done, "fsdp_config.auto_wrap_policy")
    inside = convert(f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config: '{{\"min_num_params\": 5}}'\n")
    assert "FM343" in codes(inside, "fsdp_config.auto_wrap_policy")


def test_a_file_of_its_own() -> None:
    done = convert('{\n    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]\n}\n')
    assert done.text == (
        '{\n    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],\n    "version": 2,\n'
        '    "reshard_after_forward": true,\n    "state_dict_type": "FULL_STATE_DICT"\n}\n'
    )
    assert codes(done, "fsdp") == {"FM356"}


@pytest.mark.parametrize(
    "more",
    [
        {"offload_params": False},
        {
            "sharding_strategy": "SHARD_GRAD_OP",
            "limit_all_gathers": True,
            "offload_params": False,
            "seed": 42,
        },
        {"fsdp_use_orig_params": True, "fsdp_cpu_offload": False, "fsdp_seed": 42},
    ],
)
def test_a_file_that_a_script_of_its_own_reads_is_not_theirs(more: dict[str, Any]) -> None:
    with pytest.raises(NothingToConvertError):
        convert_text(json.dumps({"fsdp_activation_checkpointing": False, **more}))
    convert(json.dumps({"fsdp_activation_checkpointing": False, "fsdp_use_orig_params": True}))


def test_a_strategy_in_a_file_of_its_own_is_heeded_and_told() -> None:
    done = convert('{"min_num_params": 5, "sharding_strategy": "SHARD_GRAD_OP"}')
    assert loaded(done)["reshard_after_forward"] is False
    [said] = [f for f in done.findings if f.subject == "sharding_strategy"]
    assert (said.code, "whatever `fsdp` says" in said.message) == ("FM343", True)


def test_a_strategy_that_is_not_read_does_not_count_beside_fsdp() -> None:
    done = convert(f"{HEAD}fsdp: true\nfsdp_config: {{sharding_strategy: SHARD_GRAD_OP}}\n")
    assert loaded(done)["fsdp_config"]["reshard_after_forward"] is True
    assert codes(done, "fsdp_config.sharding_strategy") == {"FM342"}


def test_json_in_a_string() -> None:
    text = f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config: '{{\"fsdp_use_orig_params\": true}}'\n"
    done = convert(text)
    assert json.loads(loaded(done)["fsdp_config"]) == {
        "version": 2,
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
    }


def test_another_file_is_named() -> None:
    done = convert(f"{HEAD}fsdp: hybrid_shard auto_wrap\nfsdp_config: conf/fsdp.json\n")
    [finding] = [f for f in done.findings if f.code == "FM356"]
    assert "conf/fsdp.json" in finding.message
    assert [block.state for block in done.blocks] == ["converted"]
    same = convert(f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config: conf/fsdp.json\n")
    assert not same.is_changed
    assert [block.state for block in same.blocks] == ["unchanged"]
    assert loaded(done)["fsdp"] == "full_shard auto_wrap"


@pytest.mark.parametrize(
    ("fsdp", "code"), [("hybrid_shard", "FM355"), ("hybrid_shard_zero2", "FM355"), ("no_shard", "FM353")]
)
def test_strategies_that_fsdp2_lacks_are_told_beside_another_file(fsdp: str, code: str) -> None:
    done = convert(f"{HEAD}fsdp: {fsdp} auto_wrap\nfsdp_config: conf/fsdp.json\n")
    assert codes(done, "fsdp") == {"FM341", code}


@pytest.mark.parametrize(
    ("fsdp", "wanted"),
    [
        ("full_shard auto_wrap", ()),
        ("shard_grad_op auto_wrap offload", ("reshard_after_forward: false",)),
        ("full_shard", ("auto_wrap_policy: NO_WRAP",)),
        ("no_shard", ("reshard_after_forward: false", "auto_wrap_policy: NO_WRAP")),
        ("true", ()),
        ("${fsdp}", ()),
    ],
)
def test_what_fsdp_means_for_another_file_is_said(fsdp: str, wanted: tuple[str, ...]) -> None:
    done = convert(f"{HEAD}fsdp: {fsdp}\nfsdp_config: conf/fsdp.json\n")
    [said] = [f for f in done.findings if f.subject == "fsdp_config"]
    assert (said.hint or "").count("`") == 2 + 2 * bool(wanted) + 2 * len(wanted)
    assert all(f"`{key}`" in (said.hint or "") for key in wanted)


def test_a_name_that_is_no_files_is_not_called_one() -> None:
    [said] = [
        f
        for f in convert(f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config: my_settings\n").findings
        if f.subject == "fsdp_config"
    ]
    assert "If there is none" in said.message
    assert "if it is a file" in (said.hint or "")


@pytest.mark.parametrize("value", ["''", "false", "[]", "null"])
def test_fsdp_that_is_off_is_left_alone(value: str) -> None:
    done = convert(f"{HEAD}fsdp: {value}\nfsdp_config:\n  min_num_params: 5\n")
    assert not done.is_changed
    assert [finding.code for finding in done.findings] == ["FM351"]


def test_fsdp2_is_left_alone() -> None:
    done = convert(f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config:\n  version: 2\n")
    assert [finding.code for finding in done.findings] == ["FM347"]


def test_an_unknown_word_is_refused() -> None:
    done = convert(f"{HEAD}fsdp: full_shard auto_warp\n")
    [finding] = [f for f in done.findings if f.code == "FM348"]
    assert "Did you mean `auto_wrap`" in finding.message


@pytest.mark.parametrize(("nodes", "code"), [(1, "FM341"), (None, "FM355"), (2, "FM355")])
def test_hybrid_sharding_needs_a_mesh_in_code(nodes: int | None, code: str) -> None:
    done = convert(f"{HEAD}fsdp: hybrid_shard auto_wrap\n", settings=Settings(nodes=nodes))
    assert code in codes(done, "fsdp")


def test_references_are_kept_and_named() -> None:
    done = convert(f"{HEAD}fsdp: ${{fsdp}}\nfsdp_config: ${{file}}\n")
    assert loaded(done)["fsdp_config"] == "${file}"
    assert codes(done, "fsdp") == codes(done, "fsdp_config") == {"FM346"}


def test_mixed_precision_is_told() -> None:
    for config in ("null", "x.json", "'{\"limit_all_gathers\": true}'", "${file}"):
        text = f"{HEAD}bf16: true\nfsdp: full_shard auto_wrap\nfsdp_config: {config}\n"
        assert codes(convert(text), "bf16") == {"FM354"}, config


def test_size_based_wrapping_in_a_file_of_its_own() -> None:
    config = loaded(convert('{"fsdp_min_num_params": 5}'))
    assert config["auto_wrap_policy"] == "SIZE_BASED_WRAP"
    assert config["reshard_after_forward"] is True


@pytest.mark.parametrize("fsdp", ["${fsdp}", None])
def test_a_strategy_that_is_not_here_is_asked_for(fsdp: str | None) -> None:
    given = {"output_dir": "x", **({"fsdp": fsdp} if fsdp else {}), "fsdp_config": {"min_num_params": 0}}
    done = convert_text(json.dumps(given), framework="hf", key="fsdp_config")
    assert loaded(done)["fsdp_config"]["reshard_after_forward"] is True
    [added] = [f for f in done.findings if f.subject == "fsdp_config.reshard_after_forward"]
    assert "Write false" in added.message
    assert codes(done, "fsdp") == ({"FM346"} if fsdp else {"FM356"})


def test_versions_of_transformers_are_named() -> None:
    done = convert(f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config: {{cpu_offload: true}}\n")
    [told] = [f for f in done.findings if (f.code, f.subject) == ("FM358", "fsdp_config")]
    assert "5.0 and later" in told.message
    assert "5.0 to 5.9 save SHARDED_STATE_DICT" in told.message
    assert "`offload` in `fsdp`" in told.message
    assert "5.10 and later warn that words in `fsdp` will go" in (told.hint or "")
    given = "{version: 1, state_dict_type: SHARDED_STATE_DICT}"
    sharded = convert(f"{HEAD}fsdp: full_shard\nfsdp_config: {given}\n")
    assert not any("5.9" in f.message for f in sharded.findings)


@pytest.mark.parametrize(
    ("kind", "version", "after", "code"),
    [
        ("SHARDED_STATE_DICT", None, "FULL_STATE_DICT", "FM343"),
        ("local", None, "FULL_STATE_DICT", "FM343"),
        ("SHARDED_STATE_DICT", 1, "SHARDED_STATE_DICT", "FM358"),
        ("LOCAL_STATE_DICT", 1, "SHARDED_STATE_DICT", "FM358"),
        ("FULL_STATE_DICT", None, "FULL_STATE_DICT", "FM340"),
    ],
)
def test_a_type_of_state_dicts_that_had_no_effect_does_not_empty_save_model(
    kind: str, version: int | None, after: str, code: str
) -> None:
    given = {"transformer_layer_cls_to_wrap": ["Block"], "fsdp_state_dict_type": kind}
    given |= {"version": version} if version else {}  # type: ignore[dict-item]
    for key, document in (
        ("", given),
        ("fsdp_config.", {"output_dir": "x", "fsdp": WORDS, "fsdp_config": given}),
    ):
        done = convert(json.dumps(document, indent=1), framework="hf")
        config = loaded(done)
        assert config.get("fsdp_config", config)["fsdp_state_dict_type"] == after
        [said] = [f for f in done.findings if f.subject == f"{key}fsdp_state_dict_type"]
        assert said.code == code
        assert ("`trainer.save_model` writes no weights" in f"{said.message} {said.hint}") is (
            code != "FM340"
        )


def test_fsdp1_without_prefetching_is_told() -> None:
    text = f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_config: "
    assert codes(convert(f"{text}{{}}\n"), "fsdp_config.backward_prefetch") == {"FM343"}
    done = convert(f"{text}{{backward_prefetch: backward_pre}}\n")
    assert codes(done, "fsdp_config.backward_prefetch") == {"FM342"}


@pytest.mark.parametrize(
    "config", ["", "fsdp_config:\n  activation_checkpointing: true\n", "fsdp_config: '{}'\n"]
)
def test_former_arguments_move_into_the_config(config: str) -> None:
    text = f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_transformer_layer_cls_to_wrap: Block\n{config}lr: 1\n"
    after = loaded(convert(text))
    inner = after["fsdp_config"]
    inner = json.loads(inner) if isinstance(inner, str) else inner
    assert "fsdp_transformer_layer_cls_to_wrap" not in after
    assert inner["transformer_layer_cls_to_wrap"] == ["Block"]


def test_a_former_number_makes_units_by_size() -> None:
    after = loaded(convert(f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_min_num_params: 100\n"))
    assert after["fsdp_config"]["min_num_params"] == 100
    assert after["fsdp_config"]["auto_wrap_policy"] == "SIZE_BASED_WRAP"


def test_former_arguments_beside_another_file_or_other_classes_are_told() -> None:
    text = f"{HEAD}fsdp: full_shard auto_wrap\nfsdp_transformer_layer_cls_to_wrap: Block\n"
    name = "fsdp_transformer_layer_cls_to_wrap"
    assert codes(convert(f"{text}fsdp_config: x.json\n"), name) == {"FM356"}
    other = convert(f"{text}fsdp_config: {{transformer_layer_cls_to_wrap: [Other]}}\n")
    assert codes(other, name) == {"FM348"}


def test_a_mapping_that_the_user_names_is_converted() -> None:
    text = "learning_rate: 1\nfsdp_config:\n  fsdp_min_num_params: 5\n"
    done = convert_text(text, framework="hf", key="fsdp_config")
    assert [block.state for block in done.blocks] == ["converted"]
    off = convert_text(
        f"{HEAD}fsdp: ''\nfsdp_config: {{min_num_params: 5}}\n", framework="hf", key="fsdp_config"
    )
    assert off.is_changed


def test_old_arguments_that_are_known_only_elsewhere_move_too() -> None:
    text = "output_dir: x\nfsdp: full_shard auto_wrap\nfsdp_min_num_params: ${n}\n"
    done = convert(text + "fsdp_transformer_layer_cls_to_wrap: ${layer}\n")
    config = YAML(typ="safe").load(done.text)["fsdp_config"]
    assert (config["min_num_params"], config["transformer_layer_cls_to_wrap"]) == ("${n}", "${layer}")
    [said] = [finding for finding in done.findings if finding.code == "FM346"]
    assert "`auto_wrap_policy: SIZE_BASED_WRAP`" in str(said.hint)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_auto_wrap_policy": "NO_WRAP"}},
            "TRANSFORMER",
        ),
        ({"fsdp": "full_shard", "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}, "NO_WRAP"),
        ({"fsdp_auto_wrap_policy": "NO_WRAP"}, "TRANSFORMER"),
        ({"fsdp": "full_shard auto_wrap", "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}, ""),
        ({"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, ""),
    ],
)
def test_a_policy_that_fsdp1_did_not_read_is_told(document: dict[str, Any], says: str) -> None:
    beside = {"output_dir": "x"} if "fsdp" in document else {}
    done = convert_text(json.dumps({**beside, **document}), framework="hf")
    [said] = [f for f in done.findings if f.subject.endswith("auto_wrap_policy")]
    assert said.code == ("FM358" if says else "FM341")
    assert f"Write {says}" in (said.hint or "Write ")


@pytest.mark.parametrize("fsdp", [{}, {"output_dir": "x", "fsdp": "${oc.env:FSDP}"}])
def test_full_shard_that_is_presumed_is_said_where_it_is_seen(fsdp: dict[str, Any]) -> None:
    keys = {"fsdp_transformer_layer_cls_to_wrap": "Block"}
    document = {**fsdp, "fsdp_config": keys} if fsdp else keys
    [said] = [f for f in convert_text(json.dumps(document)).findings if f.subject == "fsdp"]
    assert said.fidelity == "changed"
    assert "write false for shard_grad_op" in said.message
    for strategy, other in (("FULL_SHARD", "write false for"), ("SHARD_GRAD_OP", "write true for")):
        keys["fsdp_sharding_strategy"] = strategy  # which FSDP1 does not read
        [said] = [f for f in convert_text(json.dumps(document)).findings if f.subject == "fsdp"]
        assert other in said.message
    del keys["fsdp_sharding_strategy"]
    keys["fsdp_reshard_after_forward"] = "SHARD_GRAD_OP"
    [said] = [f for f in convert_text(json.dumps(document)).findings if f.subject == "fsdp"]
    assert "shard_grad_op." not in said.message


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"output_dir": "x", "fsdp_config": "./conf/fsdp.json"}, "convert ./conf/fsdp.json with `--from hf`"),
        ({"output_dir": "x", "fsdp": "", "fsdp_config": None}, "`fsdp` is empty"),
    ],
)
def test_what_is_not_read_has_no_command_that_converts_nothing(document: dict[str, Any], named: str) -> None:
    [said] = convert_text(json.dumps(document)).findings
    assert said.code == "FM351"
    assert named in said.message
    assert said.hint is None


def test_xla_counts_without_fsdp() -> None:
    refused = convert_text(f"{HEAD}fsdp_config:\n  xla: true\n").findings
    assert "FM350" in {finding.code for finding in refused}
    done = convert(f"{HEAD}fsdp_config:\n  xla: false\n")
    assert [(f.code, "reads at most `xla` of it" in f.message) for f in done.findings] == [("FM351", True)]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("adamw_bnb_8bit", "kernels of bitsandbytes take no DTensors"),
        ("paged_adamw_32bit", "kernels of bitsandbytes take no DTensors"),
        ("adafactor", "a part of each on a rank"),
        ("adamw_torch", None),
        ("adamw_torch_8bit", None),
    ],
)
def test_optimizers_that_stop_at_their_first_step_are_told(name: str, why: str | None) -> None:
    done = convert(f"{HEAD}optim: {name}\nfsdp: full_shard auto_wrap\n")
    found = [f for f in done.findings if f.subject == "optim"]
    assert [f.code for f in found] == (["FM343"] if why else [])
    assert all(why is not None and why in f.message and "adamw_torch" in (f.hint or "") for f in found)
    assert loaded(done)["optim"] == name


@pytest.mark.parametrize(
    ("decay", "code"),
    [("0.1", "FM343"), ("1e-2", "FM343"), ("${DECAY}", "FM343"), ("0.0", "FM342"), ("", "FM342")],
)
def test_flat_parameters_whose_decay_went_by_name_are_told(decay: str, code: str) -> None:
    beside = f"weight_decay: {decay}\n" if decay else ""
    text = f"{HEAD}{beside}fsdp: full_shard auto_wrap\nfsdp_config: {{use_orig_params: false}}\n"
    assert codes(convert(text), "fsdp_config.use_orig_params") == {code}


@pytest.mark.parametrize(
    ("beside", "code"),
    [
        ("load_in_4bit: true", "FM343"),
        ("quantization_bit: 4", "FM343"),
        ("load_in_4bit: false", "FM340"),
        ("quantization_bit: 8", "FM340"),
    ],
)
def test_rank_0_sends_no_weights_in_4_bits(beside: str, code: str) -> None:
    text = f"{HEAD}{beside}\nfsdp: full_shard auto_wrap\nfsdp_config: {{cpu_ram_efficient_loading: true}}\n"
    done = convert(text)
    assert codes(done, "fsdp_config.cpu_ram_efficient_loading") == {code}
    [said] = [f for f in done.findings if f.subject.endswith("efficient_loading")]
    assert "4-bit of bitsandbytes" in said.message


@pytest.mark.parametrize("name", ["fsdp", "fsdp_settings"])
@pytest.mark.parametrize("beside", ["", "output_dir: o\nbf16: true\n"])
def test_a_mapping_that_is_named_is_the_config_whatever_it_is_called(name: str, beside: str) -> None:
    inner = "  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_transformer_layer_cls_to_wrap: Block\n"
    done = convert(f"{beside}{name}:\n{inner}", framework="hf", key=name)
    config = loaded(done)[name]
    assert (config["version"], config["fsdp_reshard_after_forward"]) == (2, False)
    assert bool(codes(done, "bf16") & {"FM354"}) is bool(beside)
    assert codes(done, "fsdp") >= {"FM356"}


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ("", {"transformer_layer_cls_to_wrap": "Block"}),
        (', "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"', {"transformer_layer_cls_to_wrap": "Block"}),
        (', "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"', {"min_num_params": 5}),
    ],
)
def test_a_size_beside_layers_that_are_named(policy: str, after: dict[str, Any]) -> None:
    """Before transformers 5.10 both together stopped the run, so that one had been taken out."""
    text = f'{{"fsdp_min_num_params": 5, "fsdp_transformer_layer_cls_to_wrap": "Block"{policy}}}'
    done = loaded(convert(text))
    assert {
        name.removeprefix("fsdp_"): done[name] for name in done if name.removeprefix("fsdp_") in after
    } == after
    assert ("fsdp_min_num_params" in done) is ("SIZE" in policy)
    assert done.get("auto_wrap_policy", "TRANSFORMER_BASED_WRAP") == "TRANSFORMER_BASED_WRAP"
