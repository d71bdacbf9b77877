"""Makes known faults of torch happen, with torch alone: none of this package's mends is in the way."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    MixedPrecisionPolicy,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from fsdp_migrate import prepare_fully_shard
from fsdp_migrate.torch_compat.cpu_mends import mend_fsdp2_on_cpu
from fsdp_migrate.torch_compat.fsdp2 import HAS_IGNORED_PARAMS
from tests.models import Net


if TYPE_CHECKING:
    from collections.abc import Callable


def happening(folder: str) -> dict[str, bool]:
    """Return which faults happen on this torch."""
    warnings.simplefilter("ignore")
    # Without it FSDP2 of torch 2.6 does not even run forward on the CPU; later versions need nothing.
    mend_fsdp2_on_cpu("cpu")
    return {name: fault(Path(folder)) for name, fault in FAULTS.items()}


def _mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def _sharded(model: nn.Module, *units: nn.Module, **options: Any) -> Any:
    for unit in (*units, model):
        fully_shard(unit, mesh=_mesh(), **options)
    return model


def _says(words: str, do: Callable[[], object], *others: str) -> bool:
    """Tell whether something fails with these words, or with others."""
    try:
        do()
    except Exception as error:
        if not any(each in str(error) for each in (words, *others)):
            raise
        return True
    return False


def _sums(folder: Path) -> bool:
    del folder
    found = torch.empty(1)
    dist.reduce_scatter_tensor(found, torch.ones(dist.get_world_size()), op=dist.ReduceOp.AVG)
    return found.item() == dist.get_world_size()


def _pins(folder: Path) -> bool:
    del folder
    # The first is what a build without CUDA says, the other one with CUDA.
    return _says(
        "accelerator",
        lambda: _sharded(nn.Linear(4, 4), offload_policy=CPUOffloadPolicy())(torch.ones(1, 4)),
        "NVIDIA driver",
    )


def _has_no_rows(folder: Path) -> bool:
    del folder
    model = _sharded(nn.Linear(4, 1))
    counts = [0] * dist.get_world_size()
    dist.all_gather_object(counts, model.weight.to_local().numel())
    return 0 in counts


def _refuses_ties(folder: Path) -> bool:
    del folder
    model = Net(tied=True)
    _sharded(model, model.embed, model.head.out)
    return _says("shared", lambda: model(torch.ones(1, 2, dtype=torch.long)))


def _tears_ties(folder: Path) -> bool:
    del folder
    with torch.device("meta"):
        model = Net(tied=True)
    model.to_empty(device="cpu")
    return model.head.out.weight is not model.embed.weight


def _forgets_buffers(folder: Path) -> bool:
    del folder

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", torch.ones(2), persistent=False)

    state = Rotary().state_dict()
    with torch.device("meta"):
        model: Any = Rotary()
    model.to_empty(device="cpu")
    model.frequencies.fill_(torch.nan)  # what empty memory may hold
    model.load_state_dict(state)
    return bool(model.frequencies.isnan().all())


def _refuses_scalars(folder: Path) -> bool:
    del folder
    model = nn.Linear(2, 2)
    model.scale = nn.Parameter(torch.tensor(1.0))
    # torch 2.6 spells it otherwise.
    return _says("scalar parameters", lambda: _sharded(model), "salar parameters")


def _refuses_mixed_dtypes(folder: Path) -> bool:
    del folder
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    prepared = _sharded(model)
    return _says("uniform original parameter dtype", lambda: prepared(torch.ones(1, 2)))


def _refuses_containers(folder: Path) -> bool:
    del folder
    model = Net()
    return _says("forward", lambda: _sharded(model, model.blocks))


def _refuses_plain_gradients(folder: Path) -> bool:
    del folder
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    if HAS_IGNORED_PARAMS:
        _sharded(model, ignored_params=set(model[1].parameters()))
    else:
        _sharded(model[0])
    model(torch.ones(1, 2)).sum().backward()
    return _says("DTensor", lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))


def _corrupts_moments(folder: Path) -> bool:
    del folder
    model = FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    configs = (
        FullStateDictConfig(rank0_only=False, offload_to_cpu=True),
        FullOptimStateDictConfig(rank0_only=False, offload_to_cpu=True),
    )
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        state = FSDP.optim_state_dict(model, optimizer)["state"]["weight"]
    return torch.equal(state["exp_avg"], state["exp_avg_sq"])


def _trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return optimizer


def _loses_what_is_written(folder: Path) -> bool:
    """Write into what the root shows after an evaluation, and gather it anew."""
    model = _sharded(nn.Linear(2, 2))
    with torch.no_grad():
        model(torch.ones(1, 2))
        for param in model.parameters():
            param.data.fill_(7.0)
    model.reshard()
    return not any(bool((param.full_tensor() == 7.0).any()) for param in model.parameters())


def _loses_initial_lr(folder: Path) -> bool:
    model = _sharded(nn.Linear(4, 4))
    optimizer = _trained(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)
    dcp.save({"o": get_state_dict(model, optimizer)[1]}, checkpoint_id=folder / "lr")
    fresh = torch.optim.AdamW(model.parameters())
    wanted = {"o": get_state_dict(model, fresh)[1]}
    dcp.load(wanted, checkpoint_id=folder / "lr")
    set_optimizer_state_dict(model, fresh, optim_state_dict=wanted["o"])
    return _says("initial_lr", lambda: torch.optim.lr_scheduler.LambdaLR(fresh, lambda _: 0.5, last_epoch=3))


def _loads_no_moments(folder: Path) -> bool:
    model = _sharded(nn.Linear(4, 4))
    dcp.save({"o": _trained(model).state_dict()}, checkpoint_id=folder / "raw")
    fresh = torch.optim.AdamW(model.parameters(), lr=0.1)
    wanted = {"o": fresh.state_dict()}
    dcp.load(wanted, checkpoint_id=folder / "raw")
    fresh.load_state_dict(wanted["o"])
    return not fresh.state


def _reads_into_nothing(folder: Path) -> bool:
    """Resume as FSDP1's own scripts do, by what a new optimizer is asked for."""
    model = FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    trained, fresh = _trained(model), torch.optim.AdamW(model.parameters(), lr=0.5)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"o": FSDP.optim_state_dict(model, trained)}, checkpoint_id=folder / "asked")
        wanted = {"o": FSDP.optim_state_dict(model, fresh)}
        dcp.load(wanted, checkpoint_id=folder / "asked")
        fresh.load_state_dict(FSDP.optim_state_dict_to_load(model, fresh, wanted["o"]))
    return not fresh.state and bool(trained.state)


