"""Models whose methods call units, and which nobody calls themselves, under FSDP1 and prepared."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.runtime import clip_grad_norm_, full_state_dict, no_sync, register_forward_methods
from fsdp_migrate.sharding.prepare import prepare_fully_shard, shard_plan
from tests.rank_bodies.parity import full


WIDTH = 6
HIDDEN = 5


class Coder(nn.Module):
    """Two layers; the first is a unit in the unit."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.up = nn.Linear(given, 11)
        self.down = nn.Linear(11, made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.tanh(self.up(x)))
        return out


class Pair(nn.Module):
    """Has no forward: its methods are what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = Coder(WIDTH, HIDDEN)
        self.dec = Coder(HIDDEN, WIDTH)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.enc(x)
        return out

    def rebuild(self, z: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.dec(z)
        return out


class Callable(Pair):
    """Has a forward that nobody calls."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rebuild(self.embed(x))


class Holding(Pair):
    """Has a parameter of its own, which nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, HIDDEN))


class Scaling(Holding):
    """Uses a parameter of its own."""

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return super().embed(x) * self.scale.mean(0)


KINDS = {"no forward": Pair, "a forward that nobody calls": Callable, "a parameter of its own": Holding}
POLICIES: dict[str, set[type[nn.Module]]] = {"units": {Coder}, "units in units": {Coder, nn.Linear}}


def _batches(step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return [torch.randn(4, WIDTH, generator=generator) for _ in range(2)]


def _train(model: Any, *, clips: bool = False) -> list[Any]:
    """Train for three steps of two backwards."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found: list[Any] = []
    for step in range(3):
        for batch in _batches(step):
            loss = (model.rebuild(model.embed(batch)).float() - batch).square().mean()
            loss.backward()
            found.append(loss.item())
        if clips:
            clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return found


def _arguments(precision: str, policy: str = "units") -> dict[str, Any]:
    mixed = {"mixed_precision": MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)}
    return {
        "auto_wrap_policy": ModuleWrapPolicy(POLICIES[policy]),
        "use_orig_params": True,
        "device_id": torch.device("cpu"),
        **(mixed if precision == "bf16" else {}),
    }


def compare(precision: str) -> dict[tuple[str, str], tuple[list[Any], list[Any]]]:
    """Train each kind under FSDP1 and prepared; return losses and this rank's sums of the last state."""
    warnings.simplefilter("ignore")
    found = {}
    for name, kind in KINDS.items():
        for policy in POLICIES:
            torch.manual_seed(0)
            theirs = FSDP(kind(), **_arguments(precision, policy))
            torch.manual_seed(0)
            ours = prepare_fully_shard(kind(), _arguments(precision, policy))
            expected, trained = _train(theirs), _train(ours)
            theirs.eval()
            ours.eval()
            batch = _batches(9)[0]
            with torch.no_grad():
                expected.append(theirs.rebuild(theirs.embed(batch)).tolist())
                trained.append(ours.rebuild(ours.embed(batch)).tolist())
            found[name, policy] = (expected, trained)
    return found


def told() -> dict[str, list[tuple[str, str]]]:
    """Return what is said of each kind's own parameters."""
    return {
        name: [
            (each.code, each.message)
            for each in shard_plan(prepare_fully_shard(kind(), _arguments("fp32"))).findings
            if each.code == "FM129"
        ]
        for name, kind in KINDS.items()
    }


def registered() -> tuple[list[Any], list[Any]]:
    """Train a model whose method uses its own parameter, prepared and on one process."""
    torch.manual_seed(0)
    model = prepare_fully_shard(Scaling(), _arguments("fp32"))
    register_forward_methods(model, "embed")
    _train(model, clips=True)
    torch.manual_seed(0)
    plain = Scaling()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for batch in _batches(step):
            (plain.rebuild(plain.embed(batch)) - batch).square().mean().backward()
        for parameter in plain.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return [full(each) for each in model.parameters()], [each.detach() for each in plain.parameters()]


def used_afterwards() -> tuple[list[str], bool]:
    """Do with a model what FSDP1 fails at once units have run: clip, accumulate and save."""
    torch.manual_seed(0)
    model: Any = prepare_fully_shard(Pair(), _arguments("fp32"))
    _train(model, clips=True)
    with no_sync(model):
        model.rebuild(model.embed(_batches(0)[0])).sum().backward()
    model.rebuild(model.embed(_batches(0)[1])).sum().backward()
    twice = full(model.enc.up.weight.grad)
    model.zero_grad()
    for batch in _batches(0):
        model.rebuild(model.embed(batch)).sum().backward()
    saved = full_state_dict(model)  # on rank 0
    return sorted(saved.get("model", ())), torch.allclose(twice, full(model.enc.up.weight.grad))


def _error_of(model: nn.Module, arguments: dict[str, Any], **more: Any) -> tuple[str, str]:
    try:
        prepare_fully_shard(model, arguments, **more)
    except FSDPMigrateError as error:
        return type(error).__name__, str(error)
    return "no error", ""


def refused() -> dict[str, tuple[str, str]]:
    """Return the errors of models in which nothing would gather."""
    cpu = {"device_id": "cpu"}
    return {
        "no unit": _error_of(Pair(), cpu),
        "a list": _error_of(nn.ModuleList([nn.Linear(2, 2)]), cpu),
        "ranks that skip": _error_of(Pair(), _arguments("fp32"), skipped_units="join"),
    }
