"""Runs of the real Composer Trainer: under FSDP1, and under its own FSDP2. Imports Composer when called."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_migrate.torch_compat import cpu_mends
from tests.models import VOCABULARY, Net, batch


STEPS = 6
SAVE_AT = 3


def train(folder: str, *, fsdp2_from: str | None = None) -> dict[str, Any]:
    """Train by Composer, and return the loss of each batch with the parameters at the end.

    Without ``fsdp2_from`` under FSDP1 from the start, saving sharded checkpoints into ``folder``; with it
    under Composer's FSDP2, from that checkpoint.
    """
    _quieten()
    from composer import Trainer
    from composer.optim import DecoupledAdamW
    from composer.utils import FSDP2Config
    from torch.utils.data import DataLoader, DistributedSampler

    model = _composer_model()
    decayed = [param for name, param in model.named_parameters() if name.endswith("weight")]
    others = [param for name, param in model.named_parameters() if not name.endswith("weight")]
    optimizer = DecoupledAdamW([{"params": decayed, "weight_decay": 1e-3}, {"params": others}], lr=0.02)
    data = torch.cat([batch(step, rank, rows=2) for step in range(STEPS) for rank in range(2)])
    sampler: Any = DistributedSampler(_Rows(data), shuffle=False)
    fsdp: Any = FSDP2Config() if fsdp2_from else {"state_dict_type": "sharded", "mixed_precision": "PURE"}
    losses: list[float] = []
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(_Rows(data), batch_size=2, sampler=sampler),
        optimizers=optimizer,
        max_duration=f"{STEPS}ba",
        parallelism_config={"fsdp": fsdp},
        precision="fp32",
        device="cpu",
        seed=3,
        callbacks=[_recorder(losses)],
        progress_bar=False,
        log_to_console=False,
        save_folder=None if fsdp2_from else folder,
        save_interval=f"{SAVE_AT}ba",
        load_path=fsdp2_from,
    )
    if fsdp2_from:
        _mend(trainer.state.model)
    trainer.fit()
    found = {"losses": losses, "parameters": _whole(trainer.state.model)}
    dist.barrier()
    return found


def _quieten() -> None:
    warnings.simplefilter("ignore")
    # Composer's FSDP1 asks CUDA for its device without looking whether there is one.
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    os.environ.setdefault("COMPOSER_LOG_LEVEL", "ERROR")


class _Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def _composer_model() -> Any:
    from composer.models import ComposerModel

    class Model(ComposerModel):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = Net()
            for block in self.net.blocks:
                block._fsdp_wrap = True  # type: ignore[assignment]

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(tokens)
            return out

        def loss(self, outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs.view(-1, VOCABULARY), tokens.flatten())

    return Model()


def _recorder(losses: list[float]) -> Any:
    from composer import Callback

    class Recorder(Callback):  # type: ignore[misc,unused-ignore]
        def after_loss(self, state: Any, logger: Any) -> None:
            del logger
            losses.append(float(state.loss))

    return Recorder()


def _mend(model: nn.Module) -> None:
    """Mend gloo's averaging, which Composer's FSDP2 relies on and torch 2.7 gets wrong."""
    from torch.distributed.fsdp import FSDPModule

    sharded = next(param for param in model.parameters() if isinstance(param, DTensor))
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    cpu_mends.mend_gloo_averaging(sharded.device_mesh, units)


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with FSDP.summon_full_params(model):
        return {
            name.replace("_fsdp_wrapped_module.", ""): (
                param.full_tensor() if isinstance(param, DTensor) else param
            )
            .detach()
            .clone()
            for name, param in model.named_parameters()
        }


def checkpoints_in(folder: str) -> list[str]:
    """Return the names of the checkpoints that Composer has saved there."""
    return sorted(
        path.parent.name for path in Path(folder).glob("*/.metadata") if not path.parent.is_symlink()
    )
