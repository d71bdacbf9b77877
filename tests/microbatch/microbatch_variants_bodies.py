"""Microbatches of models that are not the plain case, and the collectives that each way of it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_migrate.microbatch import microbatches
from fsdp_migrate.microbatch.search import auto_microbatch
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from tests.models import Block, Head, Net, batch
from tests.rank_bodies.microbatch_failures import Bomb
from tests.rank_bodies.microbatches import STRATEGIES, gradients, parts_of, prepared, same
from tests.rank_bodies.parity import Tensors, full


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fsdp_migrate.microbatch import Comms


class Keywords(Net):
    """A net that takes a mapping's entries by name, and returns a mapping, as transformers' models do."""

    def forward(self, *, tokens: torch.Tensor, scale: float = 1.0) -> Any:  # type: ignore[override]
        return {"logits": super().forward(tokens) * scale, "tokens": tokens}


def _plain() -> Net:
    return Net()


def _frozen() -> Net:
    model = Net()
    model.embed.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    model.head.norm.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Variant:
    """A model, the arguments that it is prepared with, and what takes its place in the middle of a step."""

    build: Callable[[], Net] = _plain
    policy: tuple[type[nn.Module], ...] = (Block, Head)
    arguments: tuple[tuple[str, Any], ...] = ()
    checkpointed: bool = False

    def prepare(self) -> Any:
        torch.manual_seed(0)
        return prepare_fully_shard(
            self.build(),
            {
                "device_id": "cpu",
                "use_orig_params": True,
                "auto_wrap_policy": set(self.policy),
                **dict(self.arguments),
            },
            activation_checkpointing={Block} if self.checkpointed else None,
        )


VARIANTS: dict[str, Variant] = {
    "units in units": Variant(policy=(Block, Head, nn.Linear)),
    "frozen": Variant(build=_frozen),
    "checkpointed": Variant(checkpointed=True),
    "checkpointed units in units": Variant(policy=(Block, nn.Linear), checkpointed=True),
    "offloaded": Variant(arguments=(("cpu_offload", True),)),
    "by keywords": Variant(build=Keywords),
}


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    out = model(tokens=tokens)["logits"] if isinstance(model, Keywords) else model(tokens)
    return nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())


def gradients_of(name: str, counts: Sequence[int], comms: Comms) -> Tensors:
    """Return the gradients of one batch, of a number of microbatches on each rank."""
    model = VARIANTS[name].prepare()
    rank = dist.get_rank()
    for tokens in microbatches(model, parts_of(0, rank, counts[rank]), comms=comms, agree=comms == "last"):
        torch.autograd.backward(loss_of(model, tokens) / sum(counts))
    return gradients(model)


def gradients_of_all(counts: Sequence[int]) -> dict[tuple[str, str], Tensors]:
    ways: list[Comms] = ["auto", "last"]
    return {(name, comms): gradients_of(name, counts, comms) for name in VARIANTS for comms in ways}


def unsharded_gradients(counts: Sequence[int]) -> dict[str, Tensors]:
    """Return the gradients of each variant's model on the microbatches of all ranks, in one rank."""
    found = {}
    for name, variant in VARIANTS.items():
        torch.manual_seed(0)
        model = variant.build()
        for rank, count in enumerate(counts):
            for tokens in parts_of(0, rank, count):
                # FSDP averages over the ranks.
                torch.autograd.backward(loss_of(model, tokens) / sum(counts) / len(counts))
        found[name] = gradients(model)
    return found


def retries() -> dict[str, tuple[int, int, bool, bool, bool]]:
    """Run out of memory in every variant, and train on: see :func:`_retry`."""
    return {name: _retry(variant) for name, variant in VARIANTS.items()}


def _retry(variant: Variant) -> tuple[int, int, bool, bool, bool]:
    """Fail in the backward of the second microbatch of four rows, and go on with two.

    Returns:
        The size and the number of retries; whether gradients, the parameters and momenta after a step, and
        the forwards of all modules are as if nothing had failed.
    """
    bomb = Bomb()
    found = []
    for size in (4, 2):
        model = variant.prepare()
        optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=0.3, momentum=0.9, foreach=False
        )
        _step(model, optimizer, batch(7, dist.get_rank(), rows=2), 2, None)
        if size == 4:
            bomb.in_backward(model.blocks[1].up)
        before = _hooks(model)
        run, grads = _step(model, optimizer, batch(0, dist.get_rank(), rows=8), size, bomb)
        momenta = {
            str(i): full(s["momentum_buffer"])
            for i, s in optimizer.state_dict()["state"].items()
            if isinstance(s["momentum_buffer"], torch.Tensor)
        }
        params = {name: full(p) for name, p in model.named_parameters()}
        found.append((run, grads, {**params, **momenta}, _hooks(model) == before))
    (run, grads, left, clean), (_, wanted, expected, _) = found
    return run.size, run.num_retries, same(grads, wanted), same(left, expected), clean


def _step(model: Any, optimizer: Any, rows: torch.Tensor, size: int, bomb: Bomb | None) -> Any:
    seen: list[int] = []

    def step(tokens: torch.Tensor) -> None:
        seen.append(len(tokens))
        if bomb is not None:
            bomb.armed = len(tokens) == 4 and len(seen) == 2
        torch.autograd.backward(loss_of(model, tokens) * len(tokens) / len(rows))

    run = auto_microbatch(model, rows, step, size=size)
    grads = gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    return run, grads


def _hooks(model: nn.Module) -> list[tuple[int, ...]]:
    return [
        (len(m._forward_pre_hooks), len(m._forward_hooks), len(m._backward_hooks), "forward" in vars(m))
        for m in model.modules()
    ]


class _Counting(TorchDispatchMode):
    """Counts the collectives of more than one element: a vote is of one."""

    KINDS: ClassVar[dict[str, str]] = {
        "c10d::_allgather_base_": "all-gather",
        "c10d::_reduce_scatter_base_": "reduce-scatter",
        "c10d::allreduce_": "all-reduce",
    }

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: dict[str, int] = dict.fromkeys(self.KINDS.values(), 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in self.KINDS:
            kind = self.KINDS[func._schema.name]
            first = args[0][0] if isinstance(args[0], list) else args[0]
            self.counts[kind] += first.is_floating_point()
        return func(*args, **(kwargs or {}))


def collectives(comms: Comms, strategy: str, count: int) -> dict[str, int]:
    """Return how often a batch of so many microbatches communicates, in a model of four units."""
    model = prepared(**STRATEGIES[strategy]())
    parts = parts_of(0, dist.get_rank(), count)
    torch.autograd.backward(loss_of(model, parts[0]))  # what is gathered once, when the model first runs
    with _Counting() as counting:
        for tokens in microbatches(model, parts, comms=comms):
            torch.autograd.backward(loss_of(model, tokens))
    assert all(isinstance(p, DTensor) for p in model.parameters())
    return dict(counting.counts)
