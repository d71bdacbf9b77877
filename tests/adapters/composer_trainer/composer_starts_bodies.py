"""Trainers that start in odd ways: the callback on one rank, a model without children, unsettled sources."""

from __future__ import annotations

import importlib.util
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.rank_bodies import composer_training
from tests.rank_bodies.composer_training import Run, make_trainer, prepare, train


def start_on_one_rank(rank: int, late: int) -> None:
    """Start a Trainer that has the callback on one rank only; the rank ``late`` comes after the other."""
    prepare()
    from composer import Callback

    import fsdp_migrate.adapters.composer_callback  # noqa: F401 - as scripts do on every rank

    class Late(Callback):  # type: ignore[misc,unused-ignore]
        def init(self, state: Any, logger: Any) -> None:
            del state, logger
            if dist.get_rank() == late:
                time.sleep(3)

    run = Run(migrate=dist.get_rank() == rank, trainer={"callbacks": [Late()]})
    make_trainer(run, []).fit()


def start_plain_trainers() -> list[float]:
    """Train by Trainers without the callback, where its module is there; return what they have in common."""
    prepare()
    import fsdp_migrate.adapters.composer_callback  # noqa: F401

    run = Run(migrate=False)
    return [train(each)["losses"][-1] for each in (run, replace(run, fsdp=None), replace(run, migrate=True))]


def start_with_unsettled_sources(folder: str, rank: int) -> str:
    """Return the error of a Trainer where one rank has imported what ``rewrite`` left to a person."""
    prepare()
    if dist.get_rank() == rank:
        path = Path(folder, "left.py")
        path.write_text("# fsdp-migrate: FM307 settle this\nx = 1\n")
        spec = importlib.util.spec_from_file_location("left_to_a_person", path)
        assert spec is not None
        sys.modules["left_to_a_person"] = importlib.util.module_from_spec(spec)
    try:
        make_trainer(Run(), [])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def bare_model() -> Any:
    """Return a ComposerModel that has parameters and no child."""
    from composer.models import ComposerModel

    class Bare(ComposerModel):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(13, 13))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.weight[tokens]

        def loss(self, outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs.flatten(0, 1), tokens.flatten())

    return Bare()


def train_bare(runs: list[Run]) -> list[dict[str, Any]]:
    """Train a model without children by each of the runs."""
    prepare()
    vars(composer_training)["make_model"] = lambda kind: bare_model()
    return [composer_training.attempt(run) for run in runs]
