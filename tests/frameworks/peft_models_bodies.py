"""Ranks that train a model of PEFT under FSDP1, and go on under FSDP2."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate import load_checkpoint, prepare_fully_shard
from fsdp_migrate.runtime import full_state_dict, named_full_tensors
from tests.frameworks.accelerate_bodies import (
    _as_accelerators as as_accelerators,
    _says as says,
    _sharded as sharded_by,
)
from tests.rank_bodies.loading import _save


VOCABULARY = 61
KINDS = ("sharded", "full")


def make(seed: int, **settings: Any) -> tuple[Any, type]:
    """Return a model with adapters in it, and the class of its layers."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    peft = importlib.import_module("peft")
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    base = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **sizes))
    # The adapters begin with zeros: what is not loaded would not show.
    targets = ["q_proj", "down_proj"]
    options = {"r": 4, "target_modules": targets, "task_type": "CAUSAL_LM", "init_lora_weights": False}
    wanted = peft.LoraConfig(**{**options, **settings})
    return peft.get_peft_model(base, wanted), LlamaDecoderLayer


def adam(model: Any) -> torch.optim.Optimizer:
    """Return an optimizer of what is trained."""
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=3e-2)


def train(model: Any, optimizer: torch.optim.Optimizer, first: int, count: int) -> list[float]:
    """Return the losses of some steps."""
    losses = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        tokens = torch.randint(0, VOCABULARY, (3, 7), generator=generator)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run_fsdp1(folder: str) -> list[float]:
    """Train under FSDP1, save in both kinds and as PEFT does, go on, and return the losses of that."""
    warnings.simplefilter("ignore")
    inner, layer = make(1)
    options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
    model = FSDP(inner, auto_wrap_policy=ModuleWrapPolicy({layer}), **options)
    optimizer = adam(model)
    train(model, optimizer, 0, 2)
    for kind in KINDS:
        _save(Path(folder, kind), kind, model, optimizer, {"step": 2})
    if dist.get_rank() == 0:
        state = torch.load(Path(folder, "full", "state.pt"), weights_only=True)["model"]
        make(1)[0].save_pretrained(Path(folder, "adapter"), state_dict=state)
    dist.barrier()
    return train(model, optimizer, 2, 3)


def resume_fsdp2(folder: str) -> dict[str, Any]:
    """Load each under FSDP2; return the next losses, and the first one where there are the adapters alone."""
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {}
    for kind in (*KINDS, "adapter"):
        model, layer = make(1 if kind == "adapter" else 9)
        if kind == "adapter":
            for name, param in model.named_parameters():
                if "lora_" in name:
                    torch.nn.init.ones_(param)
        model = prepare_fully_shard(model, {"auto_wrap_policy": {layer}, "device_id": "cpu"})
        optimizer = adam(model)
        if kind == "adapter":
            rename = [r"(lora_[AB])\.=\1.default."]
            load_checkpoint(f"{folder}/adapter", model, strict=False, rename=rename)
            found[kind] = train(model, optimizer, 2, 1)
        else:
            report = load_checkpoint(f"{folder}/{kind}", model, optimizer, extra={"step": 0})
            found[kind] = train(model, optimizer, report.values["step"], 3)
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "DoRA": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head"]},
    "two adapters": {},
}


def train_each(folder: str) -> dict[str, Any]:
    """Train each kind under FSDP1 and prepared, and go on from FSDP1's checkpoint; return the losses."""
    warnings.simplefilter("ignore")
    found = {}
    options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
    for kind in SETTINGS:
        inner, layer = _adapted(kind)
        model = FSDP(inner, auto_wrap_policy=ModuleWrapPolicy({layer}), **options)
        optimizer = adam(model)
        fsdp1 = train(model, optimizer, 0, 2)
        _save(Path(folder, kind), "sharded", model, optimizer, {})
        fsdp1 += train(model, optimizer, 2, 2)
        prepared, layer = _adapted(kind)
        prepare_fully_shard(prepared, {"auto_wrap_policy": {layer}, "device_id": "cpu"})
        loaded, layer = _adapted(kind, seed=9)
        prepare_fully_shard(loaded, {"auto_wrap_policy": {layer}, "device_id": "cpu"})
        optimizer = adam(loaded)
        load_checkpoint(Path(folder, kind), loaded, optimizer)
        found[kind] = fsdp1, train(prepared, adam(prepared), 0, 4), train(loaded, optimizer, 2, 2)
    return found


