"""Ranks that load one checkpoint into all kinds of models, and what must be refused on every rank."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from fsdp_migrate import load_checkpoint, prepare_fully_shard
from fsdp_migrate.checkpoint_convert import CheckpointReader
from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.loading import load, transfer
from tests.models import VOCABULARY, Block, Net
from tests.rank_bodies.loading import whole


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Flat = dict[str, Any]


def make_run(**options: Any) -> tuple[Net, torch.optim.Optimizer, Any]:
    """Return a model after two steps, with its optimizer of two groups and its scheduler."""
    torch.manual_seed(3)
    model = Net(**options)
    optimizer = torch.optim.AdamW(groups_of(model), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for _ in range(2):
        tokens = torch.randint(0, VOCABULARY, (3, 5))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return model, optimizer, scheduler


def groups_of(model: nn.Module) -> list[Flat]:
    """Return the parameters that are trained, in two groups."""
    named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    return [
        {"params": [param for name, param in named if name.endswith("weight")], "weight_decay": 0.1},
        {"params": [param for name, param in named if not name.endswith("weight")], "weight_decay": 0.0},
    ]


def by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> Flat:
    """Return an optimizer's state by the names of parameters, as ``FSDP.optim_state_dict`` does."""
    names: dict[Any, str] = {param: name for name, param in model.named_parameters()}
    groups = [{**g, "params": [names[param] for param in g["params"]]} for g in optimizer.param_groups]
    return {"state": {names[param]: own for param, own in optimizer.state.items()}, "param_groups": groups}


def save_run(folder: Path, *, numbered: bool = False, **options: Any) -> Flat:
    """Save such a run in one file, the optimizer by names or by numbers, and return it whole."""
    model, optimizer, scheduler = make_run(**options)
    own = optimizer.state_dict() if numbered else by_name(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": own}
    more = {"scheduler": scheduler.state_dict(), "epoch": 4, "rng": torch.get_rng_state()}
    torch.save({**state, **more}, folder / "state.pt")
    return whole(model, optimizer)


def _fresh(**options: Any) -> Net:
    torch.manual_seed(9)
    return Net(**options)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups_of(model), lr=7.0)


def _shard(model: nn.Module, **options: Any) -> nn.Module:
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, **options)
    fully_shard(model, **options)
    return model


def _load(file: str, model: nn.Module, optimizer: Any = None, **arguments: Any) -> Flat:
    optimizer = optimizer or _adam(model)
    report = load_checkpoint(file, model, optimizer, **arguments)
    codes = {finding.code: finding.message for finding in report.findings}
    return {**whole(model, optimizer), "codes": codes, "report": report.as_dict()}


def plain_fsdp2(file: str) -> Flat:
    return _load(file, _shard(_fresh()))


def prepared(file: str) -> Flat:
    return _load(file, prepare_fully_shard(_fresh(), {"auto_wrap_policy": {Block}, "device_id": "cpu"}))


def not_sharded(file: str) -> Flat:
    return _load(file, _fresh())


def cpu_offload(file: str) -> Flat:
    return _load(file, _shard(_fresh(), offload_policy=CPUOffloadPolicy(pin_memory=False)))


def tensor_parallel(file: str) -> Flat:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "model"))
    model = _fresh(inner=18)
    for block in model.blocks:
        plan: Flat = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh["model"], plan)
    return _load(file, _shard(model, mesh=mesh["data"]))


def on_meta(file: str) -> Flat:
    with torch.device("meta"):
        model = Net()
    return _load(file, _shard(model))


def frozen(file: str) -> Flat:
    """An optimizer that knows fewer parameters than the one that was saved."""
    model = _fresh()
    model.embed.weight.requires_grad_(False)
    return _load(file, _shard(model), strict=False)


def weights_only(file: str) -> Flat:
    model = _shard(_fresh())
    report = load_checkpoint(file, model, _adam(model), weights_only=True)
    return {**whole(model, None), "states": report.states}


