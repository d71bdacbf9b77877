"""LoRA: float32 adapters over a frozen bfloat16 base; units have one dtype, so adapters are units.

torchrun --nproc-per-node 2 examples/lora.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.runtime import end_process_group


class Adapter(nn.Module):
    """The two thin layers that are trained."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.up(self.down(x.float())).to(x.dtype)
        return out


class Layer(nn.Module):
    """A frozen bfloat16 layer with an adapter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, dtype=torch.bfloat16).requires_grad_(False)
        self.adapter = Adapter(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.base(x)) + self.adapter(x)
        return out


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    # Without Adapter among the classes this raises, naming the parameters of each dtype.
    model = prepare_fully_shard(
        nn.Sequential(*(Layer(15) for _ in range(3))),
        {"auto_wrap_policy": {Layer, Adapter}, "device_id": "cpu"},
    )
    if dist.get_rank() == 0:
        print("units", [unit.fqn for unit in shard_plan(model).units])
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    for step in range(3):
        inputs = torch.randn(4, 15, generator=torch.Generator().manual_seed(0)).bfloat16()
        loss = (model(inputs) - inputs.roll(1, 0)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}")
    end_process_group()


if __name__ == "__main__":
    main()
