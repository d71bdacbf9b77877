"""FSDP flags in a shell command."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest

from fsdp_migrate.adapters.conversion.command import convert_command
from fsdp_migrate.adapters.conversion.flags import read_flags
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.errors import ConfigError
from tools import config_tables


pytestmark = pytest.mark.any_torch


def convert(command: str, **options: Any) -> str:
    done = convert_command(command, **options)
    assert convert_command(done.text, **options).text == done.text
    return done.text


def test_flags_of_hf_trainer() -> None:
    command = (
        'torchrun --nproc_per_node 8 train.py \\\n  --bf16 True --fsdp "full_shard auto_wrap" \\\n  --out x'
    )
    text = convert(command)
    before, _, config = text.partition(" --fsdp_config ")
    assert before == command.partition(" \\\n  --out")[0]
    assert json.loads(shlex.split(config)[0]) == {
        "version": 2,
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
    }
    assert text.endswith(" \\\n  --out x")


@pytest.mark.parametrize(
    "launch",
    [
        "python t.py --fsdp full_shard",
        "accelerate launch --use_fsdp --fsdp_offload_params true t.py --output_dir o",
        "accelerate launch --config_file c.yaml t.py --output_dir o",
    ],
)
def test_an_optimizer_that_stops_at_its_first_step_is_told(launch: str) -> None:
    done = convert_command(f"{launch} --optim=paged_lion_8bit --bf16")
    assert [(each.subject, each.code) for each in done.findings if "bitsandbytes" in each.message] == [
        ("optim", "FM343")
    ]
    assert "--optim=paged_lion_8bit" in done.text


def test_json_in_a_flag_and_a_strategy_that_fsdp2_lacks() -> None:
    text = convert(
        """python x.py --fsdp='hybrid_shard auto_wrap' --fsdp_config '{"fsdp_use_orig_params": true}'"""
    )
    words = shlex.split(text)
    assert words[2] == "--fsdp=full_shard auto_wrap"
    assert json.loads(words[4])["version"] == 2
    assert "use_orig_params" not in text


def test_former_flags_of_hf_trainer_move_into_the_config() -> None:
    text = convert(
        "python x.py --fsdp full_shard auto_wrap --fsdp_transformer_layer_cls_to_wrap Block --lr 1"
    )
    assert "--fsdp_transformer_layer_cls_to_wrap" not in text
    config = json.loads(shlex.split(text)[shlex.split(text).index("--fsdp_config") + 1])
    assert config["fsdp_transformer_layer_cls_to_wrap"] == "Block"
    assert text.endswith(" --lr 1")


def test_another_file_is_kept_and_named() -> None:
    done = convert_command("python x.py --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json")
    assert not done.is_changed
    assert "FM356" in {finding.code for finding in done.findings}


_TOLD_ELSEWHERE = "accelerate launch --mixed_precision bf16 --config_file c.yaml x.py"
_BY_FLAGS = "accelerate launch --use_fsdp --fsdp_offload_params true x.py"


@pytest.mark.parametrize(
    ("command", "subject"),
    [
        ("python x.py --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json --bf16 True", "bf16"),
        ("python x.py --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json --fp16", "fp16"),
        ("python x.py --fsdp 'full_shard auto_wrap' --fsdp_config fsdp.json --bf16 False", None),
        ("python x.py --fsdp full_shard --fsdp_config '{\"min_num_params\": 4}' --bf16", "bf16"),
        (_TOLD_ELSEWHERE, "mixed_precision"),
        ("accelerate launch --use_fsdp --mixed_precision fp16 x.py", "mixed_precision"),
        ("accelerate launch --config_file c.yaml x.py --per_device_train_batch_size 1 --bf16", "bf16"),
        ("accelerate launch --config_file c.yaml x.py --bf16", None),
        ("accelerate launch --config_file c.yaml x.py", None),
        (f"{_BY_FLAGS} --output_dir o --bf16 True", "bf16"),
        (f"{_BY_FLAGS} --bf16", None),
        (f"{_BY_FLAGS} --output_dir o --fsdp full_shard --fp16", "fp16"),
        ("accelerate launch --use_fsdp x.py --output_dir o --fp16", "fp16"),
    ],
)
def test_precision_is_told_wherever_the_settings_stand(command: str, subject: str | None) -> None:
    done = convert_command(command)
    assert [f.subject for f in done.findings if f.code == "FM354"] == ([subject] if subject else [])
    converted = convert_command(_TOLD_ELSEWHERE, settings=Settings(is_converted=lambda name: True))
    assert [f.code for f in converted.findings] == ["FM347"]


def test_flags_of_accelerate_launch() -> None:
    text = convert(
        "accelerate launch --use_fsdp --num_processes=8 \\\n  --fsdp_sharding_strategy SHARD_GRAD_OP \\\n"
        "  --fsdp_use_orig_params true --fsdp_offload_params TRUE train.py --lr 1e-5"
    )
    assert text == (
        "accelerate launch --use_fsdp --num_processes=8 \\\n  --fsdp_reshard_after_forward false "
        "--fsdp_offload_params true --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT "
        "train.py --lr 1e-5"
    )


def test_hybrid_sharding_of_accelerate_launch() -> None:
    command = "accelerate launch --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD x.py"
    text = convert(command, settings=Settings(16, 2))
    assert "--parallelism_config_dp_shard_size 8" in text
    assert "--use_parallelism_config" in text


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python x.py --lr 1", "no FSDP flags"),
        ("python x.py --fsdp_num_replicas 2 --fsdp_shard_degree 4", "the script's own"),
        ("python x.py --fsdp full_shard --fsdp_config '{\"a\": }'", "line 1, column 7"),
    ],
)
def test_bad_commands_are_errors(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        convert_command(command)


@pytest.mark.parametrize("end", [")", " )", " && echo done", "; echo done", " > log.txt", " 2>&1 | tee log"])
def test_what_the_shell_reads_ends_a_value(end: str) -> None:
    text = convert(f"arguments+=( --bf16 --fsdp auto_wrap full_shard{end}")
    assert text.startswith("arguments+=( --bf16 --fsdp auto_wrap full_shard --fsdp_config '{")
    assert text.endswith(end)


@pytest.mark.parametrize("more", ["$MORE", '"$MORE"', "${MORE[@]}"])
def test_variables_behind_a_value_are_no_part_of_it(more: str) -> None:
    done = convert_command(f"torchrun t.py --fsdp 'full_shard auto_wrap' {more} --lr 1")
    assert {finding.code for finding in done.findings if finding.subject == "fsdp"} == {"FM340"}


def test_a_substitution_is_one_word() -> None:
    command = "accelerate launch --num_processes $(nproc --all) --fsdp_sharding_strategy $(cat x) y.py"
    assert read_flags(command)[-1].value == "$(cat x)"


def test_a_file_in_place_of_options_is_named() -> None:
    done = convert_command("swift sft --fsdp conf/f.json")
    assert not done.is_changed
    [found] = [finding for finding in done.findings if finding.subject == "fsdp"]
    assert (found.code, found.hint) == ("FM356", "If it does: `fsdp-migrate config conf/f.json --from hf`.")
    assert "conf/f.json is a file, which ms-swift reads" in found.message


def test_flags_without_values() -> None:
    flags = read_flags("x --fsdp --bf16 --a=b\\ c -n 3")
    assert [(flag.name, flag.value) for flag in flags] == [("fsdp", None), ("bf16", None), ("a", "b c")]


def test_the_page_of_keys_is_up_to_date() -> None:
    assert config_tables.main(["--check"]) == 0, "run `python tools/config_tables.py`"


def test_a_flag_that_newer_versions_refuse_is_not_said_to_be_ignored() -> None:
    flags = "--use_fsdp --fsdp_backward_prefetch_policy BACKWARD_PRE"
    done = convert_command(f"accelerate launch {flags} t.py")
    [said] = [f for f in done.findings if f.subject.endswith("prefetch_policy")]
    assert "refuse this flag; older ones prefetched by it" in said.message
    assert "one more unit" not in said.message


@pytest.mark.parametrize(("value", "code"), [("true", "FM340"), ("false", "FM340"), ("True", "FM341")])
def test_a_word_of_a_flag_that_stays_is_kept(value: str, code: str) -> None:
    done = convert_command(f"accelerate launch --use_fsdp --fsdp_offload_params {value} t.py")
    assert f"--fsdp_offload_params {value.lower()} " in done.text
    assert [f.code for f in done.findings if f.subject.endswith("offload_params")] == [code]


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        ("--fsdp_transformer_layer_cls_to_wrap $A", '"fsdp_transformer_layer_cls_to_wrap": "Layer"'),
        ("--fsdp_transformer_layer_cls_to_wrap='$A'", '"fsdp_transformer_layer_cls_to_wrap": "$A"'),
        ('--fsdp_transformer_layer_cls_to_wrap "${A}"', '"fsdp_transformer_layer_cls_to_wrap": "Layer"'),
        ("--fsdp_min_num_params $N", '"fsdp_min_num_params": 7'),
        (
            "--fsdp_config '{\"transformer_layer_cls_to_wrap\": \"'$A'\"}'",
            '"transformer_layer_cls_to_wrap": "Layer"',
        ),
    ],
)
def test_variables_that_the_shell_expands_are_expanded_in_the_json_too(flags: str, config: str) -> None:
    command = f'torchrun t.py --output_dir o --bf16 --fsdp "full_shard auto_wrap" {flags}'
    done = convert_command(command)
    script = f"A=Layer N=7\ntorchrun() {{ printf '%s\\n' \"$@\"; }}\n{done.text}"
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
    [written] = [line for line in told.splitlines() if line.startswith("{")]
    assert json.loads(written)["version"] == 2
    assert config in written
    assert convert_command(done.text).text == done.text


def test_a_variable_in_a_list_of_the_json_is_kept() -> None:
    flags = """--fsdp "full_shard auto_wrap" --fsdp_config '{"transformer_layer_cls_to_wrap": ["'"$A"'"]}'"""
    done = convert_command(f"torchrun t.py --output_dir o {flags}")
    assert """'{"transformer_layer_cls_to_wrap": ["'"$A"'"], "version": 2""" in done.text
    assert {f.code for f in done.findings if f.subject.endswith("cls_to_wrap")} == {"FM346"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--output_dir o", "FM342"),
        ("--output_dir o --weight_decay 0.0", "FM342"),
        ("", "FM343"),
        ("--output_dir o --weight_decay 0.1", "FM343"),
        ("--output_dir o --weight_decay $W", "FM343"),
        ("--output_dir o --weight_decay 0.1 --use_peft", "FM342"),
        ("--output_dir o --weight_decay 0.1 --use_peft --lora_modules_to_save $M", "FM343"),
    ],
)
def test_flat_parameters_that_nothing_decays_are_not_told(arguments: str, code: str) -> None:
    done = convert_command(f"accelerate launch --use_fsdp --fsdp_use_orig_params false t.py {arguments}")
    assert [f.code for f in done.findings if f.subject.endswith("use_orig_params")] == [code]
