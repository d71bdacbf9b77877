"""Checkpoints of many kinds, made from one FSDP1 run, that a real Trainer with the callback loads."""

from __future__ import annotations

import copyreg
import gzip
import hashlib
import io
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from tests.rank_bodies.composer_training import (
    Run,
    attempt,
    make_trainer,
    optimizer_state,
    prepare,
    whole,
)


if TYPE_CHECKING:
    from collections.abc import Callable


STEPS, SAVED = 4, 2
NAME = f"ep0-ba{SAVED}"
SHARDED, FULL = {"state_dict_type": "sharded"}, {"state_dict_type": "full"}
RANK0 = {**FULL, "load_monolith_rank0_only": True, "sync_module_states": True}
BASE = Run(
    fsdp=SHARDED,
    optimizer="decoupled_adamw",
    warmup=True,
    steps=STEPS,
    rows=3,
    trainer={"device_train_microbatch_size": 2, "run_name": "fox"},
)


def loading(path: str, fsdp: dict[str, Any] | None = None, **more: Any) -> Run:
    """Return a run of the callback that goes on from a path; ``more`` are arguments of the Trainer."""
    return replace(BASE, fsdp=fsdp or SHARDED, trainer={**BASE.trainer, "load_path": path, **more})


def go_on(
    root: str, runs: dict[str, Run], stored: dict[str, Run], old: dict[str, str], looked: dict[str, Run]
) -> dict[str, Any]:
    """Make the sources in a folder, do the runs and those that load from an object store; load old folders.

    Paths are those of the folder. Returns the outcome of each run, of the FSDP1 run as ``fsdp1``, what old
    folders gave, what Trainers that are only ``looked`` at hold, and as ``changed`` the sources whose bytes
    are not what they were.
    """
    prepare()
    found: dict[str, Any] = {"fsdp1": make_sources(Path(root))}
    before = digests(Path(root))
    for name, run in runs.items():
        found[name] = attempt(_at(run, root))
    store = make_store(root)
    for name, run in stored.items():
        found[name] = attempt(replace(run, trainer={**run.trainer, "load_object_store": store}))
    found.update({name: load_old(folder) for name, folder in old.items()})
    found.update({name: look_at_loaded(_at(run, root)) for name, run in looked.items()})
    dist.barrier()
    after = digests(Path(root))
    found["changed"] = [name for name, digest in before.items() if after.get(name) != digest]
    return found


def look_at_loaded(run: Run) -> dict[str, Any]:
    """Return digests of all that a Trainer has loaded before it goes on."""
    with_counter = replace(run, trainer={**run.trainer, "callbacks": [_counter()]})
    trainer = make_trainer(with_counter, [])
    state = trainer.state
    (counter,) = [each for each in state.callbacks if type(each).__name__ == "Counter"]
    found = {
        "timestamp": int(state.timestamp.batch),
        "seen": counter.seen,
        "model": _digest(whole(state.model)),
        "optimizer": _digest(optimizer_state(state)) if state.optimizers[0].state else "",
        "groups": repr([group["lr"] for group in state.optimizers[0].param_groups]),
        "schedulers": repr([each.state_dict() for each in state.schedulers]),
        "data": repr(state.dataset_resumption),
        "rng": _digest(trainer._rng_state) if trainer._rng_state else "",
    }
    trainer.close()
    return found


def _digest(state: Any) -> str:
    written = io.BytesIO()
    torch.save(state, written)
    return hashlib.sha256(written.getvalue()).hexdigest()


def _counter() -> Any:
    """Return a callback with a state: the batches that it has seen, -1 if nothing was loaded."""
    from composer import Callback

    class Counter(Callback):  # type: ignore[misc,unused-ignore]
        seen = -1

        def batch_end(self, state: Any, logger: Any) -> None:
            del logger
            self.seen = int(state.timestamp.batch)

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.seen = state["seen"]

    return Counter()


def _at(run: Run, root: str) -> Run:
    paths = {
        key: f"{root}/{run.trainer[key]}" for key in ("load_path", "save_folder") if run.trainer.get(key)
    }
    callback = dict(run.callback)
    if "cache_folder" in callback:
        callback["cache_folder"] = f"{root}/{callback['cache_folder']}"
    return replace(run, trainer={**run.trainer, **paths}, callback=callback)


