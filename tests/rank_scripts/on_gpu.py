"""Runs one case on one device and writes what it found as JSON: ``on_gpu.py CASE [KIND] [--device cuda]``.

tests/sharding/test_gpu.py says what is expected of each case. ``--device cpu`` is for working on this file.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard, shard_plan
from fsdp_migrate.forecast import forecast_memory
from fsdp_migrate.microbatch.search import auto_microbatch
from fsdp_migrate.runtime import full_state_dict, named_full_tensors, offloaded
from tests.frameworks import torchao_bodies
from tests.models import Block
from tests.sharding import gather_hooks_bodies


KINDS = ("FSDP1", "prepared")
NUM_FAKE_RANKS = 8


def blocks(width: int, count: int = 4) -> nn.Sequential:
    """Return the same model at every call: residual blocks whose rows do not divide by 8."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block(width, 4 * width + 1) for _ in range(count)))


def sharded(kind: str, model: nn.Module, arguments: dict[str, Any]) -> nn.Module:
    """Shard a model by one of the two, with the same arguments."""
    if kind == "prepared":
        prepared: nn.Module = prepare_fully_shard(model, arguments)
        return prepared
    return FSDP(model, use_orig_params=True, **arguments)


def arguments_for(device: torch.device, **more: Any) -> dict[str, Any]:
    return {"auto_wrap_policy": ModuleWrapPolicy({Block}), "device_id": device, **more}


def trained(kind: str, device: torch.device, **more: Any) -> dict[str, torch.Tensor]:
    """Return the whole parameters and buffers, on the CPU, after three steps of SGD."""
    model = sharded(kind, blocks(48), arguments_for(device, **more))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(5, 48, generator=generator).to(device)
        torch.autograd.backward(model(inputs).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()
    options = StateDictOptions(full_state_dict=True)
    state = get_model_state_dict(model, options=options)
    return {name: value.cpu() for name, value in state.items() if isinstance(value, torch.Tensor)}


def differences(device: torch.device, **more: Any) -> dict[str, Any]:
    """Train both kinds; return the names of what differs in any bit."""
    reference, found = (trained(kind, device, **more) for kind in KINDS)
    return {
        "names": sorted(reference) == sorted(found) and len(found),
        "different": [name for name in reference if not torch.equal(reference[name], found[name])],
    }


def mixed_precision(device: torch.device) -> dict[str, Any]:
    policies = {
        "bf16": MixedPrecision(param_dtype=torch.bfloat16),
        "bf16 reduced in fp32": MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
        ),
        "fp16": MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16),
    }
    return {name: differences(device, mixed_precision=policy) for name, policy in policies.items()}


def offload(device: torch.device) -> dict[str, Any]:
    """Train both kinds offloaded; say where the prepared model's parameters and gradients lie."""
    found = differences(device, cpu_offload=CPUOffload(offload_params=True))
    model = sharded(
        "prepared", blocks(48), arguments_for(device, cpu_offload=CPUOffload(offload_params=True))
    )
    torch.autograd.backward(model(torch.ones(5, 48, device=device)).sum())
    local = [param.to_local() for param in model.parameters() if isinstance(param, DTensor)]
    grads = [param.grad.to_local() for param in model.parameters() if isinstance(param.grad, DTensor)]
    return {
        **found,
        "parameters": len(local),
        "devices": sorted({tensor.device.type for tensor in (*local, *grads)}),
        "gradients": len(grads),
        "pinned": all(tensor.is_pinned() for tensor in local),
    }


