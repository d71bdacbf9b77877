"""Ranks that train under Accelerate's FSDP1, and go on with what docs/frameworks.md shows."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import accelerate
import numpy as np
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, PartialState
from accelerate.utils import FullyShardedDataParallelPlugin, extract_model_from_parallel
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fsdp_migrate import load_checkpoint, prepare_fully_shard
from tests.models import Net, batch


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


Trained = tuple[list[float], dict[str, torch.Tensor]]
"""The losses after a checkpoint, and the weights at the end."""


def go_on(folder: str, precision: str, accumulation: int, most: float, example: str) -> dict[str, Trained]:
    """Return what FSDP1 has trained after a checkpoint, which was not stopped, and what the example has."""
    with _as_accelerators():
        found = {"fsdp1": _fsdp1(folder, precision, accumulation, most)}
        AcceleratorState._reset_state(reset_partial_state=True)
        found["example"] = _example(folder, precision, accumulation, example)
    return found


@contextlib.contextmanager
def _as_accelerators() -> Iterator[None]:
    """Let Accelerate take the CPUs for several accelerators, of which alone it makes FSDP."""
    warnings.simplefilter("ignore")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    several = mock.Mock(return_value=("gloo", DistributedType.MULTI_GPU))
    with (
        mock.patch.object(PartialState, "_prepare_backend", several),
        mock.patch.object(PartialState, "set_device", _take_the_cpu),
    ):
        yield


def _take_the_cpu(state: Any) -> None:
    state.device = torch.device("cpu")


def _make(precision: str, accumulation: int) -> tuple[Accelerator, nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=1,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        state_dict_type="SHARDED_STATE_DICT",
        use_orig_params=True,
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(
        mixed_precision=precision, fsdp_plugin=plugin, gradient_accumulation_steps=accumulation
    )
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return accelerator, model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def _loss(model: nn.Module, step: int) -> torch.Tensor:
    tokens = batch(step, dist.get_rank())
    # Without a cast of its own: what dtype the outputs have decides.
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def _fsdp1(folder: str, precision: str, accumulation: int, most: float) -> Trained:
    accelerator, model, optimizer, scheduler = _make(precision, accumulation)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    losses = []
    for step in range(5 * accumulation):
        if step == 2 * accumulation:
            accelerator.save_state(folder)
        with accelerator.accumulate(model):
            loss = _loss(model, step)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), most)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    with FSDP.summon_full_params(model):
        weights = {
            name.replace("_fsdp_wrapped_module.", ""): param.detach().clone()
            for name, param in model.named_parameters()
        }
    return losses[2 * accumulation :], weights


def _example(folder: str, precision: str, accumulation: int, example: str) -> Trained:
    accelerator, model, optimizer, scheduler = _make(precision, accumulation)
    names: dict[str, Any] = {
        "accelerator": accelerator,
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "batches": range(2 * accumulation, 5 * accumulation),
        "loss_of": _loss,
        "CKPT": folder,
        "OUT": f"{folder}-new",
        "losses": [],
    }
    exec(compile(example, "docs/frameworks.md", "exec"), names)
    # The page says that the next run goes on from it by the same lines.
    load_checkpoint(f"{folder}-new", names["model"], names["optimizer"].optimizer)
    if accelerator.is_main_process:
        scheduler.load_state_dict(torch.load(f"{folder}-new/scheduler.bin"))
    weights = {name: param.full_tensor().detach() for name, param in names["model"].named_parameters()}
    return list(names["losses"]), weights


def _sharded(version: int, model: nn.Module, precision: str = "no", **settings: Any) -> Any:
    """Return an accelerator, and a model and its optimizer that it has prepared."""
    accelerator, optimizer = _beside(version, model, precision, **settings)
    return accelerator, *accelerator.prepare(model, optimizer)


def _beside(version: int, model: nn.Module, precision: str, **settings: Any) -> Any:
    """Return an accelerator, and the optimizer of a model that it has not prepared."""
    AcceleratorState._reset_state(reset_partial_state=True)
    given: dict[str, Any] = {"cpu_ram_efficient_loading": False, **settings}
    if version == 1:
        given["use_orig_params"] = True
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, **given)
    accelerator = Accelerator(mixed_precision=precision, fsdp_plugin=plugin)
    return accelerator, torch.optim.SGD(model.parameters(), lr=0.1)


def _says(call: Callable[[], Any]) -> str:
    try:
        call()
    except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return ""


def meet_float32(version: int) -> dict[str, str]:
    """Return what torch says where outputs in bf16 mixed precision meet float32 tensors."""
    with _as_accelerators():
        _, model, _ = _sharded(version, nn.Linear(4, 1), "bf16")
        out, full = model(torch.randn(4, 4)).squeeze(-1), torch.rand(4)
        places = torch.arange(4)
        calls: dict[str, Callable[[], Any]] = {
            "dot": lambda: torch.dot(full, out),
            "@": lambda: full @ out,
            "index_add_": lambda: torch.zeros(4).index_add_(0, places, out),
            "scatter_add_": lambda: torch.zeros(4).scatter_add_(0, places, out),
            "x[mask] =": lambda: torch.zeros(4).__setitem__(places >= 0, out),
            "numpy": lambda: out.detach().numpy(),
            "float": lambda: torch.dot(full, out.float()).backward(),
            "product": lambda: full * out,
        }
        return {name: _says(call) for name, call in calls.items()}


_TIMES = ("sines", "buffer", "input")


class _Timed(nn.Module):
    """Adds what a linear layer makes of float32, of which nothing outside of the model is said."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.shift: torch.Tensor
        self.register_buffer("shift", torch.ones(4))

    def forward(self, of: str, x: torch.Tensor) -> torch.Tensor:
        within = {"sines": torch.arange(4.0).sin(), "buffer": x + self.shift.float(), "input": x}[of]
        return torch.as_tensor(self.norm(self.inner(within)))


