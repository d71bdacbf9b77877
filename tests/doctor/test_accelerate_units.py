"""Which parameters units of Accelerate's share; tests/frameworks holds the units against Accelerate."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
from torch import nn

from fsdp_migrate.adapters.engine.shared_embeddings import is_inner_model
from fsdp_migrate.config import ClassWrap, SizeWrap
from fsdp_migrate.doctor.accelerate_units import (
    accelerate_units,
    carved_within_units,
    shared_across_units,
)
from tests.models import Net


pytestmark = pytest.mark.any_torch


class Told(Net):
    """Tells where its embeddings and its head are, as models of transformers do."""

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head.out


def test_a_tie_is_split_by_the_version_that_gives_the_embeddings_alone_a_unit() -> None:
    tied = Told(tied=True)
    found = [shared_across_units(tied, None, version) for version in ("1.13.1", "1.14", "1.15.0")]
    assert [[tie.names for tie in ties] for ties in found] == [
        [],
        [("embed.weight", "head.out.weight")],
        [],
    ]


def test_what_is_held_outside_of_the_carved_modules_is_shared() -> None:
    model = Told(tied=True)
    model.extra = model.head.out.weight
    (tie,) = shared_across_units(model, ClassWrap(classes=("Block",)), "1.15")
    assert tie.names == ("extra", "embed.weight", "head.out.weight")
    assert tie.units == ("", "the unit of embeddings and head")
    model.get_input_embeddings = model.get_output_embeddings = lambda: None  # type: ignore[assignment,return-value]
    assert shared_across_units(model, ClassWrap(classes=("Block",)), "1.15") == []


def test_units_of_the_policy() -> None:
    model = Net()
    (first, second) = model.blocks
    assert accelerate_units(model, ClassWrap(classes=("Block", "Absent")), "1.15").keys() == {first, second}
    model._no_split_modules = ["Head"]  # type: ignore[assignment]
    assert accelerate_units(model, None, "1.15").keys() == {model.head}
    # Accelerate counts what is in units below too.
    assert model.blocks in accelerate_units(model, SizeWrap(min_num_params=1), "1.15")
    # `self.head` of the policy holds the weight first, and the embeddings are a unit of their own.
    tied = Told(tied=True)
    tied._no_split_modules = ["Head"]  # type: ignore[assignment]
    assert [tie.units for tie in shared_across_units(tied, None, "1.13")] == [("", "head")]


def test_a_model_that_has_no_embeddings_to_tell_of() -> None:
    class Mute(nn.Sequential):
        base_model_prefix = "0"

        def get_input_embeddings(self) -> nn.Module:
            raise NotImplementedError

    model = Mute(nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2), nn.LayerNorm(2)))
    inner = model[0]
    assert isinstance(inner, nn.Sequential)
    assert accelerate_units(model, None, "1.15").keys() == {inner[2]}


def test_the_names_of_inner_models_are_those_of_units_that_hold_the_embeddings() -> None:
    transformers = pytest.importorskip("transformers")
    told: dict[bool, list[str]] = defaultdict(list)
    wholes = ["Llama", "OPT", "Mixtral", "GPTNeoX", "Gemma2"]
    for whole in (*(f"{name}ForCausalLM" for name in wholes), "LlavaForConditionalGeneration"):
        kind = getattr(transformers, whole)
        with torch.device("meta"):
            model = kind(kind.config_class())
        for name in {type(module).__name__ for module in model.modules()} - {whole, "Embedding"}:
            is_held = bool(carved_within_units(model, ClassWrap(classes=(name,)), "1.15"))
            told[is_held].append(name)
            # A head, or a last norm, is carved as it is: not within a unit.
            assert is_inner_model(name) is is_held, f"{name} of {whole}"
    assert {"LlamaModel", "GPTNeoXModel", "OPTDecoder", "LlavaModel"} <= set(told[True])
    assert {"CLIPVisionModel", "LlamaDecoderLayer"} <= set(told[False])
