"""Runs that are saved in a store, or where one counts what is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tests.checkpoint.s3_service import BUCKET
from tests.checkpoint.samples import save_with_torch


if TYPE_CHECKING:
    from pathlib import Path


MIB = 1 << 20


URL = f"s3://{BUCKET}/run"


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(2)))
    return model, torch.optim.AdamW(model.parameters(), lr=1.0)


def save_run(folder: Path, kind: str) -> tuple[Path, nn.Module]:
    """Save a model of 2 MiB after a step, with its optimizer; ``kind`` is "folder" or that of one file."""
    model, optimizer = model_and_optimizer()
    model(torch.ones(1, 512)).sum().backward()
    optimizer.step()
    names = [name for name, _ in model.named_parameters()]
    own = optimizer.state_dict()
    state = {name: own["state"][number] for number, name in enumerate(names)}
    groups = [{**own["param_groups"][0], "params": names}]
    whole = {"model": model.state_dict(), "optimizer": {"state": state, "param_groups": groups}}
    (folder / "run").mkdir()
    if kind == "two folders":
        for name, part in (("pytorch_model_fsdp_0", "model"), ("optimizer_0", "optimizer")):
            (folder / "run" / name).mkdir()
            save_with_torch({part: whole[part]}, folder / "run" / name)
    elif kind != "folder":
        torch.save(whole, folder / "run" / "state.pt")
    else:
        save_with_torch(whole, folder / "run")
    return folder / "run", model