def meet_within(version: int, *, in_autocast: bool = False) -> dict[str, str]:
    """Return what torch says where float32 tensors meet weights within a model in bf16 mixed precision."""
    with _as_accelerators():
        model = _Timed()
        if in_autocast:
            run = Accelerator(mixed_precision="bf16").autocast()(model.forward)
            vars(model)["forward"] = run
        _, model, _ = _sharded(version, model, "bf16")
        runs = {of: partial(lambda of: model(of, torch.ones(4)).sum().backward(), of) for of in _TIMES}
        return {of: _says(run) for of, run in runs.items()}


class _Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(x + self.up(x).relu())


class _Scored(nn.Module):
    """Returns a loss, which units, and a norm and a head in the root make."""

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.norm, self.head = nn.Sequential(_Part(), _Part()), nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.parts(x)))
        return nn.functional.cross_entropy(logits.float(), torch.arange(4))


class _Between(_Scored):
    """Computes with the outputs of units as they are, and returns logits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = self.parts[0](x)
        return torch.as_tensor(self.head(self.parts[1](between * 1.001 + between.square())))


class _Turned(_Scored):
    """Has a buffer that is not exact in bfloat16, and one of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: torch.Tensor
        self.order: torch.Tensor
        self.register_buffer("rates", torch.linspace(0.1, 0.9, 8))
        self.register_buffer("order", torch.arange(8).flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward((x * self.rates)[:, self.order])


def losses_of(
    version: int, lines: str = "", *, are_outputs_used: bool = False, are_buffers_used: bool = False
) -> list[float]:
    """Return the losses of steps in bf16 mixed precision; ``lines`` stand above."""
    with _as_accelerators():
        torch.manual_seed(3)
        model = _Between() if are_outputs_used else _Turned() if are_buffers_used else _Scored()
        given = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["_Part"]}
        accelerator, optimizer = _beside(version, model, "bf16", **given)
        names = {"accelerate": accelerate, "accelerator": accelerator, "model": model}
        exec(lines, {**names, "torch": torch, "dataclasses": dataclasses})
        sharded, optimizer = accelerator.prepare(model, optimizer)
        losses: list[float] = []

        for _ in range(3):
            loss = sharded(torch.randn(4, 8))
            if are_outputs_used:
                loss = nn.functional.cross_entropy(loss, torch.arange(4))
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def clip_by_largest(version: int) -> tuple[float, float]:
    """Return what the largest gradient is said to be, and what it is by ``full_tensor()``."""
    with _as_accelerators():
        accelerator, model, _ = _sharded(version, nn.Linear(2, 2, bias=False))
        (model(torch.eye(2)) * torch.tensor([1.0, 3.0])).sum().backward()
        norm: Any = accelerator.clip_grad_norm_(model.parameters(), 100.0, norm_type=float("inf"))
        whole = norm.full_tensor() if version == 2 else norm
        return norm.item(), whole.item()


