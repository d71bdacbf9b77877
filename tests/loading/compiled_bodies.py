"""Ranks that save what FSDP1 trained around or inside ``torch.compile``, and load it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

from fsdp_migrate import load_checkpoint, prepare_fully_shard
from fsdp_migrate.torch_compat.cpu_mends import mend_gloo_averaging
from tests.models import Block, Net, batch, loss_of


if TYPE_CHECKING:
    from collections.abc import Sequence


def compiled(module: nn.Module) -> nn.Module:
    """Wrap a module as ``torch.compile`` does; nothing is traced, see :func:`_begin`."""
    wrapped: Any = torch.compile(module, backend="eager")
    assert isinstance(wrapped, nn.Module)
    return wrapped


def _begin(seed: int) -> Net:
    warnings.simplefilter("ignore")
    torch.compiler.set_stance("force_eager")  # tracing would take longer than all the rest
    torch.manual_seed(seed)
    return Net()


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[float]:
    losses = []
    for step in steps:
        loss = loss_of(model, batch(step, dist.get_rank()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def save_each(folder: str, kinds: Sequence[str], forms: Sequence[str]) -> dict[str, list[float]]:
    """Train each kind two steps, save it in each form, and return the losses of the next two."""
    found = {}
    for kind in kinds:
        root, outer = _fsdp1(kind)
        optimizer = torch.optim.AdamW(outer.parameters(), lr=1e-2)
        _train(outer, optimizer, range(2))
        for form in forms:
            _save(Path(folder) / kind / form, form, root, outer, optimizer)
        found[kind] = _train(outer, optimizer, range(2, 4))
    return found


def _fsdp1(kind: str) -> tuple[FSDP, nn.Module]:
    """Return what FSDP1 wrapped, and what is trained."""
    net: nn.Module = _begin(1)
    options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": "flat" not in kind}
    if kind == "blocks":
        blocks: Any = net.get_submodule("blocks")
        for index, block in enumerate(blocks):
            blocks[index] = compiled(FSDP(block, **options))
        return (root := FSDP(net, **options)), root
    inside = "inside" in kind
    root = FSDP(compiled(net) if inside else net, auto_wrap_policy=ModuleWrapPolicy({Block}), **options)
    return root, root if inside else compiled(root)


def _save(folder: Path, form: str, root: FSDP, outer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rank = dist.get_rank()
    # Moved to the CPU by torch, a full optimizer state of a CPU is corrupt.
    ways = (FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False)) if form == "full" else ()
    with FSDP.state_dict_type(root, StateDictType[f"{form.upper()}_STATE_DICT"], *ways):
        model = outer.state_dict()
        assert any("_orig_mod." in name for name in model)
        if form == "local":
            torch.save({"model": model, "optimizer": optimizer.state_dict()}, folder / f"rank{rank}.pt")
            return
        state = {"model": model, "optimizer": FSDP.optim_state_dict(outer, optimizer)}
        if form == "sharded":
            dcp_save(state, checkpoint_id=folder)
        elif rank == 0:
            torch.save(state, folder / "state.pt")
    dist.barrier()


def load_ddp(folder: str) -> list[list[float]]:
    """Train under DDP, save, and return the next two losses, and those of models that load it."""
    path = Path(folder) / "ddp.pt"
    model = DistributedDataParallel(_begin(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    _train(model, optimizer, range(2))
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    dist.barrier()
    found = [_train(model, optimizer, range(2, 4))]
    for way in ("fully_shard", "DDP", "compiled DDP", "own module"):
        loaded = _fsdp2(way, use_orig_params=True) if way == "fully_shard" else _replicated(way)
        optimizer = torch.optim.AdamW(loaded.parameters(), lr=1.0)
        load_checkpoint(path, loaded, optimizer)
        found.append(_train(loaded, optimizer, range(2, 4)))
    return found


class Owner(nn.Module):
    """A model that keeps all that it has under the name that DDP adds."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(tokens)
        return out


def _replicated(way: str) -> nn.Module:
    if way == "own module":
        owner: nn.Module = Owner(_begin(99))
        fully_shard(owner)
        return owner
    model = DistributedDataParallel(_begin(99))
    return compiled(model) if way == "compiled DDP" else model


def load_each(folder: str, cases: Sequence[tuple[str, str, str]]) -> list[list[float]]:
    """Load each form of each kind into a model made in one way; return the next two losses."""
    found = []
    for kind, form, way in cases:
        model = _fsdp2(way, use_orig_params="flat" not in kind)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
        load_checkpoint(Path(folder) / kind / form, model, optimizer)
        found.append(_train(model, optimizer, range(2, 4)))
    return found


def _fsdp2(way: str, *, use_orig_params: bool) -> nn.Module:
    net: Any = _begin(99)
    if way == "fully_shard":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        sharded: nn.Module = fully_shard(net, mesh=mesh)
        units = [each for each in sharded.modules() if isinstance(each, FSDPModule)]
        mend_gloo_averaging(mesh, units)  # up to torch 2.8 gloo sums
        return sharded
    if way == "compiled blocks":
        for index, block in enumerate(net.blocks):
            net.blocks[index] = compiled(block)
    arguments = {"auto_wrap_policy": {Block}, "device_id": "cpu", "use_orig_params": use_orig_params}
    model: nn.Module = compiled(net) if way == "compiled before" else net
    model = prepare_fully_shard(model, arguments)
    if way == "compiled in place":
        model.compile(backend="eager")
    return compiled(model) if way == "compiled after" else model
