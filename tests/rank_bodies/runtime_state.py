"""State dicts and copies of weights, under FSDP1 and under FSDP2."""

from __future__ import annotations

import math
import warnings
import weakref
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fsdp_migrate.runtime import (
    clip_grad_norm_,
    clone_parameters,
    ema_update,
    full_state_dict,
    load_full_state_dict,
    load_model_state_dict,
    sharded_state_dict,
    summon_full_params,
    swapped_parameters,
)
from fsdp_migrate.sharding.prepare import prepare_fully_shard
from fsdp_migrate.torch_compat import cpu_mends
from tests.models import Block, Net, batch
from tests.rank_bodies.parity import Tensors, full
from tests.rank_bodies.runtime import BLOCKS, backward, error_of, fail, fsdp1, prepared, whole_of


def _both(case: str = "blocks") -> list[Any]:
    return [fsdp1(case), prepared(case)]


# State dicts


def _trained(model: Any, steps: int = 2) -> tuple[Any, torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()
    return model, optimizer


def full_states(case: str) -> dict[str, Any]:
    """Return the full state of a trained FSDP1 model, and ours of the same training."""
    old, old_optimizer = _trained(fsdp1(case))
    # Where the device is a CPU, torch cannot offload the model to it and makes garbage of the optimizer.
    with FSDP.state_dict_type(
        old,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(offload_to_cpu=False, rank0_only=True),
        FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=True),
    ):
        expected = {"model": old.state_dict(), "optimizer": FSDP.optim_state_dict(old, old_optimizer)}
    model, optimizer = _trained(prepared(case))
    return {"FSDP1": expected, "ours": full_state_dict(model, optimizer)}


def load_full_state() -> dict[str, Any]:
    """Go on from a full FSDP2 state in another model, and compare with never having stopped."""
    model, optimizer = _trained(prepared())
    state = full_state_dict(model, optimizer)
    optimizer.zero_grad()
    backward(model, 7)
    optimizer.step()
    other = prepare_fully_shard(Net(), BLOCKS)
    fresh = torch.optim.AdamW(other.parameters(), lr=0.5)
    with torch.no_grad():
        other(batch(0, 0))  # leaves the root's whole parameters in use
    load_full_state_dict(other, state, fresh)
    loss = backward(other, 7)
    fresh.step()
    found: dict[str, Any] = {"expected": whole_of(model), "loaded": whole_of(other), "loss": loss}
    found["lr"] = fresh.param_groups[0]["lr"]
    found["kept"] = sorted(state["optimizer"]) if state else []
    before = whole_of(other)
    found["refused"] = [
        error_of(partial(load_full_state_dict, other, *bad)) for bad in _bad_states(state, other)
    ]
    found["untouched"] = all(torch.equal(before[name], value) for name, value in whole_of(other).items())
    load_full_state_dict(other, {"model": {"offset": torch.full((6,), 4.0)}} if state else {}, strict=False)
    found["in part"] = other.get_buffer("offset").max().item()
    return found