def _resumes_empty(folder: Path) -> bool:
    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin, load_fsdp_optimizer, save_fsdp_optimizer

    model = FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    state: Any = PartialState(cpu=True)
    state.is_fsdp2 = False  # as of an Accelerator, which is not made for FSDP without a GPU
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1, state_dict_type="SHARDED_STATE_DICT")
    save_fsdp_optimizer(plugin, state, _trained(model), model, folder / "accelerate")
    fresh = torch.optim.AdamW(model.parameters(), lr=0.5)
    load_fsdp_optimizer(plugin, state, fresh, model, folder / "accelerate")
    return not fresh.state and fresh.param_groups[0]["lr"] == 0.1


class TwoBiases(nn.Module):
    """Has BERT's head in small: one bias under two names, and embeddings whose weight is the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 4)
        self.decoder = nn.Linear(4, 4)
        self.bias = self.decoder.bias
        self.tie_weights()

    def tie_weights(self) -> None:
        self.decoder.weight = self.embed.weight
        self.bias = self.decoder.bias

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.decoder(self.embed(tokens))


def _by_accelerate(model: nn.Module, *, on_meta: bool = False, classes: list[str] | None = None) -> Any:
    """Shard with Accelerate's own FSDP2; an Accelerator for FSDP is not made without a GPU."""
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type="SHARDED_STATE_DICT",
        cpu_ram_efficient_loading=on_meta,
        auto_wrap_policy="transformer_based_wrap" if classes else None,
        transformer_cls_names_to_wrap=classes,
    )
    accelerator: Any = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin),
        device=torch.device("cpu"),
        mixed_precision="no",
        is_main_process=dist.get_rank() == 0,
    )
    return fsdp2_prepare_model(accelerator, model)