def digests(root: Path) -> dict[str, str]:
    """Return a digest of each file that is no conversion."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".fsdp2" not in str(path.relative_to(root)) and path.suffix != ".unpacked"
    }


def make_sources(root: Path) -> dict[str, Any]:
    """Train under FSDP1, save in every way, and return what came of the training."""
    saving = {"save_interval": f"{SAVED}ba", "save_overwrite": True}
    sharded = {**BASE.trainer, **saving, "save_folder": str(root / "sharded")}
    full = {**BASE.trainer, **saving, "save_folder": str(root / "full"), "callbacks": [_counter()]}
    run = replace(BASE, migrate=False, trainer={**sharded, "callbacks": [_old_saver(root), _counter()]})
    found = attempt(run)
    attempt(replace(BASE, migrate=False, fsdp=FULL, steps=SAVED, trainer={**full, "max_duration": "4ba"}))
    if dist.get_rank() == 0:
        whole = root / "full" / f"{NAME}-rank0.pt"
        _later_torch(root / "sharded" / NAME, root / "later")
        for name in ("stale", "half", "refused", "taken", "unwritable", "cached", "reachable"):
            _later_torch(root / "sharded" / NAME, root / name)
        shutil.copytree(root / "sharded" / f"ep0-ba{STEPS}", root / "stale.fsdp2")
        (root / "stale.fsdp2" / "converted_from.json").write_text("{}")
        shutil.copytree(root / "sharded" / NAME, root / "half.fsdp2")
        (root / "half.fsdp2" / "__1_0.distcp").unlink()
        with gzip.open(root / "full" / "packed.pt.gz", "wb") as packed:
            packed.write(whole.read_bytes())
        (root / "run").mkdir()
        shutil.copy(whole, root / "run" / "fox-rank0.pt")
        (root / "full" / "latest-rank0.pt.symlink").write_text(f"bucket/full/{NAME}-rank0.pt")
        (root / "sharded" / "latest.symlink").write_text(f"sharded/{NAME}")
        (root / "resumed").mkdir()
        shutil.copytree(root / "later", root / "resumed" / NAME)
        (root / "resumed" / "latest-rank0.pt").symlink_to(NAME)
        (root / "taken.fsdp2").mkdir()
        (root / "taken.fsdp2" / "notes.txt").write_text("mine")
        (root / "cut").mkdir()
        (root / "cut" / "cut-rank0.pt").write_bytes(whole.read_bytes()[:20_000])
    dist.barrier()
    return found


def _old_saver(root: Path) -> Any:
    """Return a callback that saves as older versions of Composer did."""
    from composer import Callback
    from composer.utils import reproducibility
    from torch.distributed.checkpoint.state_dict_saver import save

    class OldSaver(Callback):  # type: ignore[misc,unused-ignore]
        def batch_end(self, state: Any, logger: Any) -> None:
            del logger
            if int(state.timestamp.batch) != SAVED:
                return
            found = {"state": state.state_dict(), "rng": reproducibility.get_rng_state()}
            (root / "ranks").mkdir(exist_ok=True)
            # Before 0.18: one file per rank.
            torch.save(found, root / "ranks" / f"{NAME}-rank{dist.get_rank()}.pt")
            # With torch before 2.3: the optimizers beside the state.
            inner = dict(found["state"])
            save(
                {"optimizers": inner.pop("optimizers"), "state": inner, "rng": found["rng"]},
                checkpoint_id=str(root / "at_root"),
            )

    return OldSaver()


def _later_torch(source: Path, target: Path) -> None:
    """Copy a checkpoint with the metadata of torch 2.15, whose tensors have six properties."""
    from torch.distributed.checkpoint.metadata import TensorProperties

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, TensorProperties):
                return vars(copyreg)["__newobj__"], (TensorProperties,), (*value.__getstate__(), None)
            return NotImplemented

    shutil.copytree(source, target)
    written = io.BytesIO()
    Pickler(written).dump(pickle.loads((source / ".metadata").read_bytes()))
    (target / ".metadata").write_bytes(written.getvalue())


def make_store(root: str) -> Any:
    """Return one of Composer's object stores, over a folder."""
    from composer.utils import ObjectStore

    class FolderStore(ObjectStore):  # type: ignore[misc,unused-ignore]
        def get_uri(self, object_name: str) -> str:
            is_known = object_name == "reachable"
            return f"file://{root}/{object_name}" if is_known else f"folder://bucket/{object_name}"

        def get_object_size(self, object_name: str) -> int:
            return Path(root, object_name).stat().st_size

        def download_object(
            self,
            object_name: str,
            filename: Any,
            overwrite: bool = False,
            callback: Callable[[int, int], None] | None = None,
        ) -> None:
            del overwrite, callback
            if not Path(root, object_name).is_file():
                msg = f"there is no {object_name}"
                raise FileNotFoundError(msg)
            shutil.copy(Path(root, object_name), filename)

    return FolderStore()