def _rename_old(module: nn.Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    """Take what an older version of a module called `old`, as libraries do by such hooks."""
    if f"{prefix}old" in state:
        state[f"{prefix}head.out.weight"] = state.pop(f"{prefix}old")


def load_state_of_every_rank() -> dict[str, Any]:
    """Load full states that fit and that do not, into ours and into a plain model; return what each did."""
    torch.manual_seed(0)
    state = {name: value + 1 for name, value in Net().state_dict().items()}
    others = {name: value for name, value in state.items() if name != "head.out.weight"}
    cases: dict[str, tuple[dict[str, Any], bool]] = {
        "all": (state, True),
        "missing": (others, True),
        "missing, not strict": (others, False),
        "none": ({}, True),
        "unexpected": (state | {"more": torch.ones(1)}, True),
        "both, not strict": (others | {"more": torch.ones(1)}, False),
        "another shape": (state | {"embed.weight": torch.ones(14, 6)}, True),
        "an older name": (others | {"old": state["head.out.weight"]}, True),
    }
    found: dict[str, Any] = {}
    for name, (given, strict) in cases.items():
        found[name] = []
        for ours in (False, True):
            torch.manual_seed(1)
            model: Any = prepare_fully_shard(Net(), BLOCKS) if ours else Net()
            model.register_load_state_dict_pre_hook(_rename_old)
            before = dict(given)
            load = partial(load_model_state_dict, model) if ours else model.load_state_dict
            try:
                said = str(load(given, strict=strict))
            except RuntimeError as error:
                said = str(error).replace("FSDPNet", "Net")
            same = given.keys() == before.keys() and all(given[key] is before[key] for key in before)
            found[name].append((said, whole_of(model), same))
    with torch.device("meta"):
        model = fully_shard(Net())
    try:
        found["meta, missing"] = load_model_state_dict(model, others)
    except RuntimeError as error:
        found["meta, missing"] = str(error)
    load_model_state_dict(model, state)
    found["meta"] = [whole_of(model), {name: state[name] for name, _ in model.named_parameters()}]
    return found


def _bad_states(state: dict[str, Any], model: Any) -> list[tuple[Any, Any]]:
    """Return states that do not fit, of which rank 0 alone has more than an empty dict."""
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    two = torch.optim.SGD([{"params": [param]} for param in list(model.parameters())[:2]], lr=0.1)
    if not state:
        return [({}, None), ({}, whole), *[({}, None)] * 2, ({}, two), ({}, whole), ({}, None)]
    weights = state["model"]
    renamed = {name.replace("head.out", "out"): value for name, value in weights.items()}
    longer = {**weights, "embed.weight": torch.zeros(14, 6)}
    return [
        ({}, None),
        ({"model": weights}, whole),
        ({"model": renamed}, None),
        ({"model": longer}, None),
        (state, two),
        ({**state, "optimizer": whole.state_dict()}, whole),
        (None, None),
    ]


def _with_spare(lr: float) -> tuple[Any, list[torch.optim.Optimizer]]:
    """Return a model with a unit that is never used, and two optimizers."""
    model: Any = Net()
    model.spare = Block(3, 3)
    prepare_fully_shard(model, BLOCKS)
    params = list(model.parameters())
    adam = torch.optim.AdamW([*params[:2], *params[-2:]], lr=lr)
    return model, [adam, torch.optim.SGD(params[2:-2], lr=lr, momentum=0.9)]


def _sizes(state: dict[str, Any]) -> dict[str, int] | None:
    return {name: len(own) for name, own in state["optimizer"]["state"].items()} if state else None


def load_what_was_never_stepped() -> dict[str, Any]:
    """Load states with holes in them, into optimizers that have states and gradients already."""
    model, optimizers = _with_spare(0.01)
    states = {"fresh": full_state_dict(model, optimizers)}
    backward(model, 0)
    optimizers[0].step()
    states["holes"] = full_state_dict(model, optimizers)
    found: dict[str, Any] = {}
    for key, state in states.items():
        other, others = _with_spare(0.5)
        backward(other, 3)
        for each in others:
            each.step()
        grads = whole_of(other, grads=True)
        load_full_state_dict(other, state, others)
        kept = whole_of(other, grads=True)
        loaded = full_state_dict(other, others)
        others[0].step()
        found[key] = {
            "saved": _sizes(state),
            "loaded": _sizes(loaded),
            "gradients": all(torch.equal(grads[name], kept[name]) for name in grads),
            # What was sent must not be stepped along.
            "steps": [own["step"].item() for own in state["optimizer"]["state"].values()] if state else [],
        }
        part = {**state["optimizer"], "state": {"offset": {}}} if state else {}
        bad = {**state, "optimizer": part} if state else {}
        found["stranger"] = error_of(partial(load_full_state_dict, other, bad, others))
    return found


def memory_of_full_state() -> tuple[int, int, int]:
    """Count the whole tensors that are alive at once while a state is gathered; and those gathered."""
    model, optimizer = _trained(prepare_fully_shard(Net(tied=True), BLOCKS), 1)
    alive: list[weakref.ref[torch.Tensor]] = []
    most, gathered = 0, 0
    original = DTensor.full_tensor

    def counting(tensor: DTensor, **arguments: Any) -> torch.Tensor:
        nonlocal most, gathered
        whole = original(tensor, **arguments)
        alive.append(weakref.ref(whole))
        gathered += 1
        most = max(most, sum(reference() is not None for reference in alive))
        return whole

    with mock.patch.object(DTensor, "full_tensor", counting):
        full_state_dict(model, optimizer)
    return most, gathered, len(list(model.parameters()))


def side_effects_of_state() -> dict[str, Any]:
    """Take states before any step and after; change them, and look at the model."""
    model = prepared()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found: dict[str, Any] = {
        "fresh": full_state_dict(model, optimizer, rank0_only=False)["optimizer"]["state"]
    }
    found["untouched"] = len(optimizer.state)
    backward(model, 0)
    optimizer.step()
    before = whole_of(model)
    state = full_state_dict(model, optimizer, rank0_only=False)
    for tensor in state["model"].values():
        tensor.fill_(9.0)
    for own in state["optimizer"]["state"].values():
        own["exp_avg"].fill_(9.0)
    after = whole_of(model)
    moments = [full(own["exp_avg"]) for own in optimizer.state.values()]
    found["shared"] = [name for name in before if not torch.equal(before[name], after[name])]
    found["shared moments"] = sum(bool((moment == 9.0).any()) for moment in moments)
    found["buffer"] = model.offset.max().item()
    stranger = torch.optim.SGD(Net().parameters(), lr=0.1)
    found["stranger"] = error_of(lambda: full_state_dict(model, stranger))
    two = [torch.optim.SGD([param], lr=0.1 * k) for k, param in enumerate(list(model.parameters())[:2], 1)]
    groups = full_state_dict(model, two, rank0_only=False)["optimizer"]["param_groups"]
    found["two"] = [(group["lr"], group["params"]) for group in groups]
    return found


def names_with_wrappers() -> tuple[list[str], list[str], list[str]]:
    """Return the names of states of a model in which blocks are wrapped and the whole is compiled."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model: Any = Net()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    prepare_fully_shard(model, BLOCKS)
    compiled: Any = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward(model, 0)
    optimizer.step()
    state = full_state_dict(compiled, optimizer, rank0_only=False)
    return list(state["model"]), list(state["optimizer"]["state"]), list(Net().state_dict())


def sharded_states(folder: str) -> dict[str, Any]:
    """Save FSDP1's sharded state, load it into ours in place, and compare."""
    warnings.simplefilter("ignore")
    old, old_optimizer = _trained(fsdp1("blocks"))
    with FSDP.state_dict_type(
        old, StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig()
    ):
        saved = {"model": old.state_dict(), "optimizer": FSDP.optim_state_dict(old, old_optimizer)}
    save(saved, checkpoint_id=folder)
    model, optimizer = _trained(prepare_fully_shard(Net(), BLOCKS), 1)
    state = sharded_state_dict(model, optimizer)
    names = {part: sorted(state[part]) for part in state}
    load(state, checkpoint_id=folder)
    moments = {name: full(own["exp_avg"]) for name, own in state["optimizer"]["state"].items()}
    with FSDP.state_dict_type(
        old,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(),
        FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=False),
    ):
        expected = FSDP.optim_state_dict(old, old_optimizer)["state"]
    return {
        "names": names,
        "expected names": {part: sorted(saved[part]) for part in saved},
        "parameters": whole_of(model),
        "expected": whole_of(old),
        "moments": moments,
        "expected moments": {name: own["exp_avg"] for name, own in expected.items()},
    }


