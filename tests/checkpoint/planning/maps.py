"""A model with experts, a map that stacks them, and checkpoints of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
)
from fsdp_migrate.checkpoint_convert.maps.own_files import parse_map


if TYPE_CHECKING:
    from collections.abc import Callable


RULES = """
- {from: moe, to: mlp}
- {from: [experts.*.w1.weight, experts.*.w3.weight], stack: 0, concatenate: 1, to: experts.gate_up_proj}
- {from: experts.*.w2.weight, stack: 0, to: experts.down_proj}
"""


MAP = parse_map(RULES, "mine.yaml")


MAPPED = OutputOptions(map=MAP, optimizer_class="AdamW")


EXPERTS = 11
"""More than ten: their numbers count, not their texts."""


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (nn.Linear(*sizes, bias=False) for sizes in ((4, 3), (3, 4), (4, 3)))


class Old(nn.Module):
    moe: Any

    def __init__(self) -> None:
        super().__init__()
        self.moe = nn.Module()
        self.moe.gate = nn.Linear(4, EXPERTS)
        self.moe.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.register_buffer("scale", torch.ones(2))


class New(nn.Module):
    mlp: Any

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.gate = nn.Linear(4, EXPERTS)
        self.mlp.experts = nn.Module()
        self.mlp.experts.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, 6, 4))
        self.mlp.experts.down_proj = nn.Parameter(torch.zeros(EXPERTS, 4, 3))
        self.register_buffer("scale", torch.zeros(2))


def state_of(
    make: Callable[[Old], torch.optim.Optimizer] = lambda model: torch.optim.AdamW(model.parameters()),
    *,
    flatten: bool = False,
    steps: int = 2,
) -> tuple[Old, dict[str, Any]]:
    """Train a little with every gradient another one, and return the model and its state."""
    torch.manual_seed(3)
    model = Old()
    optimizer = make(model)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        optimizer.step()
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    weights, optim = get_state_dict(model, optimizer, options=options)
    return model, {"model": weights, "optim": optim}


def stacked(state: dict[str, Any], field: str | None) -> dict[str, torch.Tensor]:
    """Put the weights, or a field of the optimizer's state, together by hand."""
    every = state["model"] if field is None else {n: s[field] for n, s in state["optim"]["state"].items()}
    part = {w: [every[f"moe.experts.{e}.{w}.weight"] for e in range(EXPERTS)] for w in ("w1", "w2", "w3")}
    return {
        "mlp.experts.gate_up_proj": torch.cat([torch.stack(part["w1"]), torch.stack(part["w3"])], 1),
        "mlp.experts.down_proj": torch.stack(part["w2"]),
        "mlp.gate.weight": every["moe.gate.weight"],
        "mlp.gate.bias": every["moe.gate.bias"],
    }