class _Words(nn.Module):
    """Multiplies by the weights of its embeddings, as a head that is tied by hand does."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 4)

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.words(tokens) @ self.words.weight.T)


def read_embeddings(version: int, *, do_they_stay: bool = False) -> str:
    """Return what torch says where a forward reads the weights of the model's embeddings."""
    with _as_accelerators():
        model = _Words()
        if do_they_stay:
            vars(model).update(get_input_embeddings=lambda: None, get_output_embeddings=lambda: None)
        _, sharded, _ = _sharded(version, model)
        return _says(lambda: sharded(torch.arange(4)).sum().backward())


def prepare_two(version: int) -> dict[str, str]:
    """Return what becomes of a second model that has none of the layers that the plugin names."""
    with _as_accelerators():
        names: dict[str, Any] = {
            "auto_wrap_policy": "transformer_based_wrap",
            "transformer_cls_names_to_wrap": ["Block"],
        }
        accelerator, _, _ = _sharded(version, Net(), "no", **names)

        def prepare() -> None:
            other = nn.Linear(2, 2)
            model, _ = accelerator.prepare(other, torch.optim.SGD(other.parameters(), lr=0.1))
            model(torch.ones(1, 2)).sum().backward()

        found = {"as it is": _says(prepare)}
        accelerator.state.fsdp_plugin.transformer_cls_names_to_wrap = []
        return {**found, "named anew": _says(prepare)}


def hold_more(version: int) -> str:
    """Return what becomes of an optimizer that holds another module's parameters too."""
    with _as_accelerators():
        accelerator, _, _ = _sharded(version, nn.Linear(2, 2))
        model, head = nn.Linear(2, 2), nn.Linear(2, 2)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        return _says(lambda: accelerator.prepare(model, optimizer))


def ignore(version: int, *, is_loaded_by_rank_0: bool) -> tuple[bool, float]:
    """Return whether an ignored module is sharded, and its value here, of one by rank, from 1 on."""
    rank = dist.get_rank()
    ignored = nn.Linear(2, 2)
    model = nn.Sequential(ignored, nn.Linear(2, 2))
    nn.init.constant_(ignored.weight, rank + 1)
    with _as_accelerators():
        given: dict[str, Any] = {
            "cpu_ram_efficient_loading": is_loaded_by_rank_0,
            "ignored_modules": [ignored],
        }
        _, sharded, _ = _sharded(version, model, "no", **given)
    weight = next(param for name, param in sharded.named_parameters() if name.endswith("0.weight"))
    is_sharded = hasattr(weight, "full_tensor")
    whole = weight.full_tensor() if is_sharded else weight
    return is_sharded, float(whole.detach().mean())


