"""What the class to wrap tells of a model, to each framework that runs Accelerate's FSDP2."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.source import scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def of_accelerate(classes: str) -> dict[str, object]:
    keys = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": classes}
    return {"distributed_type": "FSDP", "fsdp_config": keys}


def of_hf(classes: str) -> dict[str, object]:
    keys = {"transformer_layer_cls_to_wrap": classes.split(",")}
    return {"output_dir": "x", "fsdp": "full_shard auto_wrap", "fsdp_config": keys}


@pytest.mark.parametrize(
    ("classes", "is_told"),
    [
        ("T5Block", True),
        ("MT5Block", True),
        ("BartEncoderLayer,BartDecoderLayer", True),
        ("M2M100DecoderLayer", True),
        ("ProphetNetEncoderLayer,ProphetNetDecoderLayer", True),
        ("BertLayer", True),
        ("XLMRobertaLayer", True),
        ("DebertaV2Layer", True),
        ("AlbertLayerGroup", True),
        ("ElectraLayer", False),
        ("EsmLayer", False),
        ("LlamaDecoderLayer", False),
        ("GPT2Block", False),
        ("WhisperDecoderLayer", False),
    ],
)
def test_parameters_that_two_modules_hold_are_told(classes: str, is_told: bool) -> None:
    for document in (of_accelerate(classes), of_hf(classes)):
        done = convert_text(json.dumps(document))
        told = [f for f in done.findings if f.code == "FM343" and "another FSDP group" in f.message]
        assert len(told) == is_told
        assert all("write `del model.get_input_embeddings" in str(f.hint) for f in told)


@pytest.mark.parametrize(
    ("layer", "model", "is_told"),
    [
        ("BertLayer", "BertForSequenceClassification(c)", False),
        ("RobertaLayer", "AutoModelForTokenClassification.from_pretrained(p)", False),
        ("BertLayer", "BertForMaskedLM(c)", True),
        ("BertLayer", "AutoModelForMaskedLM.from_pretrained(p); BertForSequenceClassification(c)", True),
        ("BertLayer", "BertModel(c)", True),
        # Its encoder and decoder hold the embeddings, whatever its head is.
        ("BartDecoderLayer", "BartForSequenceClassification(c)", True),
    ],
)
def test_a_classifier_has_no_decoder_whose_bias_is_shared(
    layer: str, model: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "model.py").write_text(f"m = {model}\n")
    for number, document in enumerate((of_accelerate(layer), of_hf(layer))):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(document))
        found = convert_config_file(file).conversion.findings
        told = [f for f in found if "another FSDP group" in f.message]
        assert len(told) == is_told
        assert all(len(f"{f.message} {f.hint}") < 750 for f in told)
    source = (
        f"import transformers\nm = {model}\nargs = transformers.TrainingArguments('o', fsdp='full_shard', "
    )
    source += f"fsdp_config={{'transformer_layer_cls_to_wrap': '{layer}'}})\n"
    assert any("another FSDP group" in use.becomes for use in scan_source(source)) == is_told


@pytest.mark.parametrize(
    ("classes", "is_told"),
    [
        ("BertLayer,BertEmbeddings", True),
        ("ViTEmbeddings", True),
        ("LlamaModel,LlamaDecoderLayer", True),
        ("OPTDecoder,OPTDecoderLayer", True),
        ("Qwen2_5_VisionTransformerPretrainedModel,Qwen2_5_VLDecoderLayer", False),
        ("CLIPVisionModel,LlamaDecoderLayer", False),
        ("GPT2LMHeadModel,GPT2Block", False),
        ("BertLayer", False),
        ("ViTLayer,ViTPatchEmbeddings", False),
        ("LlamaRotaryEmbedding", False),
        ("Embedding", False),
    ],
)
def test_a_unit_that_holds_the_embeddings_is_told(classes: str, is_told: bool) -> None:
    for document in (of_accelerate(classes), of_hf(classes)):
        done = convert_text(json.dumps(document))
        told = [f for f in done.findings if f.code == "FM343" and "Invariant encountered" in f.message]
        assert [f.subject.endswith("transformer_layer_cls_to_wrap") for f in told] == [True] * is_told


INNER = """
class Inner(nn.Module):
    def __init__(self):
        self.parts = nn.ModuleDict(dict(wte=nn.Embedding(2, 2), norm=nn.LayerNorm(2)))
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
"""
WHOLE = """
class Whole(PreTrainedModel):
    def __init__(self):
        self.inner = Inner()
    def get_input_embeddings(self):
        return self.inner.parts.wte
"""


@pytest.mark.parametrize(
    ("name", "source", "is_told"),
    [
        ("Inner", f"{INNER}{WHOLE}", True),
        ("InnerModel", f"{INNER}{WHOLE}".replace("Inner", "InnerModel"), True),
        ("Changed", "class Changed(LlamaModel):\n    pass\n", True),
        ("Inner", f"class Base{INNER[12:]}class Inner(Base):\n    pass\n{WHOLE}", True),
        # Labels that no getter gives, a tower, and the model itself, which is the root.
        ("Inner", f"{INNER.replace('wte', 'labels')}{WHOLE}", False),
        (
            "ActionModel",
            "class ActionModel(nn.Module):\n    def __init__(self):\n        self.a = 1\n",
            False,
        ),
        ("Inner", f"{INNER}    def get_input_embeddings(self):\n        return self.parts.wte\n", False),
    ],
)
def test_a_class_of_the_project_that_holds_the_embeddings_is_told(
    name: str, source: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").touch()
    (tmp_path / "model.py").write_text(source)
    for number, document in enumerate((of_accelerate(f"{name},Block"), of_hf(f"{name},Block"))):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(document))
        found = convert_config_file(file).conversion.findings
        assert any("Invariant encountered" in f.message for f in found) is is_told


@pytest.mark.parametrize(
    ("classes", "code"),
    [
        ("BartDecoderLayer", "FM343"),
        ("PegasusEncoderLayer", "FM343"),
        ("EsmLayer", "FM343"),
        ("T5Block", "FM340"),
        ("SwitchTransformersBlock", "FM340"),
        ("PegasusXDecoderLayer", "FM340"),
        ("LlamaDecoderLayer", "FM340"),
    ],
)
def test_models_of_transformers_with_buffers_in_their_state_are_told(classes: str, code: str) -> None:
    done = convert_text(json.dumps(of_accelerate(classes)))
    [said] = [f for f in done.findings if f.subject.endswith("fsdp_cpu_ram_efficient_loading")]
    assert said.code == code


@pytest.mark.parametrize("policy", ["SIZE_BASED_WRAP", "NO_WRAP"])
def test_classes_in_place_of_a_size_are_those_of_each_model(policy: str) -> None:
    keys = {"fsdp_auto_wrap_policy": policy, "fsdp_min_num_params": 1500}
    done = convert_text(json.dumps({"distributed_type": "FSDP", "fsdp_config": keys}))
    hints = " ".join(str(f.hint) for f in done.findings)
    by_size = policy == "SIZE_BASED_WRAP"
    assert ("`Could not find the transformer layer class`" in hints and "write NO_WRAP" in hints) is by_size
