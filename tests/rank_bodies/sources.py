"""Real FSDP1 runs whose ranks save each for itself, and an FSDP2 model that loads what became of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.models import VOCABULARY, Block, Net
from tests.rank_bodies.conversions import _full


Flat = dict[str, Any]


class RankNet(Net):
    """A model with a tie in the root, a frozen parameter, and a buffer that is not the same on every rank."""

    rank: torch.Tensor

    def __init__(self) -> None:
        super().__init__(tied=True)
        self.gain = nn.Parameter(torch.full((3,), 0.7))
        self.register_buffer("rank", torch.zeros(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(tokens) * self.gain.mean()
        return out


def save_rank_files(folder: str) -> dict[str, Flat]:
    """Train each kind of FSDP1, save it in every way that ranks save by themselves, and return it whole.

    Kinds: ``plain`` (ShardedTensor), ``mesh`` (DTensor), ``flat`` (``use_orig_params=False``), ``mixed``
    (bf16 parameters, so that flat parameters are aligned in another way). Per kind there are
    ``sharded_rank{r}.pt``, ``model_rank{r}.pt`` (its model), ``local_rank{r}.pt`` and ``optim_rank{r}.pt``;
    and distributed ones: ``pytorch_model_fsdp_0``, ``optimizer_0``, and ``model_and_optim``.
    """
    warnings.simplefilter("ignore")
    return {kind: _save(Path(folder, kind), kind) for kind in ("plain", "mesh", "flat", "mixed")}


def save_hsdp_rank_files(folder: str) -> dict[str, Flat]:
    """Save the same of a hybrid-sharded run, of replicas by themselves."""
    warnings.simplefilter("ignore")
    return {"hsdp": _save(Path(folder, "hsdp"), "hsdp")}


def _save(folder: Path, kind: str) -> Flat:
    rank = dist.get_rank()
    folder.mkdir(parents=True, exist_ok=True)
    model, optimizer = train_fsdp1(kind)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
        torch.save(state, folder / f"sharded_rank{rank}.pt")
        torch.save(state["model"], folder / f"model_rank{rank}.pt")
        # As Composer did it before it had distributed checkpoints.
        own = {"model": state["model"], "optimizers": {"AdamW": state["optimizer"]}, "run_name": "r"}
        torch.save({"state": own, "rng": [{"cuda": None}]}, folder / f"ep0-ba2-rank{rank}.pt")
        # As Accelerate does it, and OLMo.
        save({"model": state["model"]}, checkpoint_id=folder / "pytorch_model_fsdp_0")
        save({"optimizer": state["optimizer"]}, checkpoint_id=folder / "optimizer_0")
        save({"model": state["model"], "optim": state["optimizer"]}, checkpoint_id=folder / "model_and_optim")
    torch.save(optimizer.state_dict(), folder / f"optim_rank{rank}.pt")
    if kind not in ("mesh", "hsdp"):
        with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            torch.save(model.state_dict(), folder / f"local_rank{rank}.pt")
            # mmengine's FSDPStrategy, but for the values of its message hub.
            state = {"state_dict": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
            meta = {"meta": {"epoch": 1, "seed": 3}, "param_schedulers": [{"last_step": 2}]}
            torch.save({**state, **meta}, folder / f"mmengine_rank{rank}.pt")
    if kind == "plain":
        _save_full_optimizer(folder / "full-optimizer.pt", model, optimizer)
        _save_as_olmo(folder / "olmo", model, optimizer)
    return whole_state(model, optimizer)


def save_averages(folder: str) -> dict[str, Flat]:
    """Save what each rank has of an average, as scripts do; return the weights, whole.

    Of each kind also the model that an average was copied into, of which each weight is twice as large.
    """
    found = {}
    for kind in ("flat", "plain"):
        path, rank = Path(folder, kind), dist.get_rank()
        path.mkdir(parents=True, exist_ok=True)
        model, optimizer = train_fsdp1(kind)
        found[kind] = whole_state(model, optimizer)
        average = {name: param.detach() * 2 for name, param in model.named_parameters()}
        torch.save(average, path / f"ema_{rank}.pt")
        torch.save({"ema": average, "step": 3}, path / f"nested_{rank}.pt")
        saved = torch.load(path / f"ema_{rank}.pt")
        with torch.no_grad():
            for name, param in model.named_parameters():
                param.copy_(saved[name])
        copied = whole_state(model, optimizer)
        if rank == 0:
            own = {name.removeprefix("model."): each for name, each in copied.items() if "model." in name}
            torch.save(own, path / "whole.pt")
    return found


def _save_full_optimizer(path: Path, model: FSDP, optimizer: torch.optim.Optimizer) -> None:
    """Save a full optimizer state by torch's defaults, which on a CPU give both moments the same elements."""
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(state, path)