def composer_of_old_torch(source: Path, target: Path) -> None:
    """Make of a checkpoint that an old torch wrote what Composer saved with it: optimizers at the root."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

    def path_of(path: tuple[Any, ...]) -> tuple[Any, ...]:
        if path[0] == "model":
            return ("state", "model", f"net.{path[1]}")
        rest = path[1:] if path[1] == "param_groups" else ("state", f"net.{path[2]}", *path[3:])
        return ("optimizers", "AdamW", *rest)

    shutil.copytree(source, target)
    metadata = pickle.loads((source / ".metadata").read_bytes())
    paths = {key: path_of(path) for key, path in metadata.planner_data.items()}
    names = {key: ".".join(map(str, path)) for key, path in paths.items()}
    kinds = {names[key]: kind for key, kind in metadata.state_dict_metadata.items()}
    stored = {replace(place, fqn=names[place.fqn]): info for place, info in metadata.storage_data.items()}
    (groups,) = [place for place in stored if place.fqn.endswith("param_groups")]
    info = stored[groups]
    data = (source / info.relative_path).read_bytes()[info.offset : info.offset + info.length]
    values = torch.load(io.BytesIO(data))
    for group in values:
        group["params"] = [f"net.{name}" for name in group["params"]]
    items = {groups: values, MetadataIndex("state.run_name"): "fox"}
    written = io.BytesIO()
    for place, value in items.items():
        offset = written.tell()
        torch.save(value, written)
        stored[place] = _StorageInfo("__2_0.distcp", offset, written.tell() - offset)
    (target / "__2_0.distcp").write_bytes(written.getvalue())
    kinds["state.run_name"] = BytesStorageMetadata()
    planner = {names[key]: path for key, path in paths.items()} | {"state.run_name": ("state", "run_name")}
    made = replace(metadata, state_dict_metadata=kinds, planner_data=planner, storage_data=stored)
    (target / ".metadata").write_bytes(pickle.dumps(made))


class OldBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln, self.up, self.down = nn.LayerNorm(6), nn.Linear(6, 13), nn.Linear(13, 6)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = value + self.down(torch.tanh(self.up(self.ln(value))))
        return out


class OldNet(nn.Module):
    """The model of the checkpoints in ``tests/checkpoint/data/torch-*``."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
        self.blocks = nn.ModuleList(OldBlock() for _ in range(2))
        self.head.weight = self.emb.weight
        self.register_buffer("scale", torch.zeros(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.emb(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        out: torch.Tensor = self.head(hidden)
        return out


def load_old(folder: str) -> dict[str, Any]:
    """Load what :func:`composer_of_old_torch` made by a Trainer, and return what that holds then."""
    from composer import Trainer
    from composer.models import ComposerModel

    from fsdp_migrate.adapters.composer_callback import FSDP2Migration
    from fsdp_migrate.checkpoint_convert.targets.composer import IGNORE_KEYS

    class Model(ComposerModel):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net: Any = OldNet()
            for block in self.net.blocks:
                vars(block)["_fsdp_wrap"] = True

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.net(tokens)
            return found

        def loss(self, outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs.flatten(0, 1), tokens.flatten())

    prepare()
    model = Model()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
        max_duration="1ba",
        device="cpu",
        parallelism_config={"fsdp": SHARDED},
        callbacks=[FSDP2Migration()],
        load_path=folder,
        load_ignore_keys=list(IGNORE_KEYS),
        progress_bar=False,
        log_to_console=False,
    )
    buffers = dict(trainer.state.model.named_buffers())
    found = {"parameters": whole(trainer.state.model), "optimizer": optimizer_state(trainer.state)}
    trainer.close()
    return {**found, "buffers": {name: value.clone() for name, value in buffers.items()}}