def _splits_ties(folder: Path) -> bool:
    del folder
    tokens = torch.ones(1, 2, dtype=torch.long)
    refused = _says("shared", lambda: _by_accelerate(TwoBiases())(tokens))
    model: Any = TwoBiases()
    # The way out that the fault names.
    model.get_input_embeddings = model.get_output_embeddings = lambda: None
    _by_accelerate(model)
    del model.get_input_embeddings, model.get_output_embeddings
    model(tokens).sum().backward()
    gets_them = (model.get_input_embeddings(), model.get_output_embeddings()) == (model.embed, model.decoder)
    return refused and gets_them


class Towers(nn.Module):
    """Has experts that its blocks hold too."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.blocks = nn.ModuleList(nn.Sequential(each, nn.ReLU()) for each in self.experts)
        self.head = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        y: torch.Tensor = self.head(x)
        return y


def _splits_modules(folder: Path) -> bool:
    del folder
    # torch 2.7 says the other words.
    words = ("value was None", "FSDP requires named DeviceMesh dims")
    refused = _says(words[0], lambda: _by_accelerate(Towers(), classes=["Sequential"]), words[1])
    # The way out that the fault names, and ours.
    model = _by_accelerate(Towers(), classes=["Sequential", "Linear"])
    model(torch.ones(2, 4)).sum().backward()
    ours = prepare_fully_shard(
        Towers(), {"auto_wrap_policy": {"transformer_layer_cls": "Sequential"}, "use_orig_params": True}
    )
    ours(torch.ones(2, 4)).sum().backward()
    return refused


class Inside(nn.Module):
    """Has embeddings in a part that the policy makes a unit, as BERT has."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4))

    def get_input_embeddings(self) -> nn.Module:
        return self.part[0]

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.part(tokens)


def _carves_units(folder: Path) -> bool:
    del folder
    words = ("value was None", "FSDP requires named DeviceMesh dims")
    refused = _says(words[0], lambda: _by_accelerate(Inside(), classes=["Sequential"]), words[1])
    # The way out that the fault names.
    model: Any = Inside()
    model.get_input_embeddings = lambda: None
    _by_accelerate(model, classes=["Sequential"])
    del model.get_input_embeddings
    model(torch.ones(1, 2, dtype=torch.long)).sum().backward()
    return refused


class Mute(nn.Sequential):
    """Has no embeddings to tell of, as a class of a project's own that extends transformers'."""

    def get_input_embeddings(self) -> nn.Module:
        raise NotImplementedError("not auto-handled")


def _asks_for_embeddings(folder: Path) -> bool:
    del folder
    return _says("not auto-handled", lambda: _by_accelerate(Mute(nn.Linear(2, 2))))


def _loads_not_all(folder: Path) -> bool:
    del folder
    buffered, bare = nn.Sequential(nn.BatchNorm1d(2)), nn.Linear(2, 2)
    found = (
        _says("device_mesh", lambda: _by_accelerate(buffered, on_meta=True)),
        _says("not enough values", lambda: _by_accelerate(bare, on_meta=True)),
    )
    for model in (nn.BatchNorm1d(2), nn.Linear(2, 2)):
        _by_accelerate(model)
    return all(found)


def _forgets_ties(folder: Path) -> bool:
    del folder
    found = []
    for on_meta in (False, True):
        model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        _by_accelerate(model, on_meta=on_meta)
        found.append(model[1].weight is model[0].weight)
    return found == [True, False]


def _slips_through(folder: Path) -> bool:
    try:
        dcp.load({"a": torch.ones(1)}, checkpoint_id=folder / "nothing")
    except BaseException as error:
        return not isinstance(error, Exception)
    return False


class Running:
    """Is made by a call, as anything in a pickle may be."""

    ran = False

    def __reduce__(self) -> Any:
        return run, ()


def run() -> None:
    """Leave a trace."""
    Running.ran = True


def _runs_pickles(folder: Path) -> bool:
    if dist.get_rank() == 0:
        (folder / "pickle").mkdir()
        (folder / "pickle" / ".metadata").write_bytes(pickle.dumps(Running()))
    dist.barrier()
    try:
        dcp.FileSystemReader(folder / "pickle").read_metadata()
    except Exception:
        return Running.ran
    return Running.ran


