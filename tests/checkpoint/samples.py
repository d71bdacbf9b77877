"""Genuine checkpoints that the tests share, how torch itself reads one, and how to make a damaged one."""

from __future__ import annotations

import atexit
import io
import os
import pickle
import shutil
import tempfile
import warnings
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip


if TYPE_CHECKING:
    from collections.abc import Callable


def _own_copy(folder: Path) -> Path:
    """Return a copy for this process and those that it starts.

    The system notes links as changes of a file, and conversions make them. Tests that run beside this one
    would change what is being converted here.
    """
    if _COPY not in os.environ:
        copy = tempfile.mkdtemp(prefix="checkpoint-data-")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        os.environ[_COPY] = copy
        atexit.register(_remove, copy, os.getpid())
    return Path(os.environ[_COPY])


def _remove(copy: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(copy, ignore_errors=True)


ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in signature(dcp.save).parameters else {}
"""What DCP's functions are given where there is no group; torch 2.6 sees it by itself."""
# pytest itself may have read this file before it starts its workers: each of these has a copy of its own.
_COPY = f"FSDP_MIGRATE_TEST_DATA_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
DATA = _own_copy(Path(__file__).parent / "data")
GOLDEN = sorted(path.relative_to(DATA).as_posix() for path in DATA.glob("torch-*/*.dcp"))
PLAIN = DATA / "torch-2.13.0" / "plain.dcp"
FLAT = DATA / "torch-2.13.0" / "flat.dcp"
NEWEST = DATA / "torch-2.15.0" / "plain.dcp"
COMPOSER = DATA / "composer-0.32.1" / "ep0-ba2"
LIGHTNING = DATA / "lightning-2.6.6"
FROM_GPU = DATA / "torch-2.11.0-cuda"


def expected(folder: Path) -> dict[str, Any]:
    """Return what a golden checkpoint holds, as torch itself gathered it before it saved."""
    values: dict[str, Any] = torch.load(folder.with_suffix(".expected.pt"), weights_only=False)
    return values


def load_with_torch(folder: Path) -> dict[str, Any]:
    """Load a checkpoint whole, by torch's own reader and planner, without a process group."""
    state: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _load_state_dict(
            state,
            storage_reader=dcp.FileSystemReader(folder),
            planner=_EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
    return state


def read_metadata_with_torch(folder: Path) -> Metadata:
    """Read the metadata by torch's own reader."""
    return dcp.FileSystemReader(folder).read_metadata()


def save_with_torch(state: dict[str, Any], folder: Path) -> Path:
    """Save a checkpoint by torch, from this process alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder, **ALONE)
    return folder


def save_run(folder: Path, weight: float = 1.0) -> Path:
    """Save a model of one weight, with its AdamW."""
    group = {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0, "params": ["w"]}
    states = {"w": {"exp_avg": torch.zeros(3), "exp_avg_sq": torch.ones(3), "step": torch.tensor(2.0)}}
    optimizer = {"state": states, "param_groups": [group]}
    return save_with_torch({"model": {"w": torch.full((3,), weight)}, "optimizer": optimizer}, folder)


def saved(state: object, **options: Any) -> bytes:
    """Return the bytes that torch.save writes."""
    file = io.BytesIO()
    torch.save(state, file, **options)
    return file.getvalue()


def flip(data: bytes, position: int, bit: int) -> bytes:
    """Return the bytes with one bit flipped."""
    flipped = bytearray(data)
    flipped[position] ^= 1 << bit
    return bytes(flipped)


def open_zip(data: bytes) -> TorchZip:
    """Open the bytes of an archive by our own reader."""
    return TorchZip(lambda start, count: data[start : start + count], 0, len(data), where="an item")


def copy_of(folder: Path, tmp_path: Path, name: str = "copy") -> Path:
    """Return a copy of a checkpoint that may be changed."""
    copied = tmp_path / name
    shutil.copytree(folder, copied)
    return copied


def edit_metadata(folder: Path, edit: Callable[[Metadata], None]) -> Path:
    """Change the metadata of a checkpoint through torch's own classes."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    edit(metadata)
    path.write_bytes(pickle.dumps(metadata))
    return folder


def rename_keys(folder: Path, rename: Callable[[str], str]) -> Path:
    """Rename every part of every path in a checkpoint, in its metadata only."""

    def edit(metadata: Metadata) -> None:
        paths = {
            key: tuple(rename(part) if isinstance(part, str) else part for part in path)
            for key, path in metadata.planner_data.items()
        }
        keys = {key: ".".join(map(str, path)) for key, path in paths.items()}
        metadata.state_dict_metadata = {
            keys[key]: value for key, value in metadata.state_dict_metadata.items()
        }
        metadata.storage_data = {
            MetadataIndex(keys[index.fqn], index.offset, index.index): info
            for index, info in metadata.storage_data.items()
        }
        metadata.planner_data = {keys[key]: path for key, path in paths.items()}

    return edit_metadata(folder, edit)


def codes(report: Any) -> set[str]:
    """Return the codes of a report's or a plan's findings."""
    return {finding.code for finding in report.findings}


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its bytes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_nothing_left(folder: Path, *kept: str) -> None:
    """Assert that a folder holds nothing but what it held before: no output, and no part of one."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(kept)


def assert_holds(state: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Assert that a loaded checkpoint holds a golden one's model and optimizer, bit for bit."""
    for name, tensor in wanted["model"].items():
        assert torch.equal(state["model"][name], tensor), name
    for name, moments in wanted["optimizer"]["state"].items():
        for moment, tensor in moments.items():
            assert torch.equal(state["optimizer"]["state"][name][moment], tensor), (name, moment)
    for group, wanted_group in zip(
        state["optimizer"]["param_groups"], wanted["optimizer"]["param_groups"], strict=True
    ):
        assert {name: group[name] for name in wanted_group} == wanted_group
        # What torch before 2.7 did not save, and later ones look for.
        assert group.keys() - wanted_group.keys() <= {"decoupled_weight_decay"}