class Reader(nn.Module):
    """Reads what all of its kind are given, in several places or in one, as a decoder's layer does."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.read = nn.ModuleList(nn.Linear(8, 8) for _ in range(places))

    def forward(self, hidden: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        for read in self.read:
            hidden = hidden + torch.tanh(read(memory))
        return hidden


class Readers(nn.Module):
    """Makes one tensor, and gives it to every reader, as an encoder does."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self.source = nn.Linear(8, 8)
        self.readers = nn.ModuleList(Reader(places) for _ in range(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        memory = self.source(rows)
        hidden = rows
        for reader in self.readers:
            hidden = reader(hidden, memory)
        return hidden


def add_up(how: str, places: int) -> torch.Tensor:
    """Return the gradient of the weight before what all units are given."""
    torch.manual_seed(1)
    model: Any = Readers(places)
    rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    with _as_accelerators():
        if how == "prepared":
            model = prepare_fully_shard(model, {"auto_wrap_policy": "Reader"})
        else:
            names: dict[str, Any] = {"transformer_cls_names_to_wrap": ["Reader"]}
            _, model, _ = _sharded(
                2 if how == "fsdp2" else 1, model, auto_wrap_policy="transformer_based_wrap", **names
            )
        model(rows).square().mean().backward()
        if how == "fsdp1":
            with FSDP.summon_full_params(model, with_grads=True):
                whole: torch.Tensor = model.source.weight.grad.clone()
                return whole
        full: torch.Tensor = model.source.weight.grad.full_tensor()
        return full


def read_parameters(version: int) -> dict[str, str]:
    """Return what is said where parameters, gradients and norms are gathered, or made an array or a list."""
    with _as_accelerators():
        accelerator, model, _ = _sharded(version, nn.Sequential(nn.Linear(4, 4, bias=False)))
        accelerator.backward(model(torch.ones(2, 4)).sum())
        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
        [parameter] = model.parameters()
        part = extract_model_from_parallel(model)[0]
        calls: dict[str, Callable[[], Any]] = {
            "gather": lambda: accelerator.gather(parameter.grad),
            "reduce": lambda: accelerator.reduce(parameter.grad, "mean"),
            "histogram": lambda: np.histogram(parameter.detach().cpu()),
            "norm as an array": lambda: norm.cpu().numpy(),
            "norm as a number": norm.item,
            "norm in a text": lambda: f"{norm:.3f}",
            "norm in a list": lambda: torch.tensor([1.0, norm]),
        }
        found = {name: _says(call) for name, call in calls.items()}
        return {**found, "state of a part": type(part.state_dict()["weight"]).__name__}


def clip_while_adding(version: int, how: str) -> tuple[list[float], torch.Tensor]:
    """Return the norms by which each of four steps clips, of which two are added up, and a weight after."""
    with _as_accelerators():
        torch.manual_seed(1)
        accelerator, model, optimizer = _sharded(version, nn.Sequential(nn.Linear(4, 4, bias=False)))
        accelerator.gradient_accumulation_steps = 2
        norms = []
        for step in range(4):
            with accelerator.accumulate(model):
                rows = torch.arange(8.0).view(2, 4) * (1 - 3 * (step % 2)) + step
                accelerator.backward(model(rows).square().mean())
                if accelerator.sync_gradients or how == "everywhere":
                    norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.1)))
                optimizer.step()
                optimizer.zero_grad()
        if version == 1:
            with FSDP.summon_full_params(model):
                return norms, next(model.parameters()).detach().clone()
        whole: torch.Tensor = next(iter(model.parameters())).full_tensor().detach()
        return norms, whole


def save_apart(folder: str) -> tuple[list[str], list[int]]:
    """Return the files of `save_state` of an Accelerator that knows the optimizer of a sharded model alone.

    And how many rows of its first state the saved optimizer has on rank 0.
    """
    with _as_accelerators():
        model = prepare_fully_shard(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        accelerator = Accelerator()
        prepared = accelerator.prepare(optimizer)
        model(batch(0, dist.get_rank())).sum().backward()
        prepared.step()
        accelerator.save_state(folder)
    dist.barrier()
    state = torch.load(Path(folder, "optimizer.bin"), weights_only=False)["state"]
    held = state[0]["momentum_buffer"]
    return sorted(path.name for path in Path(folder).iterdir()), list(
        getattr(held, "_local_tensor", held).shape
    )


class _KeepsMasters(torch.optim.SGD):
    """An optimizer that makes its state where it is made."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        for param in self.param_groups[0]["params"]:
            self.state[param]["master"] = param.detach().clone()

    def has_all(self) -> bool:
        return all("master" in self.state[param] for param in self.param_groups[0]["params"])


def make_state_early() -> bool:
    """Return whether an optimizer has the state still that it made, once Accelerate has prepared it."""
    with _as_accelerators():
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
        model = nn.Linear(4, 4)
        prepared: Any = Accelerator(fsdp_plugin=plugin).prepare(model, _KeepsMasters(model.parameters()))
        own = prepared[1].optimizer
        assert isinstance(own, _KeepsMasters)
        return own.has_all()
