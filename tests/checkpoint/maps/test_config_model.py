"""The names under which from_pretrained finds what is stored, by the config.json of a model."""

from __future__ import annotations

import json
import sys

import pytest

from fsdp_migrate.checkpoint_convert.maps.config_model import ConfigModel, UnknownModel, model_of_config


_TINY = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 8}


def test_names_with_a_head_without_one_and_tied_ones_are_found() -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **_TINY}
    model = model_of_config(json.dumps(config).encode())
    assert isinstance(model, ConfigModel)
    assert (model.title, model.prefix) == ("GPT2LMHeadModel", "transformer")
    own = [name for name in model.names if name != "lm_head.weight"]
    assert model.lacking(model.found(own)) == []
    assert model.lacking(model.found(name.removeprefix("transformer.") for name in own)) == []
    assert len(model.lacking(model.found(f"lm.{name}" for name in own))) == len(model.needed)


def test_older_names_are_found_by_the_tables_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", minversion="5")
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    config = transformers.MixtralConfig(**sizes, **heads, architectures=["MixtralForCausalLM"])
    model = model_of_config(config.to_json_string(use_diff=False).encode())
    assert isinstance(model, ConfigModel)
    moe = "model.layers.0.block_sparse_moe"
    old = [f"{moe}.experts.{n}.w{w}.weight" for n in range(2) for w in (1, 2, 3)] + [f"{moe}.gate.weight"]
    found = model.found(old)
    assert all(found.values())
    assert not any("mlp" in name for name in model.lacking(found))


def _llama(**more: object) -> tuple[ConfigModel, list[str]]:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.LlamaConfig(**sizes, **heads, architectures=["LlamaForCausalLM"], **more)
    model = model_of_config(config.to_json_string(use_diff=False).encode())
    assert isinstance(model, ConfigModel)
    return model, [name for name in model.names if name != "lm_head.weight"]


@pytest.mark.parametrize(("is_tied", "lacking"), [(True, []), (False, ["lm_head.weight"])])
def test_what_may_be_tied_and_is_not_has_to_be_stored(is_tied: bool, lacking: list[str]) -> None:
    model, stored = _llama(tie_word_embeddings=is_tied)
    assert model.lacking(model.found(stored)) == lacking


def test_names_that_every_model_of_transformers_once_had_are_found() -> None:
    pytest.importorskip("transformers", minversion="5")
    sizes = {"vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "bert", "architectures": ["BertForMaskedLM"], **sizes}
    model = model_of_config(json.dumps(config).encode())
    assert isinstance(model, ConfigModel)
    renamed = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    old = {name.replace(*renamed[0]).replace(*renamed[1]) for name in model.names}
    assert old != model.names
    assert model.lacking(model.found(old)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"model_type": "gpt2", "auto_map": {}}', "the code of its model lies beside it"),
        ('{"model_type": "gpt2", "quantization_config": {}}', "as it quantizes them"),
        ("[]", "no `model_type`"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("{}", "no `model_type`"),
    ],
)
def test_what_is_no_config_or_has_code_of_its_own_tells_nothing(text: str, why: str) -> None:
    found = model_of_config(text.encode())
    assert isinstance(found, UnknownModel)
    assert why in found.why
    assert found.hint is None


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"model_type": "of nobody"}, "ValueError: "),
        ({"n_head": 3}, "ValueError: "),
        ({"n_embd": "8"}, "Error: "),
    ],
)
def test_what_transformers_refuses_is_said_in_its_words(more: dict[str, object], why: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **_TINY, **more}
    found = model_of_config(json.dumps(config).encode())
    assert isinstance(found, UnknownModel)
    assert found.why.startswith(f"transformers {transformers.__version__} does not make a model of it: ")
    assert why in found.why
    assert "\n" not in found.why
    assert found.hint is not None


@pytest.mark.parametrize("architectures", [["GPT2Config"], ["pipeline"], [7], "GPT2LMHeadModel", 7, None, []])
def test_a_class_that_is_no_model_leaves_the_head_open(architectures: object) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "architectures": architectures, **_TINY}
    model = model_of_config(json.dumps(config).encode())
    assert isinstance(model, ConfigModel)
    assert (model.title, model.is_guess) == ("GPT2Model", True)


def test_without_transformers_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    found = model_of_config(json.dumps({"model_type": "gpt2", **_TINY}).encode())
    assert isinstance(found, UnknownModel)
    assert "transformers" in found.why
    assert found.hint is not None
    assert "Install" in found.hint