def with_extra(file: str) -> Flat:
    model = _shard(_fresh())
    optimizer = _adam(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    extra = {"scheduler": scheduler, "epoch": None, "rng": None}
    report = load_checkpoint(file, model, optimizer, extra=extra)
    return {
        "epoch": report.values["epoch"],
        "rng": report.values["rng"],
        "last": scheduler.last_epoch,
        "lr": scheduler.get_last_lr(),
        "codes": [finding.code for finding in report.findings],
    }


def half(file: str) -> Flat:
    return _load(file, _shard(_fresh().to(torch.bfloat16)))


def sent(file: str) -> Flat:
    """Only rank 1 sees the file; pieces are so small that tensors are cut."""
    vars(transfer)["PIECE_BYTES"] = 64
    own = file if dist.get_rank() == 1 else f"{file}.not-here"
    return _load(own, _shard(_fresh()))


def sent_as_asked(file: str) -> Flat:
    return _load(file, _shard(_fresh()), broadcast=True)


CASES: dict[str, Callable[[str], Flat]] = {
    case.__name__: case
    for case in (
        plain_fsdp2, prepared, not_sharded, cpu_offload, on_meta, frozen, weights_only, with_extra, half,
        sent, sent_as_asked,
    )
}  # fmt: skip


def run_cases(file: str) -> dict[str, Flat]:
    """Load in every way."""
    warnings.simplefilter("ignore")
    return {name: case(file) for name, case in CASES.items()}


def load_on_nodes(folder: str) -> list[Flat]:
    """Load what the first rank of each of two nodes has in a folder of its node; or return what it raises."""
    warnings.simplefilter("ignore")
    node, local = divmod(dist.get_rank(), 2)
    found = []
    for name, broadcast in (("copy", "auto"), ("other", "auto"), ("other", True), ("copy", False)):
        own = f"{folder}/{node}/{name}.pt" if local == 0 else f"{folder}/not-here.pt"
        model = _shard(_fresh())
        before = whole(model, None)
        try:
            found.append(_load(own, model, broadcast=broadcast))
        except FSDPMigrateError as error:
            same = all(torch.equal(value, before[key]) for key, value in whole(model, None).items())
            found.append({"error": type(error).__name__, "said": str(error), "same": same})
    return found


def run_tensor_parallel(file: str) -> Flat:
    """Load into a model of tensor parallelism and FSDP2."""
    warnings.simplefilter("ignore")
    return tensor_parallel(file)


def load_partly(file: str) -> Flat:
    """Load into a model with a head of another size and one layer more."""
    warnings.simplefilter("ignore")
    model = _fresh()
    model.head.out = nn.Linear(6, VOCABULARY + 2)
    model.new = nn.Linear(3, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = _load(file, _shard(model), strict=False)
    return {**found, "before": before}


def _digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    state = whole(model, optimizer)
    return hashlib.sha256(repr({k: v for k, v in state.items() if k != "groups"}).encode()).hexdigest()


def refuse_misfits(file: str) -> Flat:
    """Return what is said of a model that does not fit, and whether it was left as it was."""
    warnings.simplefilter("ignore")
    model = _fresh()
    model.head.out = nn.Linear(6, VOCABULARY + 2)
    model.new = nn.Linear(3, 2)
    _shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
    before = _digest(model, optimizer)
    try:
        load_checkpoint(file, model, optimizer, extra={"sampler": None})
    except Exception as error:
        return {
            "kind": type(error).__name__,
            "text": str(error),
            "same": _digest(model, optimizer) == before and not optimizer.state,
        }
    return {}


@contextlib.contextmanager
def faulty(names: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """Put a fault in a function's place for a while; None leaves it."""
    own = names[name]
    names[name] = own if value is None else value
    try:
        yield
    finally:
        names[name] = own


def refuse_on_one_rank(file: str) -> Flat:
    """Rank 1 has what is damaged, what is another checkpoint, and what fails while it is read."""
    warnings.simplefilter("ignore")
    found: Flat = {}
    rank = dist.get_rank()
    model = _shard(_fresh())
    optimizer = _adam(model)
    before = _digest(model, optimizer)

    def attempt(name: str, path: str, **arguments: Any) -> None:
        try:
            load_checkpoint(path, model, optimizer, **arguments)
        except Exception as error:
            found[name] = [type(error).__name__, str(error), _digest(model, optimizer) == before]

    damaged, other = f"{file}.damaged", f"{file}.other"
    if rank == 1:
        Path(damaged).write_bytes(Path(file).read_bytes()[:-700])
        state = torch.load(file, weights_only=False)
        torch.save({**state, "more": list(range(50))}, other)
    dist.barrier()
    attempt("damaged", damaged if rank == 1 else file)
    attempt("other", other if rank == 1 else file)
    attempt("nowhere", f"{file}.nowhere")
    attempt("not all see", file if rank == 0 else f"{file}.nowhere", broadcast=False)
    attempt("word", file, broadcast="maybe")

    def fail(*_: Any) -> Any:
        raise OSError("the disk is gone")

    with faulty(vars(load), "read_jobs", fail if rank == 1 else None):
        attempt("while reading", file)
    for name, change in (("vanishes", Path.unlink), ("changes", _append)):
        own = Path(file).parent / name / Path(file).name if rank == 1 else Path(file)
        if rank == 1:
            own.parent.mkdir()
            own.write_bytes(Path(file).read_bytes())

        def late(*arguments: Any, own: Path = own, change: Any = change) -> Any:
            change(own)
            return transfer.read_jobs(*arguments)

        dist.barrier()
        with faulty(vars(load), "read_jobs", late if rank == 1 else None):
            attempt(name, str(own))
    try:
        dcp.load({"model": model.state_dict()}, storage_reader=CheckpointReader(other if rank else file))
    except CheckpointException as error:  # none of the `Exception`s
        found["by torch's call"] = str(error)
    dist.barrier()
    return found


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")