def host_memory(device: torch.device) -> dict[str, Any]:
    """Train with the model and its optimizer in host memory between two steps, and without; compare."""
    results: list[dict[str, torch.Tensor]] = []
    found: dict[str, Any] = {}
    for away in (False, True):
        gc.collect()  # of the first run nothing is to be left on the device
        model = sharded("prepared", blocks(256), arguments_for(device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            torch.autograd.backward(model(torch.full((5, 256), 0.1 * step, device=device)).square().mean())
            if away and step == 1:
                found = in_host_memory(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
        results.append({name: tensor.cpu() for name, tensor in named_full_tensors(model)})
        del model, optimizer
    reference, trained_again = results
    found["different"] = [name for name in reference if not torch.equal(reference[name], trained_again[name])]
    found["names"] = len(reference)
    return found


def in_host_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what is on the device before, in the context and after it, and what the context shows."""

    def allocated() -> int:
        if not torch.cuda.is_available():
            return 0
        torch._C._cuda_clearCublasWorkspaces()  # 32 MiB, as main() sets it, which are no model's
        return torch.cuda.memory_allocated()

    values = {name: tensor.cpu() for name, tensor in named_full_tensors(model)}
    objects = [id(param) for param in model.parameters()]
    found: dict[str, Any] = {"before": allocated(), "reserved before": reserved()}
    with offloaded(model, optimizer):
        found |= {"inside": allocated(), "reserved inside": reserved()}
        state = [value for own in optimizer.state.values() for value in own.values()]
        local = [
            tensor.to_local() if isinstance(tensor, DTensor) else tensor
            for tensor in (*model.parameters(), *model.buffers(), *state)
        ]
        found["devices inside"] = sorted({tensor.device.type for tensor in local})
        found["pinned"] = all(tensor.is_pinned() for tensor in local if tensor.ndim)
        given = dict(named_full_tensors(model))
        found["given on"] = sorted({given[name].device.type for name, _ in model.named_parameters()})
        found["wrong inside"] = [name for name in values if not torch.equal(values[name], given[name].cpu())]
        state_dict = full_state_dict(model)["model"]
        found["wrong saved"] = [name for name in values if not torch.equal(values[name], state_dict[name])]
        del given
    found["after"] = allocated()
    after = {name: tensor.cpu() for name, tensor in named_full_tensors(model)}
    found["wrong after"] = [name for name in values if not torch.equal(values[name], after[name])]
    found["same objects"] = objects == [id(param) for param in model.parameters()]
    return found


def out_of_memory(device: torch.device) -> dict[str, Any]:
    """Run a batch that does not fit, and again with the size that fitted; compare, and see what was kept."""
    model = sharded("prepared", blocks(256).append(nn.Dropout(0.2)), arguments_for(device))
    rows = torch.randn(2**16, 256, generator=torch.Generator().manual_seed(1)).to(device)

    def step(part: torch.Tensor) -> float:
        loss = model(part).square().sum() / len(rows)
        torch.autograd.backward(loss)
        return float(loss)

    step(rows[:1])  # cuBLAS takes its workspace
    model.zero_grad()
    before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    if device.type == "cuda":
        limit = (reserved() + 2**29) / torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(limit)
    size, results = None, []
    for _ in range(2):
        torch.manual_seed(3)
        run = auto_microbatch(model, rows, step, size=size)
        grads = [param.grad.full_tensor() for param in model.parameters() if isinstance(param.grad, DTensor)]
        results.append((run, grads))
        size = run.size
        model.zero_grad()
    (run, grads), (again, expected) = results
    found = {"retries": run.num_retries, "size": run.size, "retries again": again.num_retries}
    found["gradients"] = len(expected)
    found["is same"] = run.outputs == again.outputs and all(map(torch.equal, grads, expected))
    del results, grads, expected
    found["kept"] = (torch.cuda.memory_allocated() if device.type == "cuda" else 0) - before
    return found


def gather_hooks(device: torch.device) -> dict[str, Any]:
    """Train weights that say how they are gathered, by hand and prepared; torchao's too, if it is there."""
    found = {}
    for kind in (gather_hooks_bodies.Rounded, gather_hooks_bodies.Kept):
        for low in (None, torch.bfloat16):
            models = [gather_hooks_bodies.make(kind, []) for _ in KINDS]
            theirs = gather_hooks_bodies.by_hand(models[0], low, low, device.type)
            ours = gather_hooks_bodies.prepared(models[1], low, low, device_id=device)
            same = gather_hooks_bodies.train(theirs) == gather_hooks_bodies.train(ours)
            found[f"{kind.__name__}, {low}"] = same and gather_hooks_bodies.kinds_of(ours) == {kind.__name__}
    for low in (None, torch.bfloat16) if importlib.util.find_spec("torchao") else ():
        converted = [torchao_bodies.make("fp8", emulate=device.type == "cpu") for _ in KINDS]
        both = (
            torchao_bodies.by_hand(converted[0], low, device.type),
            torchao_bodies.prepared(converted[1], low, device.type),
        )
        losses = [torchao_bodies.train(model, "precomputed") for model in both]
        found[f"torchao, {low}"] = losses[0] == losses[1] and math.isfinite(losses[0][-1])
    return found


def reserved() -> int:
    return torch.cuda.memory_reserved() if torch.cuda.is_available() else 0


class Recurrent(nn.Module):
    """A recurrent layer, whose outputs alone are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(48, 48, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.layer(x)[0]
        return out


def recurrent(device: torch.device) -> dict[str, Any]:
    """Train recurrent layers under FSDP1, prepared, and by torch's ``fully_shard`` alone."""
    results = []
    for kind in (*KINDS, "by hand"):
        torch.manual_seed(0)
        layers = nn.Sequential(Recurrent(), Recurrent())
        model: nn.Module = layers
        if kind == "by hand":
            for module in (*layers, layers):
                fully_shard(module, mesh=dist.init_device_mesh(device.type, (1,)))
        else:
            model = sharded(
                kind, model, {"auto_wrap_policy": ModuleWrapPolicy({Recurrent}), "device_id": device}
            )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for step in range(4):
            inputs = torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(step)).to(device)
            loss = model(inputs).square().mean()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        results.append(losses)
    fsdp1, prepared, by_hand = results
    return {"is same": prepared == fsdp1, "by hand is same": by_hand == fsdp1, "losses": results}


def memory(device: torch.device, kind: str) -> dict[str, Any]:
    """Train two steps as one of 8 ranks; return bytes of device memory in sharding, after it, and at most."""
    model = sharded(kind, blocks(1024, 8), arguments_for(device))
    after_sharding = torch.cuda.memory_allocated() if device.type == "cuda" else 0
    in_sharding = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        torch.autograd.backward(model(torch.ones(16, 1024, device=device)).sum())
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    found = {"after_sharding": after_sharding, "in_sharding": in_sharding, "peak": peak}
    if kind == "prepared":
        plan = shard_plan(model)
        found |= {
            "planned": plan.bytes.sharded,
            "unit": max(unit.bytes.unsharded for unit in plan.units if unit.bytes),
        }
    return found


def forecast(kind: str) -> dict[str, Any]:
    """Foretell the peak of one of 8 ranks on a GPU, and return what is allocated at the peak there."""
    arguments = {"auto_wrap_policy": ModuleWrapPolicy({Block}), "use_orig_params": True}
    batch = torch.ones(512, 1024)
    told = forecast_memory(
        blocks(1024, 8), {**arguments, "device_id": 0}, world_size=NUM_FAKE_RANKS, batches=[(batch,)]
    )
    peak = told.fsdp2 if kind == "prepared" else told.fsdp1
    device = torch.device("cuda", 0)
    start("memory", device)
    torch.cuda.set_device(device)
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    model = sharded(kind, blocks(1024, 8), arguments_for(device))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        torch.autograd.backward(model(batch.to(device)).float().square().mean())
        optimizer.step()
        optimizer.zero_grad()
    allocated, now = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return {
        "foretold": None if peak is None else peak.total,
        "allocated": allocated,
        "workspaces": now - torch.cuda.memory_allocated(),
        "notes": told.notes,
    }


def start(case: str, device: torch.device) -> None:
    """Make a process group of one rank; for memory, rank 0 of 8 whose others are torch's fake ones."""
    if case == "memory":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_FAKE_RANKS)
        return
    store = dist.HashStore()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cases = (
        "mixed_precision",
        "offload",
        "host_memory",
        "out_of_memory",
        "gather_hooks",
        "recurrent",
        "memory",
        "forecast",
    )
    parser.add_argument("case", choices=cases)
    parser.add_argument("kind", nargs="?", choices=KINDS, default="prepared")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it CUDA's products are not deterministic
    torch.use_deterministic_algorithms(True)
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    if options.case != "forecast":
        start(options.case, device)
    if options.case == "forecast":
        found = forecast(options.kind)
    elif options.case == "memory":
        found = memory(device, options.kind)
    else:
        functions = {
            "mixed_precision": mixed_precision,
            "offload": offload,
            "host_memory": host_memory,
            "out_of_memory": out_of_memory,
            "gather_hooks": gather_hooks,
            "recurrent": recurrent,
        }
        found = functions[options.case](device)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