# Copies of weights


def average_weights() -> dict[str, Any]:
    """Average while training, on FSDP1's whole parameters and on our shards; evaluate with the averages."""
    averages: list[Tensors] = []
    model: Any = None
    for model in _both():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        mine = whole_of(model) if isinstance(model, FSDP) else clone_parameters(model)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
            if isinstance(model, FSDP):
                for name, value in whole_of(model).items():
                    mine[name].lerp_(value, 1 - 0.75)
            else:
                ema_update(mine, model, 0.75)
        averages.append(mine)
    expected, average = averages
    reference = Net()
    tokens = batch(9, 0)
    reference.load_state_dict(expected, strict=False)
    own = whole_of(model)
    with torch.no_grad():
        before = model(tokens)
        with swapped_parameters(model, average):
            inside = model(tokens)
            saved = full_state_dict(model)
        after = model(tokens)
        with suppress(KeyError), swapped_parameters(model, average):
            fail()
    return {
        "average": {name: full(value) for name, value in average.items()},
        "expected": expected,
        "local": sum(value.to_local().numel() for value in average.values() if isinstance(value, DTensor)),
        "inside": (inside, reference(tokens).detach()),
        "outside": torch.equal(before, after),
        "differs": not torch.equal(before, inside),
        "saved": {name: value for name, value in saved.get("model", {}).items() if name in expected},
        "own": (own, whole_of(model)),
    }