def save_adapters(folder: str) -> dict[str, list[str]]:
    """Save adapters of a prepared model in both ways; return which files are not those without sharding."""
    warnings.simplefilter("ignore")
    return {kind: _differing(Path(folder, kind), kind) for kind in SETTINGS}


def _differing(folder: Path, kind: str) -> list[str]:
    ways = {"plain": _adapted(kind)[0]}
    sharded, layer = _adapted(kind)
    prepare_fully_shard(sharded, {"auto_wrap_policy": {layer}, "device_id": "cpu"})
    whole = full_state_dict(sharded)
    # Of several adapters one is trained at a time.
    names = [name for name, param in sharded.named_parameters() if param.requires_grad or "lora_" in name]
    sent = dict(named_full_tensors(sharded, names=names))
    peft = importlib.import_module("peft")
    # What it takes of a sharded model itself is DTensors: of each, this rank's slice.
    own = peft.get_peft_model_state_dict(sharded)
    unlike = [] if all(isinstance(value, DTensor) for value in own.values()) else ["own"]
    if dist.get_rank():
        return unlike
    given = peft.get_peft_model_state_dict(sharded, state_dict=whole["model"])
    wanted = peft.get_peft_model_state_dict(ways["plain"])
    is_same = list(given) == list(wanted) and all(torch.equal(given[name], wanted[name]) for name in wanted)
    unlike += [] if is_same else ["given"]
    ways["plain"].save_pretrained(folder / "plain")
    sharded.save_pretrained(folder / "whole", state_dict=whole["model"])
    sharded.save_pretrained(folder / "sent", state_dict=sent)
    return unlike + [
        f"{way}/{file.name}"
        for file in (folder / "plain").rglob("*.safetensors")
        for way in ("whole", "sent")
        if (folder / way / file.relative_to(folder / "plain")).read_bytes() != file.read_bytes()
    ]


def _adapted(kind: str, seed: int = 1) -> tuple[Any, type]:
    peft = importlib.import_module("peft")
    model, layer = make(seed, **SETTINGS[kind])
    if kind == "two adapters":
        options: dict[str, Any] = {"r": 2, "target_modules": ["k_proj"], "init_lora_weights": False}
        model.add_adapter("other", peft.LoraConfig(task_type="CAUSAL_LM", **options))
    return model, layer


def copy_head(
    version: int, copied: list[str], *, is_untied: bool, by_rank_0: bool = False
) -> tuple[str, list[float]]:
    """Return what Accelerate says of a tied model with copies of PEFT in it, and its losses."""
    peft = importlib.import_module("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    tokens = torch.arange(12).reshape(2, 6)
    losses: list[float] = []
    with as_accelerators():
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(
            LlamaConfig(vocab_size=12, num_hidden_layers=1, tie_word_embeddings=True, **sizes)
        )
        if is_untied:
            model.config.tie_word_embeddings = False
            head = model.get_output_embeddings()
            head.weight = torch.nn.Parameter(head.weight.detach().clone())
        options: dict[str, Any] = {"target_modules": ["q_proj"], "modules_to_save": copied}
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **options))

        def train() -> None:
            _, whole, optimizer = sharded_by(version, model, cpu_ram_efficient_loading=by_rank_0)
            for _ in range(2):
                loss = whole(input_ids=tokens, labels=tokens).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())

        return says(train), losses
