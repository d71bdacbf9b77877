"""Which configs decayed FSDP1's flat parameters otherwise than FSDP2's; of LoRA alone they are alike."""

from __future__ import annotations

import json

import pytest

from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.adapters.engine.settings import Settings


pytestmark = pytest.mark.any_torch

HF = "output_dir: out\nper_device_train_batch_size: 1\nweight_decay: 0.1\nfsdp: full_shard auto_wrap\n"
AXOLOTL = "base_model: x/y\nmicro_batch_size: 1\nweight_decay: 0.01\nfsdp: [full_shard]\n"
ORIGINAL = "fsdp_config: {use_orig_params: false}\n"


def code_of(text: str) -> str:
    """Return the code of what is said of the original parameters."""
    found = [f.code for f in convert_text(text).findings if f.subject.endswith("use_orig_params")]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("beside", "code"),
    [
        ("use_peft: true", "FM342"),
        ("finetuning_type: lora\nadditional_target: embed_tokens,lm_head", "FM342"),
        ("use_peft: true\nlora_modules_to_save: []", "FM342"),
        ("use_peft: false", "FM343"),
        ("use_peft: true\nlora_modules_to_save: [score, norm]", "FM343"),
        ("train_type: lora\nlora_bias: all", "FM343"),
        ("finetuning_type: full", "FM343"),
    ],
)
def test_a_trainers_config(beside: str, code: str) -> None:
    assert code_of(f"{HF}{beside}\n{ORIGINAL}") == code


@pytest.mark.parametrize(
    ("beside", "code"),
    [
        ("adapter: lora\nlora_target_linear: true", "FM342"),
        ("adapter: qlora\nlora_modules_to_save: [embed_tokens, lm_head]", "FM342"),
        ("adapter: lora\nlora_modules_to_save: [norm]", "FM343"),
        ("adapter: lora\nunfrozen_parameters: [bias]", "FM343"),
        ("adapter:", "FM343"),
    ],
)
def test_a_config_of_axolotls(beside: str, code: str) -> None:
    assert code_of(f"{AXOLOTL}{beside}\n{ORIGINAL}") == code


@pytest.mark.parametrize(("given", "code"), [("false", "FM343"), (False, "FM343"), (True, "FM342")])
def test_a_file_of_fsdp_config_alone_does_not_show_the_decay(given: object, code: str) -> None:
    text = json.dumps({"transformer_layer_cls_to_wrap": "GPT2Block", "use_orig_params": given})
    [said] = [f for f in convert_text(text, framework="hf").findings if f.subject == "use_orig_params"]
    assert said.code == code
    assert ("the optimizer has one group" in said.message) is (code == "FM343")
    alike = convert_text(text, framework="hf", settings=Settings(decays_alike=lambda: True))
    assert [f.code for f in alike.findings if f.subject == "use_orig_params"] == ["FM342"]
