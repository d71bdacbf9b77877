"""``HuggingFaceModel.generate`` of a Trainer whose model the callback has sharded."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from tests.rank_bodies.composer_training import prepare, whole


SIZES: dict[str, Any] = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(**SIZES, bos_token_id=1, eos_token_id=None, pad_token_id=0))


def _rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(1, 31, (9,), generator=generator) for _ in range(4 * dist.get_world_size())]
    return [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in tokens]


def generate(folder: str) -> dict[str, Any]:
    """Train two batches and generate; return the tokens, and those of a plain model with the same weights.

    What was trained is saved to ``folder``.
    """
    from composer import Trainer
    from composer.models import HuggingFaceModel

    from fsdp_migrate.adapters.composer_callback import FSDP2Migration

    prepare()
    llama = _llama()
    for layer in llama.model.layers:
        layer._fsdp_wrap = True
    model = HuggingFaceModel(llama, use_logits=True)
    dataset: Any = _rows()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(dataset, batch_size=2, sampler=DistributedSampler(dataset)),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
        max_duration="2ba",
        device="cpu",
        seed=3,
        callbacks=[FSDP2Migration()],
        parallelism_config={"fsdp": {"sharding_strategy": "FULL_SHARD"}},
        progress_bar=False,
        log_to_console=False,
    )
    trainer.fit()
    prompt = torch.tensor([[1, 4, 9 + dist.get_rank()]])
    # The ranks' numbers of tokens are the same, so that all gather as often.
    found = [model.generate(prompt, max_new_tokens=6, do_sample=False) for _ in range(2)]
    plain = _llama()
    weights = {name.removeprefix("model."): value for name, value in whole(trainer.state.model).items()}
    missing = plain.load_state_dict(weights, strict=False).missing_keys
    trainer.save_checkpoint(f"{folder}/saved")
    untrained = _llama().generate(prompt, max_new_tokens=6, do_sample=False)
    expected = plain.generate(prompt, max_new_tokens=6, do_sample=False)
    units = [type(module).__name__ for module in model.modules() if type(module).__name__.startswith("FSDP")]
    trainer.close()
    dist.barrier()
    return {
        "found": [tokens.tolist() for tokens in found],
        "expected": expected.tolist(),
        "untrained": untrained.tolist(),
        "missing": missing,
        "units": units,
        "weights": plain.state_dict(),
    }