def copy_weights() -> dict[str, Any]:
    """Copy with buffers, in another dtype, of ties; and use copies that do not fit."""
    model = prepare_fully_shard(Net(tied=True).bfloat16(), BLOCKS)
    copies = clone_parameters(model, buffers=True, dtype=torch.float32)
    found: dict[str, Any] = {"dtypes": {str(value.dtype) for value in copies.values()}}
    found["tied"] = [name for name in ("embed.weight", "head.out.weight") if name in copies]
    found["buffers"] = [name for name in copies if "offset" in name]
    found["alike"] = all(
        torch.equal(full(copies[name]).bfloat16(), full(param)) for name, param in model.named_parameters()
    )
    backward(model, 0)
    with torch.no_grad():
        model.embed.weight.zero_()
    found["apart"] = bool(full(copies["embed.weight"]).any())
    ema_update(copies, model, 0.5)
    found["requires grad"] = any(value.requires_grad for value in copies.values())
    found["decay"] = error_of(lambda: ema_update(copies, model, 1.5))
    found["stranger"] = error_of(lambda: ema_update({"nothing": torch.zeros(1)}, model, 0.5))
    plain = {"embed.weight": torch.zeros(13, 6)}
    found["plain"] = error_of(lambda: swapped_parameters(model, plain).__enter__())
    with swapped_parameters(model, copies):
        found["in bfloat16"] = str(model.embed.weight.dtype)
    counter: Any = nn.BatchNorm1d(3)
    counts = clone_parameters(counter, buffers=True)
    counter.num_batches_tracked.fill_(5)
    ema_update(counts, counter, 0.5)
    found["counter"] = counts["num_batches_tracked"].item()
    return found


def train_two_copies() -> float:
    """Train a model in the context of other weights; return by how much its own have moved."""
    model = prepared()
    other = clone_parameters(model)
    before = whole_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with swapped_parameters(model, other):
        backward(model, 0)
        optimizer.step()
    after = whole_of(model)
    moved = max((full(other[name]) - before[name]).abs().max().item() for name in before)
    assert moved > 0, "the training was lost"
    return max((after[name] - before[name]).abs().max().item() for name in before)


# Tensor parallelism


def with_tensor_parallelism() -> dict[str, Any]:
    """Clip, show, write and gather a model whose parameters are sharded over two dimensions of a mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tokens = torch.linspace(-1.0, 1.0, 24).reshape(4, 6)
    results: list[Any] = []
    model: Any = None
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        if sharded:
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            for layer in (model[0], model[2], model):
                fully_shard(layer, mesh=mesh["dp"])
            cpu_mends.mend_fsdp2_on_cpu("cpu")
            cpu_mends.mend_gloo_averaging(mesh["dp"], [model[0], model[2], model])
        torch.autograd.backward(model(tokens).square().mean())
        norms = [clip_grad_norm_(model, 1e9, order).item() for order in (1.0, 2.0, math.inf)]
        with summon_full_params(model, with_grads=True):
            shown = {name: param.detach().clone() for name, param in model.named_parameters()}
            grads = {name: full(param.grad) for name, param in model.named_parameters()}
            with torch.no_grad():
                for param in model.parameters():
                    param.mul_(2.0).add_(1.0)
        state = full_state_dict(model, rank0_only=False)["model"]
        results.append({"norms": norms, "shown": shown, "gradients": grads, "state": state})
    loaded = _reload(model)
    placements = {str(param.placements) for param in model.parameters()}
    return {"plain": results[0], "sharded": results[1], "placements": len(placements), "loaded": loaded}


def _reload(model: Any) -> list[str]:
    """Save a model and its optimizer, spoil both, load them; return the names of what is not as before."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    optimizer.step()
    state = full_state_dict(model, optimizer, rank0_only=False)
    other = torch.optim.AdamW(model.parameters(), foreach=False)
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    load_full_state_dict(model, state, other)
    again = full_state_dict(model, other, rank0_only=False)
    pairs = {name: (value, again["model"][name]) for name, value in state["model"].items()}
    for name, own in state["optimizer"]["state"].items():
        pairs |= {f"{name}.{key}": (own[key], again["optimizer"]["state"][name][key]) for key in own}
    with torch.no_grad():
        for param in model.parameters():
            param.zero_()
    load_model_state_dict(model, state["model"])
    by_every_rank = full_state_dict(model, rank0_only=False)["model"]
    pairs |= {f"{name} by every rank": (state["model"][name], value) for name, value in by_every_rank.items()}
    return [name for name, (one, two) in pairs.items() if not torch.equal(one, two)]
