"""Ranks that train a LLaVA of transformers, some with text alone, and one process that has all batches."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.errors import RanksDivergedError
from fsdp_migrate.runtime import full_state_dict


IMAGE = 98
UNITS = frozenset({"CLIPEncoderLayer", "LlamaDecoderLayer"})


def _make() -> Any:
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    vision = CLIPVisionConfig(image_size=16, patch_size=8, projection_dim=32, **sizes)
    text = LlamaConfig(vocab_size=99, **sizes)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return LlavaForConditionalGeneration(config)


def _prepared(skipped_units: Any) -> Any:
    model = _make()
    classes = {type(each) for each in model.modules() if type(each).__name__ in UNITS}
    arguments = {"auto_wrap_policy": classes, "device_id": "cpu"}
    return prepare_fully_shard(model, arguments, skipped_units=skipped_units)


def _batch(step: int, rank: int) -> dict[str, torch.Tensor]:
    """Return text, and images on rank 0, on none, on rank 1, and so on."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    tokens = torch.randint(0, 90, (2, 10), generator=generator)
    images = {}
    if (step + rank) % 3 == 0:
        tokens[:, :4] = IMAGE
        images["pixel_values"] = torch.randn(2, 3, 16, 16, generator=generator)
    return {"input_ids": tokens, "labels": tokens.clone(), **images}


def _alone() -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train with the batches of all ranks; return the losses of this rank's."""
    model, losses = _make(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(5):
        for rank in range(dist.get_world_size()):
            loss = model(**_batch(step, rank)).loss
            (loss / dist.get_world_size()).backward()
            losses += [loss.item()] * (rank == dist.get_rank())
        # The root holds the embeddings of both and runs always: what a step does not use of it has zeros.
        for name, param in model.named_parameters():
            if param.grad is None and ".layers." not in name:
                param.grad = torch.zeros_like(param)
        optimizer.step()
        optimizer.zero_grad()
    return losses, model.state_dict()


def run() -> dict[str, Any]:
    """Return what this rank found of joining, of stopping, and of what the plan says without either."""
    warnings.simplefilter("ignore")
    expected, state = _alone()
    model, losses = _prepared("join"), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(5):
        loss = model(**_batch(step, dist.get_rank())).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    ours = full_state_dict(model, rank0_only=False)["model"]
    found: dict[str, Any] = {
        "losses": (losses, expected),
        "different": [name for name in state if not torch.equal(state[name], ours[name])],
        "said": [each.message for each in shard_plan(_prepared(None)).findings if each.code == "FM127"],
    }
    try:
        _prepared("error")(**_batch(0, dist.get_rank()))
    except RanksDivergedError as error:
        found["error"] = str(error)
    return found
