"""Ranks that train a Llama with 4-bit weights and adapters of PEFT, under FSDP1 and prepared."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.runtime import full_state_dict


def _save_base(folder: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=96, num_attention_heads=4, **sizes)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)


def _make(folder: str, storage: torch.dtype) -> Any:
    """Load and quantise as QLoRA's users do, the scales too."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    peft = importlib.import_module("peft")
    four_bits = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_storage=storage,
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=four_bits, dtype=torch.bfloat16, device_map={"": "cpu"}
    )
    torch.manual_seed(1)
    options = {"task_type": "CAUSAL_LM", "r": 4, "target_modules": ["q_proj", "v_proj"]}
    wanted = peft.LoraConfig(**options, init_lora_weights=False)
    # One dtype, or the adapters would have to be units.
    return peft.get_peft_model(model, wanted, autocast_adapter_dtype=False).train()


def _losses(model: Any) -> list[float]:
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        tokens = torch.randint(0, 96, (2, 8), generator=generator)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run(folder: str) -> dict[str, Any]:
    """Return the losses under each, what is said, and the names of frozen entries that changed."""
    warnings.simplefilter("ignore")
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    if dist.get_rank() == 0:
        _save_base(folder)
    dist.barrier()
    policy = ModuleWrapPolicy({LlamaDecoderLayer})
    options: dict[str, Any] = {"use_orig_params": True, "device_id": torch.device("cpu")}
    found: dict[str, Any] = {
        "FSDP1": _losses(FSDP(_make(folder, torch.bfloat16), auto_wrap_policy=policy, **options))
    }
    for storage in (torch.bfloat16, torch.uint8):
        model = _make(folder, storage)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        prepare_fully_shard(model, {"auto_wrap_policy": policy, **options})
        codes = [each.code for each in shard_plan(model).findings]
        losses = _losses(model)
        after = full_state_dict(model, rank0_only=False)["model"]
        unlike = [
            name
            for name in before.keys() | after.keys()
            if "lora_" not in name and _bytes(before.get(name)) != _bytes(after.get(name))
        ]
        found[str(storage)] = {"losses": losses, "codes": codes, "unlike": unlike, "entries": len(before)}
    return found


def _bytes(value: torch.Tensor | None) -> bytes | None:
    if value is None:
        return None
    return bytes(value.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
