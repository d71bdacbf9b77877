"""Whole tensors a bucket at a time, as an inference engine is given them."""

from __future__ import annotations

import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fsdp_migrate.errors import ModelStateError
from fsdp_migrate.runtime import full_state_dict, full_tensors, named_full_tensors, offloaded
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat.traffic import Traffic, count_traffic
from tests.models import Net
from tests.rank_bodies import parallelism
from tests.rank_bodies.parity import Tensors, model_of
from tests.rank_bodies.runtime import BLOCKS, backward, error_of, prepared, result_or_refusal


if TYPE_CHECKING:
    from collections.abc import Callable


Given = list[tuple[str, torch.Tensor]]


def _differing(given: Given, expected: Tensors, dtype: torch.dtype | None = None) -> list[str]:
    """Return the names that only one of them has, and those whose values or dtypes differ."""
    found = dict(given)
    wrong = sorted(found.keys() ^ expected.keys())
    for name in found.keys() & expected.keys():
        casts = dtype is not None and expected[name].is_floating_point()
        wanted = expected[name].to(dtype) if casts else expected[name]
        same = found[name].dtype == wanted.dtype and torch.equal(found[name], wanted)
        wrong += [] if same and type(found[name]) is torch.Tensor else [name]
    return wrong


def _whole(model: nn.Module) -> Tensors:
    state: Tensors = full_state_dict(model, rank0_only=False)["model"]
    return state


def values() -> dict[str, Any]:
    """Gather models in buckets of several sizes; return what differs from a state dict, and the names."""
    tied = Net(tied=True)
    tied.blocks[0].requires_grad_(False)
    tied.register_buffer("count", torch.tensor([3, 2**40]))
    mixed = Net()
    mixed.blocks[0].requires_grad_(False).bfloat16()  # shards of 18 bytes before others of 4-byte numbers
    models = {
        "mixed": prepare_fully_shard(mixed, BLOCKS),
        "tied": prepare_fully_shard(tied, BLOCKS),
        "bf16 with buffers": prepared("bf16 with buffers"),
        "NO_SHARD": prepared("NO_SHARD"),
        "CPU offload": prepared("blocks", cpu_offload=True),
    }
    backward(models["tied"], 0)  # the root keeps whole parameters after a forward
    found: dict[str, Any] = {}
    for name, model in models.items():
        expected = _whole(model)
        for num_bytes in (1, 500, 2**30):
            given = list(named_full_tensors(model, bucket_bytes=num_bytes))
            found[f"{name}, {num_bytes}"] = _differing(given, expected)
    model, expected = models["tied"], _whole(models["tied"])
    cast = list(named_full_tensors(model, dtype=torch.bfloat16))
    found["cast"] = _differing(cast, expected, torch.bfloat16)
    given = list(named_full_tensors(model))
    found["names"], found["reference"] = [name for name, _ in given], list(Net(tied=True).state_dict())
    whole = dict(given)
    found["one tensor"] = whole["embed.weight"] is whole["head.out.weight"]
    some = named_full_tensors(model, ["head.out.weight", "blocks.1.up.weight", "offset"])
    found["chosen"] = [name for name, _ in some]
    for _, tensor in given:
        tensor.fill_(7)
    found["shared"] = _differing(list(_whole(model).items()), expected)
    return found


def communication() -> dict[str, Any]:
    """Count the collectives for buckets of one tensor, and of all."""
    model = prepare_fully_shard(Net(tied=True), BLOCKS)
    found: dict[str, Any] = {"params": len(list(model.parameters()))}
    for num_bytes in (1, 2**30):
        traffic = Traffic()
        with count_traffic(traffic):
            list(named_full_tensors(model, bucket_bytes=num_bytes))
        found[str(num_bytes)] = {kind: count for (kind, _, _), count in traffic.calls.items()}
    return found


