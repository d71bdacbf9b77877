"""Models of a project whose encoder and decoder hold the embeddings: Accelerate's FSDP2 stops at them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.any_torch

CONFIG = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
NAMED = CONFIG + "  fsdp_transformer_layer_cls_to_wrap: {}\n"
ARGUMENTS = (
    "model_name_or_path: {}\noutput_dir: o\nper_device_train_batch_size: 1\nfsdp: full_shard auto_wrap\n"
)
TRAINS = "model = {}\ntrainer = Seq2SeqTrainer(model=model, args=args)\ntrainer.train()\n"


def said(folder: Path, config: str, source: str, name: str = "train.py") -> list[str]:
    (folder / "setup.py").write_text("")
    (folder / "run.yaml").write_text(config)
    (folder / name).write_text(source)
    done = convert_config_file(folder / "run.yaml").conversion
    return [
        f.message for f in done.findings if f.code == "FM343" and "the encoder and the decoder" in f.message
    ]


@pytest.mark.parametrize(
    ("made", "is_said"),
    [
        ("T5ForConditionalGeneration.from_pretrained('t5-base')", True),
        ("AutoModelForSeq2SeqLM.from_config(config)", True),
        ("transformers.MarianMTModel(config)", True),
        ("BartForSequenceClassification(config)", True),
        # An encoder alone, another family, and what is only named.
        ("T5EncoderModel.from_pretrained('t5-base')", False),
        ("AutoModelForCausalLM.from_pretrained('gpt2')", False),
        ("load(T5ForConditionalGeneration)", False),
    ],
)
def test_a_model_that_a_source_trains_where_no_class_is_named(
    made: str, tmp_path: Path, *, is_said: bool
) -> None:
    found = said(tmp_path, CONFIG, TRAINS.format(made))
    assert [each.partition(": ")[0].endswith("in train.py:1") for each in found] == [True] * is_said
    # What only generates by it trains none.
    assert said(tmp_path, CONFIG, f"model = {made}\nmodel.generate(x)\n") == []


def test_a_notebook_beside_the_config_trains_too(tmp_path: Path) -> None:
    cell = {
        "cell_type": "code",
        "source": [TRAINS.format("T5ForConditionalGeneration.from_pretrained('t5')")],
    }
    (one,) = said(tmp_path, CONFIG, json.dumps({"cells": [cell]}), "train.ipynb")
    assert one.startswith("`T5ForConditionalGeneration` in train.ipynb: ")


@pytest.mark.parametrize(("layer", "places"), [("T5Block", ["T5Block"]), ("LlamaDecoderLayer", [])])
def test_where_a_class_is_named_that_decides(layer: str, places: list[str], tmp_path: Path) -> None:
    source = TRAINS.format("T5ForConditionalGeneration.from_pretrained('t5-base')")
    assert [each.partition(": ")[0] for each in said(tmp_path, NAMED.format(layer), source)] == places


@pytest.mark.parametrize(
    ("name", "is_said"),
    [
        ("facebook/bart-large", True),
        ("google/flan-t5-xl", True),
        ("Helsinki-NLP/opus-mt-en-de", True),
        ("t5-small", True),
        ("meta-llama/Llama-3.1-8B", False),
        ("google/t5-v1_1-xxl-encoder", False),
        ("org/ledger-7b", False),
    ],
)
def test_the_model_that_the_trainers_arguments_name(name: str, tmp_path: Path, *, is_said: bool) -> None:
    found = said(tmp_path, ARGUMENTS.format(name), "from transformers import Trainer\n")
    assert [each.startswith(f"`{name}`: ") for each in found] == [True] * is_said
