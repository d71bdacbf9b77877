"""Composer's callbacks and algorithms in real Trainers: under FSDP1, under DDP, and with our callback."""

from __future__ import annotations

import traceback
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.rank_bodies.composer_models import make_model, make_optimizer
from tests.rank_bodies.composer_training import _recorder, clean, float16_on_cpu, loader, prepare, whole


@dataclass(frozen=True)
class Case:
    """A Trainer call with one callback or algorithm of Composer's, ``name``."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    model: str = "net"
    optimizer: str = "sgd"
    epochs: int = 1
    evaluates: bool = False
    precision: str = "fp32"
    fsdp: dict[str, Any] = field(default_factory=dict)
    apply_at: str | None = None
    strict: bool = False


class Images(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: int, classes: int) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.rand(rows, 3, 16, 16, generator=generator)
        self.labels = torch.randint(0, classes, (rows,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.images[index], self.labels[index]


class Tokens(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: int) -> None:
        generator = torch.Generator().manual_seed(6)
        self.tokens = torch.randint(1, 31, (rows, 16), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Any:
        row = self.tokens[index]
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row}


def pictures(rows: int) -> Any:
    """Return torchvision's images of noise, which transforms are put before."""
    from torchvision.datasets import FakeData
    from torchvision.transforms import ToTensor

    return FakeData(rows, (3, 16, 16), num_classes=4, transform=ToTensor())


def data_of(kind: str, rows: int, batches: int) -> Any:
    from torch.utils.data import DataLoader, DistributedSampler

    count = rows * batches * dist.get_world_size()
    if kind == "bert":
        data: Any = Tokens(count)
    elif kind == "pictures":
        data = pictures(count)
    elif kind in {"image", "resnet", "resnet whole", "binary"}:
        data = Images(count, 2 if kind == "binary" else 4)
    else:
        return loader(batches, rows)
    sampler: Any = DistributedSampler(data, shuffle=False)
    return DataLoader(data, batch_size=rows, sampler=sampler)


def model_of(kind: str) -> Any:
    from composer.models import ComposerClassifier

    torch.manual_seed(1)
    if kind in {"resnet", "resnet whole"}:
        from torchvision.models.resnet import Bottleneck, ResNet

        net = ResNet(Bottleneck, [2, 1, 1, 1], num_classes=4, width_per_group=8)
        for module in net.modules():
            if isinstance(module, Bottleneck) and kind == "resnet":
                vars(module)["_fsdp_wrap"] = True
        return ComposerClassifier(net, num_classes=4)
    if kind in {"image", "binary", "pictures"}:
        return ComposerClassifier(_convolutions(), num_classes=4)
    return _bert() if kind == "bert" else make_model(kind)


def _convolutions() -> nn.Module:
    """Return convolutions with batch and group norms, of which each block is a unit."""

    def block(width: int) -> nn.Module:
        made = nn.Sequential(
            nn.Conv2d(width, 8, 3, padding=1, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8)
        )
        vars(made)["_fsdp_wrap"] = True
        return made

    ends = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 24), nn.Dropout(0.0), nn.Linear(24, 4)]
    return nn.Sequential(block(3), block(8), nn.MaxPool2d(2), *ends)


def _bert() -> Any:
    from composer.models import HuggingFaceModel
    from transformers import BertConfig, BertForMaskedLM

    sizes: dict[str, Any] = {
        "vocab_size": 31,
        "hidden_size": 16,
        "intermediate_size": 24,
        "max_position_embeddings": 16,
    }
    none: dict[str, Any] = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    bert = BertForMaskedLM(BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes, **none))
    for layer in bert.bert.encoder.layer:
        vars(layer)["_fsdp_wrap"] = True
    return HuggingFaceModel(bert, use_logits=True)


def run_all(runs: list[tuple[Case, str]]) -> list[dict[str, Any]]:
    """Run each case in its way: ``fsdp1``, ``ddp``, or ``ours``."""
    prepare()
    found = []
    for case, way in runs:
        found.append(_attempt(case, way))
        dist.barrier()
    return found


def _attempt(case: Case, way: str) -> dict[str, Any]:
    """Return what became of a run; one that fails must do so on all ranks."""
    try:
        with warnings.catch_warnings(), nullcontext() if case.precision == "fp32" else float16_on_cpu():
            warnings.simplefilter("ignore")
            return _run(case, way)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _run(case: Case, way: str) -> dict[str, Any]:
    from composer import Trainer
    from composer.loggers import InMemoryLogger

    model, memory = model_of(case.model), InMemoryLogger()
    losses: list[float] = []
    callbacks: list[Any] = [_recorder(losses)]
    algorithms: list[Any] = []
    made, is_algorithm = make_companion(case)
    (algorithms if is_algorithm else callbacks).append(made)
    if way == "ours":
        from fsdp_migrate.adapters.composer_callback import FSDP2Migration

        callbacks.append(FSDP2Migration(strict=case.strict))
    trainer = Trainer(
        model=model,
        train_dataloader=data_of(case.model, 4, 4),
        eval_dataloader=data_of(case.model, 4, 2) if case.evaluates else None,
        optimizers=make_optimizer(case.optimizer, model),
        max_duration=f"{case.epochs}ep",
        precision=case.precision,
        device="cpu",
        seed=3,
        callbacks=callbacks,
        algorithms=algorithms,
        loggers=[memory],
        parallelism_config=None if way == "ddp" else {"fsdp": dict(case.fsdp)},
        progress_bar=False,
        log_to_console=False,
    )
    findings = [(found.code, found.subject) for each in callbacks for found in getattr(each, "findings", ())]
    trainer.fit()
    values = whole(trainer.state.model)
    found = {
        "losses": losses,
        "parameters": {
            name.removeprefix("module.") if way == "ddp" else name: values[name] for name in values
        },
        "averages": {
            clean(name).replace("module.", ""): value.clone()
            for name, value in trainer.state.model.named_buffers()
            if name.endswith("running_mean")
        },
        "logged": logged(memory, "module." if way == "ddp" else ""),
        "findings": findings,
    }
    trainer.close()
    return found


def make_companion(case: Case) -> tuple[Any, bool]:
    """Return the callback or algorithm of a case, and whether it is an algorithm."""
    from composer import algorithms, callbacks
    from composer.core import Event

    more = {} if case.apply_at is None else {"apply_at": Event(case.apply_at)}
    is_algorithm = hasattr(algorithms, case.name)
    kind = getattr(algorithms if is_algorithm else callbacks, case.name)
    return kind(**case.arguments, **more), is_algorithm


def logged(memory: Any, prefix: str) -> dict[str, list[float]]:
    """Return the numbers that were logged, but for times and what the machine does, under plain names."""
    apart = {"time", "wall_clock", "throughput", "trainer"}
    return {
        clean(name).replace("._fsdp_wrapped_module_", "_").replace(f"/{prefix}", "/", 1): [
            float(value) for _, value in series
        ]
        for name, series in memory.data.items()
        if "/" in name
        and name.split("/")[0] not in apart
        and isinstance(series[0][1], (int, float, torch.Tensor))
    }
