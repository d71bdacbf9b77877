"""Tiny models of transformers' architectures, made of their own configs by the names of the settings."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn


VOCABULARY = 99

_SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size(_.*)?|.*_vocab_size", VOCABULARY),
    (r"(num_)?(key_value|kv)_heads|num_key_value_heads|multi_query_group_num", 2),
    (r"(.*_)?(num_)?(attention_|self_attention_)?heads|n_heads?|num_heads|.*attention_heads", 4),
    (r"(.*_)?head_dim|d_kv|attention_head_size|head_size", 8),
    (r"(num_)?(.*_)?(hidden_)?layers|n_layers?|num_layers|num_blocks|depth", 2),
    (r"(.*_)?ffn_dim|.*intermediate_size|d_ff|d_inner|n_inner|ffn_hidden_size|(.*_)?mlp_dim", 64),
    (
        r"d_model|n_embd|dim|emb_dim|embed_dim|(.*_)?embedding_size|embedding_dim|(.*_)?hidden_size|hidden_dim",
        32,
    ),
    (
        r"max_position_embeddings|n_positions|n_ctx|max_(source|target)_positions|max_seq(_len|uence_length)",
        64,
    ),
    (r"image_size", 32),
    (r"patch_size", 8),
    (r"(num|n)_(local_|routed_)?experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_topk|top_k_experts", 2),
    (r"n_group|topk_group|n_shared_experts|first_k_dense_replace", 1),
    (r"(q|kv)_lora_rank", 16),
    (r"qk_nope_head_dim|qk_rope_head_dim|v_head_dim", 8),
    (r"window_size|sliding_window|attention_window", 16),
)
_HEADS = (
    "ForCausalLM",
    "ForSeq2SeqLM",
    "ForMaskedLM",
    "ForImageClassification",
    "ForSequenceClassification",
    "",
)


@dataclass
class Tiny:
    """A model, the names of the classes that it asks not to split, and what its forward takes."""

    model: Any
    inputs: dict[str, torch.Tensor]
    blocks: set[type[nn.Module]]


def architectures() -> list[str]:
    """Return the types of models that this transformers has a config of."""
    return sorted(transformers.CONFIG_MAPPING)


def make(name: str, rank: int = 0) -> Tiny:
    """Make the tiny model of an architecture, with the same weights on every rank, and the rank's batch.

    Raises whatever transformers raises where such a model cannot be made.
    """
    config = transformers.AutoConfig.for_model(name)
    shrink(config)
    torch.manual_seed(0)
    model = _build(config)
    names = set(getattr(model, "_no_split_modules", None) or ())
    blocks = {type(module) for module in model.modules() if type(module).__name__ in names}
    return Tiny(model, _inputs(model, rank), blocks - {type(model)})


def shrink(config: Any) -> None:
    """Make a config small, and those in it."""
    layers = 2
    for key, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            shrink(value)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            small = next((size for pattern, size in _SIZES if re.fullmatch(pattern, key)), None)
            if small is not None:
                setattr(config, key, min(value, small) if small > 1 else small)
            elif key.endswith("_token_id") and value >= VOCABULARY:
                setattr(config, key, 2)
        elif key in {"layer_types", "mlp_layer_types", "layers_block_type"} and isinstance(value, list):
            setattr(config, key, value[:1] + value[-1:] if len(value) > layers else value)
        elif key.endswith("token_id") and isinstance(value, list):
            setattr(config, key, 2)


def _build(config: Any) -> nn.Module:
    for head in _HEADS:
        maker: Any = getattr(transformers, f"AutoModel{head}")
        if type(config) in maker._model_mapping or not head:
            model: nn.Module = maker.from_config(config)
            return model
    raise AssertionError("the last of them has no name")


def _inputs(model: Any, rank: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    taken = inspect.signature(model.forward).parameters
    config = model.config
    main = model.main_input_name
    inputs: dict[str, torch.Tensor] = {}
    if main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 32)
        channels = getattr(vision, "num_channels", 3)
        size = size if isinstance(size, int) else 32
        inputs["pixel_values"] = torch.randn(2, channels, size, size, generator=generator)
        if "labels" in taken and type(model).__name__.endswith("ForImageClassification"):
            inputs["labels"] = torch.randint(0, 2, (2,), generator=generator)
    elif main == "input_ids":
        tokens = torch.randint(5, VOCABULARY, (2, 12), generator=generator)
        inputs["input_ids"] = tokens
        if "decoder_input_ids" in taken:
            inputs["decoder_input_ids"] = tokens.flip(1).contiguous()
        if "labels" in taken and re.search(
            "For(CausalLM|MaskedLM|ConditionalGeneration|Seq2SeqLM)|LMHead", type(model).__name__
        ):
            inputs["labels"] = tokens.clone()
    else:
        message = f"`{main}` is not made here"
        raise ValueError(message)
    return inputs


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss, or the mean square of what the model returns first."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    first = next(
        each
        for each in output.to_tuple()
        if isinstance(each, torch.Tensor) and each.is_floating_point() and each.requires_grad
    )
    return first.float().square().mean()