class _Alive(TorchDispatchMode):
    """Adds up the memory of all tensors that operations have made and somebody still holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: list[weakref.ref[torch.Tensor]] = []
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        self._made += [
            weakref.ref(t)
            for t in (out if isinstance(out, (list, tuple)) else [out])
            if isinstance(t, torch.Tensor)
        ]
        self._made = [each for each in self._made if each() is not None]
        held = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
            for each in self._made
            if (t := each()) is not None
        }
        self.peak = max(self.peak, sum(held.values()))
        return out


def memory() -> dict[str, int]:
    """Return the most bytes that are held beside the model: in buckets of four tensors, of one, of all."""
    layer = nn.Linear(64, 65, bias=False)
    model = prepare_fully_shard(
        nn.Sequential(*(nn.Linear(64, 65, bias=False) for _ in range(32))), {"device_id": "cpu"}
    )
    size = layer.weight.nbytes
    found = {"tensor": size}
    for count in (1, 4, 32):
        tensors = named_full_tensors(model, bucket_bytes=count * size)
        with _Alive() as alive:
            for _, tensor in tensors:
                del tensor
        found[str(count)] = alive.peak
    return found


def wrong_calls() -> dict[str, Any]:
    """Call it with what does not fit, on one rank or on all."""
    rank = dist.get_rank()
    model = prepared()
    calls: dict[str, Callable[[], Any]] = {
        "unknown name": partial(named_full_tensors, model, ["head.out.weigth"] if rank else None),
        "other buckets": partial(named_full_tensors, model, bucket_bytes=10 + rank),
        "other names": partial(named_full_tensors, model, ["embed.weight", "offset"] if rank else ["offset"]),
        "other dtype": partial(named_full_tensors, model, dtype=torch.bfloat16 if rank else None),
        "no bytes": partial(named_full_tensors, model, bucket_bytes=0),
    }
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    calls["meta"] = partial(named_full_tensors, empty)
    calls["offloaded meta"] = lambda: offloaded(empty).__enter__()
    found: dict[str, Any] = {name: error_of(call) for name, call in calls.items()}
    found["afterwards"] = _differing(list(named_full_tensors(model)), _whole(model))
    return found


def early_ends() -> dict[str, Any]:
    """End the loop early on one rank, on all, at the last bucket; return how the ranks fare."""
    model, rank = prepared(), dist.get_rank()
    last = list(model.state_dict())[-1]

    def loop(until: Callable[[str], bool], *, fail: bool = False) -> int:
        count = 0
        for name, _ in named_full_tensors(model, bucket_bytes=1):
            count += 1
            if until(name):
                if fail:
                    raise ModelStateError("the engine is gone")
                break
        return count

    def out_of_memory() -> None:
        original = full_tensors._Gather.__init__

        def failing(self: Any, entries: Any) -> None:
            if rank and entries[0].names == ["blocks.0.up.weight"]:
                raise MemoryError("no memory here")
            original(self, entries)

        with mock.patch.object(full_tensors._Gather, "__init__", failing):
            loop(lambda name: False)

    counts: list[int] = []
    found: dict[str, Any] = {
        "break": error_of(lambda: counts.append(loop(lambda name: rank == 1))),
        "error": error_of(lambda: counts.append(loop(lambda name: rank == 1, fail=True))),
        "all": error_of(lambda: counts.append(loop(lambda name: True))),
        "last": error_of(lambda: counts.append(loop(lambda name: rank == 1 and name == last))),
        "never begun": error_of(
            lambda: (
                named_full_tensors(model, bucket_bytes=1) if rank else counts.append(loop(lambda _: False))
            )
        ),
        "memory": _any_error(out_of_memory),
    }
    kept = named_full_tensors(model, bucket_bytes=1)
    next(kept)
    if rank:
        kept.close()  # type: ignore[attr-defined]
        found["closed"] = ("no error", "")
    else:
        found["closed"] = error_of(lambda: list(kept))
    found["counts"] = counts
    found["afterwards"] = _differing(list(named_full_tensors(model)), _whole(model))
    return found


def _any_error(call: Callable[[], Any]) -> tuple[str, str]:
    try:
        return error_of(call)
    except MemoryError as error:
        return type(error).__name__, str(error)


MESHES = (
    "tensor parallel",
    "tensor parallel, tied",
    "sequence parallel",
    "expert parallel",
    "HYBRID_SHARD",
    "uneven tensor parallel",
)


def on_meshes() -> dict[str, Any]:
    """Gather models on meshes of 2 x 2 ranks; return what differs from the model of one process."""
    warnings.simplefilter("ignore")
    return {name: result_or_refusal(_on_mesh, name) for name in MESHES}


def _on_mesh(name: str) -> dict[str, Any]:
    if name == "HYBRID_SHARD":
        plain, model = model_of(name), prepared(name)
    else:
        setup = (
            parallelism.CASES[name]() if name in parallelism.CASES else parallelism._tensor(make=_uneven)()
        )
        plain = setup.plain
        model = prepare_fully_shard(setup.model, setup.arguments, **setup.more)
    expected = {key: value for key, value in plain.state_dict().items() if isinstance(value, torch.Tensor)}
    found: dict[str, Any] = {"tensors": len(expected)}
    for num_bytes in (1, 3000, 2**30):
        traffic = Traffic()
        with count_traffic(traffic):
            given = list(named_full_tensors(model, bucket_bytes=num_bytes))
        found[str(num_bytes)] = _differing(given, expected)
        found[f"gathers of {num_bytes}"] = sum(traffic.calls.values())
    return found


def _uneven() -> nn.Module:
    return parallelism.Decoder(inner=18)
