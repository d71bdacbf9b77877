"""Train with Composer and FSDP1; with what `composer_finetune.diff` adds, the same under FSDP2.

composer -n 2 examples/composer_finetune.py --save checkpoints
composer -n 2 examples/composer_finetune.py --load checkpoints/ep0-ba3
"""

from __future__ import annotations

import argparse

import torch
from composer import Callback, Trainer
from composer.models import ComposerModel
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler
from composer.utils import dist, get_device
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler


WORDS, WIDTH = 64, 32


class LanguageModel(ComposerModel):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0) for _ in range(2)]
        self.model = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers, nn.Linear(WIDTH, WORDS, bias=False))
        self.model[-1].weight = self.model[0].weight  # tied
        self.model.fsdp_wrap_fn = lambda m: isinstance(m, nn.TransformerEncoderLayer)  # type: ignore[assignment]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(tokens)
        return out

    def loss(self, out: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(out.flatten(0, 1), tokens.flatten())


class Losses(Callback):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        self.found: list[float] = []

    def after_loss(self, state: object, logger: object) -> None:
        self.found.append(float(state.loss))  # type: ignore[attr-defined]


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--load")
    given = parser.parse_args(arguments)
    dist.initialize_dist(get_device(None))  # the sampler asks for the rank before the Trainer does
    torch.manual_seed(17)
    model, losses = LanguageModel(), Losses()
    data = torch.randint(0, WORDS, (48, 8))
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(data, shuffle=False)  # type: ignore[arg-type]
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=4, sampler=sampler),  # type: ignore[arg-type]
        optimizers=DecoupledAdamW(model.parameters(), lr=1e-2),
        schedulers=LinearWithWarmupScheduler(t_warmup="4ba"),
        max_duration="6ba",
        device_train_microbatch_size=2,
        precision="amp_bf16" if torch.cuda.is_available() else "fp32",
        parallelism_config={"fsdp": {"sharding_strategy": "FULL_SHARD", "state_dict_type": "sharded"}},
        callbacks=[losses],
        save_folder=given.save,
        save_interval="3ba",
        load_path=given.load,
        seed=17,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return losses.found


if __name__ == "__main__":
    print("losses", *main())