def _refuses_copies(folder: Path) -> bool:
    del folder
    model = _sharded(nn.Linear(2, 2))
    return _says("deepcopy", lambda: copy.deepcopy(model))


def _stays_off(folder: Path) -> bool:
    del folder
    model = _sharded(nn.Linear(2, 2))
    model.set_requires_gradient_sync(False)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    return model.weight.grad is None


def _refuses_nameless_meshes(folder: Path) -> bool:
    del folder
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1))
    return _says("mesh_dim_names", lambda: fully_shard(nn.Linear(2, 2), mesh=mesh))


def _has_other_dimensions(folder: Path) -> bool:
    del folder
    flat = [
        FSDP(nn.Linear(2, 2), device_id=torch.device("cpu"), use_orig_params=own) for own in (True, False)
    ]
    return [next(each.parameters()).ndim for each in (*flat, _sharded(nn.Linear(2, 2)))] == [1, 1, 2]


def _returns_a_part(folder: Path) -> bool:
    del folder
    model: FSDPModule = _sharded(nn.Linear(3, 3))
    loss: Any = model
    loss(torch.ones(1, 3)).sum().backward()
    norm: Any = nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
    return isinstance(norm, DTensor) and not torch.equal(norm.to_local(), norm.full_tensor())


def _loses_gradients(folder: Path) -> bool:
    """Run a forward that no backward follows before one that a backward does; in full precision too."""
    del folder
    kept = []
    for dtype in (torch.bfloat16, None):
        mixed = MixedPrecision(param_dtype=dtype)
        model = FSDP(
            nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True, mixed_precision=mixed
        )
        model(torch.ones(2, 4)).detach()
        model(torch.ones(2, 4)).float().sum().backward()
        found = torch.tensor(sum(param.grad is not None for param in model.parameters()))
        dist.all_reduce(found)  # of a rank's shard, one parameter may have no part
        kept.append(int(found))
    return kept[0] == 0 < kept[1]


def _forgets_dtypes(folder: Path) -> bool:
    del folder
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for param in model[0].parameters():
        param.requires_grad_(False)
    prepared = _sharded(model, model[0], model[1], mp_policy=policy)
    prepared(torch.ones(1, 2)).sum().backward()
    for param in model[0].parameters():
        param.requires_grad_(True)
    return _says("dtype", lambda: prepared(torch.ones(1, 2)).sum().backward())


FAULTS: dict[str, Callable[[Path], bool]] = {
    "gloo-averages": _sums,
    "pinned-offload-without-accelerator": _pins,
    "shards-without-rows": _has_no_rows,
    "ties-across-units": _refuses_ties,
    "ties-torn-on-meta": _tears_ties,
    "unsaved-buffers-on-meta": _forgets_buffers,
    "scalar-parameters": _refuses_scalars,
    "mixed-dtypes-in-a-unit": _refuses_mixed_dtypes,
    "containers-are-no-units": _refuses_containers,
    "clipping-plain-among-sharded": _refuses_plain_gradients,
    "corrupt-full-optimizer": _corrupts_moments,
    "accelerate-resumes-without-moments": _resumes_empty,
    "accelerate-splits-ties": _splits_ties,
    "accelerate-splits-modules": _splits_modules,
    "accelerate-carves-units": _carves_units,
    "accelerate-asks-for-embeddings": _asks_for_embeddings,
    "accelerate-loads-not-all": _loads_not_all,
    "accelerate-tears-ties": _forgets_ties,
    "writes-after-evaluation": _loses_what_is_written,
    "initial-lr-is-lost": _loses_initial_lr,
    "raw-optimizer-state": _loads_no_moments,
    "fsdp1-resumes-without-moments": _reads_into_nothing,
    "checkpoint-errors-slip-through": _slips_through,
    "metadata-is-a-pickle": _runs_pickles,
    "deepcopy-of-shards": _refuses_copies,
    "sync-stays-off": _stays_off,
    "nameless-hybrid-mesh": _refuses_nameless_meshes,
    "groups-by-dimensions": _has_other_dimensions,
    "norm-is-a-part": _returns_a_part,
    "fsdp1-loses-gradients": _loses_gradients,
    "unfreezing-later": _forgets_dtypes,
}
