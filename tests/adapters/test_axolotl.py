"""Axolotl: the list ``fsdp`` and the mapping ``fsdp_config``."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from fsdp_migrate.adapters.axolotl import AXOLOTL_KEYS
from fsdp_migrate.adapters.conversion.text import TextConversion, convert_text
from fsdp_migrate.adapters.engine.base import bare
from fsdp_migrate.adapters.engine.settings import Settings


pytestmark = pytest.mark.any_torch


HEAD = "base_model: x/y\nmicro_batch_size: 1\nbf16: true\n"


def convert(text: str, **options: Any) -> TextConversion:
    done = convert_text(HEAD + text, **options)
    assert {block.framework for block in done.blocks} == {"axolotl"}
    assert convert_text(done.text, **options).text == done.text
    return done


def loaded(done: TextConversion) -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(done.text)
    return document


EACH_KEY: list[tuple[str, str, Any, str]] = [
    ("fsdp_version", "1", None, "FM341"),
    ("fsdp_sharding_strategy", "SHARD_GRAD_OP", None, "FM341"),
    ("reshard_after_forward", "true", True, "FM340"),
    ("fsdp_offload_params", "'true'", True, "FM341"),
    ("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP", "FM341"),
    ("fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer", "LlamaDecoderLayer", "FM341"),
    ("fsdp_min_num_params", "1e8", 100000000, "FM341"),
    ("fsdp_state_dict_type", "SHARDED_STATE_DICT", "SHARDED_STATE_DICT", "FM341"),
    ("final_state_dict_type", "FULL_STATE_DICT", "FULL_STATE_DICT", "FM340"),
    ("fsdp_cpu_ram_efficient_loading", "true", True, "FM341"),
    ("cpu_offload_pin_memory", "false", False, "FM340"),
    ("fsdp_activation_checkpointing", "true", True, "FM341"),
    ("mixed_precision_policy", "bf16", "bf16", "FM340"),
    ("fsdp_sync_module_states", "true", None, "FM343"),
    ("fsdp_use_orig_params", "false", None, "FM342"),
    ("fsdp_limit_all_gathers", "true", None, "FM342"),
    ("fsdp_backward_prefetch", "BACKWARD_PRE", None, "FM342"),
    ("fsdp_backward_prefetch_policy", "BACKWARD_POST", None, "FM343"),
    ("fsdp_forward_prefetch", "false", None, "FM342"),
    ("fsdp_something", "1", None, "FM345"),
]


@pytest.mark.parametrize(("key", "value", "after", "code"), EACH_KEY)
def test_each_key(key: str, value: str, after: Any, code: str) -> None:
    done = convert(f"fsdp_config:\n  {key}: {value}\n")
    found = loaded(done)
    assert found["fsdp_version"] == 2
    assert found["fsdp_config"].get(bare(key)) == after
    assert {f.code for f in done.findings if f.subject == f"fsdp_config.{key}"} == {code}


def test_every_key_of_the_table_is_tried_above() -> None:
    assert {key.name for key in AXOLOTL_KEYS} <= {bare(key) for key, *_ in EACH_KEY}


def test_the_list_becomes_the_version_in_its_place() -> None:
    done = convert(
        "fsdp:  # deprecated\n  - full_shard\n  - auto_wrap\nfsdp_config:\n"
        "  fsdp_transformer_layer_cls_to_wrap: A\ntokens: 1\n"
    )
    assert done.text == HEAD + (
        "fsdp_version: 2\nfsdp_config:\n  transformer_layer_cls_to_wrap: A\n  reshard_after_forward: true\n"
        "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  state_dict_type: FULL_STATE_DICT\ntokens: 1\n"
    )


def test_a_list_alone_gets_a_config() -> None:
    found = loaded(convert("fsdp: [shard_grad_op, auto_wrap, offload]\n"))
    assert found["fsdp_config"] == {
        "reshard_after_forward": False,
        "offload_params": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "state_dict_type": "FULL_STATE_DICT",
    }
    assert "fsdp" not in found


def test_hybrid_sharding_gets_its_mesh_or_is_refused() -> None:
    text = "fsdp_config:\n  sharding_strategy: HYBRID_SHARD\n"
    assert "FM352" in {f.code for f in convert(text).findings}
    found = loaded(convert(text, settings=Settings(16, 2)))
    assert (found["dp_replicate_size"], found["dp_shard_size"]) == (2, 8)
    assert "dp_shard_size" not in loaded(convert(text, settings=Settings(nodes=1)))


def test_optimizers_that_axolotl_refuses_are_told() -> None:
    for name in ("adamw_8bit", "adamw_bnb_8bit"):
        done = convert(f"optimizer: {name}\nfsdp: [full_shard]\n")
        (found,) = (f for f in done.findings if f.subject == "optimizer")
        assert (found.code, "Axolotl refuses it" in found.message) == ("FM343", True)


def test_optimizers_that_axolotl_lets_pass_and_that_stop_at_the_first_step_are_told() -> None:
    for name, why in (("paged_adamw_8bit", "kernels"), ("lion_8bit", "kernels"), ("adafactor", "norms")):
        done = convert(f"optimizer: {name}\nfsdp: [full_shard]\n")
        (found,) = (f for f in done.findings if f.subject == "optimizer")
        assert (found.code, why in found.message) == ("FM343", True)
    for name in ("adamw_torch_fused", "adamw_torch_8bit", "muon", "${OPTIMIZER}"):
        done = convert(f"optimizer: {name}\nfsdp: [full_shard]\n")
        assert not [f for f in done.findings if f.subject == "optimizer"]


def test_nothing_is_added_where_all_settings_stand_elsewhere() -> None:
    done = convert("fsdp: ${FSDP}\nfsdp_config: ${FSDP_CONFIG}\n")
    assert not done.is_changed
    assert {f.subject for f in done.findings if f.code == "FM346"} == {"fsdp", "fsdp_config"}


def test_a_list_that_is_known_only_elsewhere_is_not_empty() -> None:
    done = convert("fsdp: ${fsdp}\nfsdp_config:\n  fsdp_offload_params: true\n")
    assert loaded(done)["fsdp"] == "${fsdp}"
    assert loaded(done)["fsdp_version"] == 2
    assert [f.code for f in done.findings if f.subject == "fsdp"] == ["FM346"]


@pytest.mark.parametrize("text", ["fsdp:\nfsdp_config:\n", "fsdp: []\n"])
def test_what_is_empty_is_left_alone(text: str) -> None:
    done = convert(text)
    assert not done.is_changed
    assert [f.code for f in done.findings] == ["FM351"]


def test_fsdp2_is_left_alone() -> None:
    done = convert("fsdp_version: 2\nfsdp_config:\n  offload_params: false\n")
    assert [f.code for f in done.findings] == ["FM347"]


def test_no_shard_is_told() -> None:
    assert "FM353" in {f.code for f in convert("fsdp: [no_shard]\n").findings}


@pytest.mark.parametrize(
    ("beside", "code"),
    [
        ("load_in_4bit: true\nrl: dpo\n", "FM343"),
        ("load_in_8bit: true\nrl: kto\n", "FM343"),
        ("load_in_4bit: true\nrl: ${RL}\n", "FM346"),
        ("load_in_4bit: true\nrl: grpo\n", None),
        ("load_in_4bit: true\n", None),
        ("load_in_4bit: false\nrl: dpo\n", None),
    ],
)
def test_quantised_base_models_that_axolotl_refuses_in_preference_training_are_told(
    beside: str, code: str | None
) -> None:
    done = convert(f"{beside}fsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_use_orig_params: true\n")
    found = [finding for finding in done.findings if finding.subject == "rl"]
    assert [finding.code for finding in found] == ([code] if code else [])
    assert all("fsdp_version: 1" in (finding.hint or "") for finding in found)


@pytest.mark.parametrize(("beside", "code"), [("adapter: qlora", "FM343"), ("adapter: lora", "FM341")])
def test_rank_0_sends_no_weights_in_4_bits(beside: str, code: str) -> None:
    done = convert(f"{beside}\nfsdp_config:\n  fsdp_cpu_ram_efficient_loading: true\n")
    [said] = [f for f in done.findings if f.subject.endswith("efficient_loading")]
    assert said.code == code
    assert ("sends none of rank 0's weights" in said.message) is (code == "FM343")


@pytest.mark.parametrize(
    ("text", "final", "code"),
    [
        ("fsdp_final_state_dict_type: FULL_STATE_DICT\n{}", "FULL_STATE_DICT", "FM341"),
        ("{}", None, "FM343"),
        ("{}  fsdp_final_state_dict_type: FULL_STATE_DICT\n", "FULL_STATE_DICT", "FM341"),
    ],
)
def test_the_type_of_the_final_save_goes_into_the_block(text: str, final: str | None, code: str) -> None:
    block = "fsdp_config:\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_offload_params: false\n"
    done = convert(text.format(block))
    assert loaded(done)["fsdp_config"].get("final_state_dict_type") == final
    assert "fsdp_final_state_dict_type" not in loaded(done)
    assert {f.code for f in done.findings if f.subject.endswith("final_state_dict_type")} == {code}
