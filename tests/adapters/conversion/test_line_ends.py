"""Shell scripts whose lines end as on Windows, in all of them or in some."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.conversion.command import convert_command, convert_script, settings_in_script


pytestmark = pytest.mark.any_torch

HF = (
    'torchrun t.py --output_dir o \\\n  --fsdp "full_shard auto_wrap" \\\n'
    "  --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer \\\n  --bf16 True\npython after.py\n"
)
LAUNCH = "set -e\naccelerate launch --use_fsdp \\\n  --fsdp_sharding_strategy 2 \\\n  t.py --lr 1\n"
FILE = "torchrun t.py --fsdp 'full_shard offload' \\\n  --fsdp_config c.json \\\n  --lr 1\n"
ARRAY = (
    "A=(\n  --use_fsdp # on\n  --fsdp_sharding_strategy 1\n)\n# why\naccelerate launch ${A[@]} \\\n  t.py\n"
)
WRITTEN = (
    "cat > c.yaml <<E\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 1\n  # why\nE\n"
    + LAUNCH
)
HERE = "cat > c.yaml <<E\nfsdp_config:\n  a: 1\nE\n" + LAUNCH


@pytest.mark.parametrize("text", [HF, LAUNCH, FILE, ARRAY, HERE, WRITTEN])
def test_carriage_returns_stay_and_change_nothing_else(text: str) -> None:
    crlf = text.replace("\n", "\r\n")
    wanted, done = convert_script(text), convert_script(crlf)
    assert done.text == wanted.text.replace("\n", "\r\n")
    assert done.source == crlf
    assert (done.blocks, done.findings) == (wanted.blocks, wanted.findings)
    assert settings_in_script(crlf) == settings_in_script(text)


def test_lines_that_end_in_two_ways_keep_both() -> None:
    done = convert_script(LAUNCH.replace("\n", "\r\n", 2))
    two = "--fsdp_reshard_after_forward false --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT"
    assert done.text == LAUNCH.replace("--fsdp_sharding_strategy 2", two).replace("\n", "\r\n", 2)


def test_a_command_of_several_lines_keeps_its_line_ends() -> None:
    command = HF.partition("\npython")[0]
    assert convert_command(command.replace("\n", "\r\n")).text == convert_command(command).text.replace(
        "\n", "\r\n"
    )