def _save_as_olmo(folder: Path, model: FSDP, optimizer: torch.optim.Optimizer) -> None:
    """Save what OLMo's LocalShardedCheckpointer saves: torch's own record of each flat parameter."""
    modules = []
    for name, module in model.named_modules():
        if not isinstance(module, FSDP) or module._handle is None:
            continue
        flat = module._handle.flat_param
        fields = (
            "_fqns",
            "_shapes",
            "_numels",
            "_numels_with_padding",
            "_shard_numel_padded",
            "_shard_param_infos",
        )
        handle = {f"flat_param.{field}": getattr(flat, field) for field in fields if hasattr(flat, field)}
        modules.append({"handles": [{"flat_param.data": flat.detach(), **handle}], "name": name})
    state = optimizer.state_dict()
    state["param_groups"][0]["param_names"] = [name for name, _ in model.named_parameters()]
    for part, value in (("model", {"modules": modules}), ("optim", state), ("train", {"epoch": 3})):
        (folder / part).mkdir(parents=True, exist_ok=True)
        torch.save(value, folder / part / f"rank{dist.get_rank()}.pt")


def train_fsdp1(kind: str) -> tuple[FSDP, torch.optim.Optimizer]:
    """Return an FSDP1 model and its optimizer after two steps."""
    torch.manual_seed(1)
    options: dict[str, Any] = {"use_orig_params": kind != "flat"}
    if kind == "mesh":
        options["device_mesh"] = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "hsdp":
        options["device_mesh"] = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        options["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    if kind == "mixed":
        options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
    net = RankNet()
    net.rank += dist.get_rank()
    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"), **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
        tokens = torch.randint(0, VOCABULARY, (3, 5), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def whole_state(model: FSDP, optimizer: torch.optim.Optimizer) -> Flat:
    """Return everything whole, by name; by sharded state dicts, since full ones are corrupt on CPU."""
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        found: Flat = {f"model.{name}": _full(value) for name, value in model.state_dict().items()}
        state = FSDP.optim_state_dict(model, optimizer)
    for name, moments in state["state"].items():
        for moment, value in moments.items():
            found[f"optimizer.{name}.{moment}"] = _full(value)
    return found


def load_fsdp2(folders: list[str]) -> list[Flat]:
    """Load checkpoints into a freshly made FSDP2 model and optimizer, and return everything whole."""
    warnings.simplefilter("ignore")
    return [_load_one(folder) for folder in folders]


def _load_one(folder: str) -> Flat:
    torch.manual_seed(99)
    model = RankNet()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    # Other frameworks' names become torch's own, `optim`; torch's stay what their owner chose.
    keys = FileSystemReader(folder).read_metadata().state_dict_metadata
    own = "optim" if any(key.startswith("optim.") for key in keys) else "optimizer"
    state: dict[str, Any] = {"model": model_state, own: optimizer_state}
    load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state[own])
    found: Flat = {f"model.{name}": _full(value) for name, value in model.state_dict().items()}
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, moments in optimizer.state.items():
        for moment, value in moments.items():
            found[f"optimizer.{names[parameter]}.{moment}"] = _full(value)
    found["lr"] = [group["lr"] for group in optimizer.param_groups]
    return found
