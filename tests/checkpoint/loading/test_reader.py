"""``CheckpointReader`` behind torch's own planner: what it gives is what a converted checkpoint gives."""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from fsdp_migrate.checkpoint_convert import CheckpointReader, SourceOptions, convert_checkpoint
from fsdp_migrate.errors import (
    CheckpointError,
    CheckpointFormatError,
    ConfigError,
    PlanError,
    UnsafePickleError,
)
from tests.checkpoint.every_source import SOURCES, make_sources
from tests.checkpoint.samples import COMPOSER, NEWEST, PLAIN, copy_of, load_with_torch


if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader

    from tests.checkpoint.rank_sources import RankSources


@pytest.fixture(scope="module")
def sources(
    rank_sources: RankSources, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, SourceOptions]]:
    return make_sources(rank_sources, tmp_path_factory.mktemp("sources"))


def load_all(reader: StorageReader) -> dict[str, Any]:
    """Return everything that a reader offers, by torch's own planner."""
    state: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def load_into(state: dict[str, Any], reader: StorageReader) -> None:
    """Load by torch's own call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=reader)


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Assert that two nested states hold the same bits."""
    assert type(found) is type(wanted), where
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key, value in wanted.items():
            assert_same(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), where
        for number, value in enumerate(wanted):
            assert_same(found[number], value, f"{where}.{number}")
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype, where
        assert torch.equal(found, wanted), where
    elif isinstance(wanted, np.ndarray):
        assert np.array_equal(found, wanted), where
    else:
        assert found == wanted, where


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_is_what_its_conversion_is(
    source: str, sources: dict[str, tuple[Path, SourceOptions]], tmp_path: Path
) -> None:
    path, options = sources[source]
    convert_checkpoint(path, tmp_path / "out", to="torch", options=options)
    reader = CheckpointReader(path, options=options)
    assert_same(load_all(reader), load_with_torch(tmp_path / "out"))


@pytest.mark.parametrize("to", ["composer", "torchtitan"])
def test_other_names(to: str, tmp_path: Path) -> None:
    source = COMPOSER if to == "composer" else PLAIN
    convert_checkpoint(source, tmp_path / "out", to=to)
    assert_same(load_all(CheckpointReader(source, to=to)), load_with_torch(tmp_path / "out"))


@pytest.mark.parametrize("to", ["accelerate", "hf"])
def test_what_is_no_single_checkpoint_is_refused(to: str) -> None:
    with pytest.raises(ConfigError, match="no single distributed checkpoint"):
        CheckpointReader(PLAIN, to=to).read_metadata()


def test_behind_a_url() -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(PLAIN), "/reader/plain", recursive=True)
    assert_same(load_all(CheckpointReader("memory://reader/plain")), load_with_torch(PLAIN))


def test_names_change_as_asked() -> None:
    found = load_all(CheckpointReader(PLAIN, rename=["^blocks=layers"], weights_only=True))
    assert set(found) == {"model"}
    assert torch.equal(
        found["model"]["layers.0.up.weight"], load_with_torch(PLAIN)["model"]["blocks.0.up.weight"]
    )


def test_casts_are_said(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}}
    torch.save(state, tmp_path / "state.pt")
    reader = CheckpointReader(tmp_path / "state.pt")
    half = {"model": {"w": torch.zeros(2, 3, dtype=torch.bfloat16), "b": torch.zeros(2)}}
    load_into(half, reader)
    assert torch.equal(half["model"]["w"], state["model"]["w"].bfloat16())
    (cast,) = [found for found in reader.findings if found.code == "FM430"]
    assert cast.message == "1 tensor, float32 to bfloat16: `model.w`."


def open_below(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(path.readlink()))
    return [path for path in found if path.startswith(str(folder))]


def test_files_are_closed(tmp_path: Path) -> None:
    folder = copy_of(NEWEST, tmp_path)
    load_all(CheckpointReader(folder))
    assert open_below(tmp_path) == []
    with CheckpointReader(folder) as reader:
        reader.read_metadata()
        assert open_below(tmp_path)
    assert open_below(tmp_path) == []
    (folder / ".metadata").write_bytes(b"nothing")
    with pytest.raises(CheckpointFormatError):
        CheckpointReader(folder).read_metadata()
    assert open_below(tmp_path) == []


class _Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_is_executed(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(3)}, "other": _Attack(tmp_path / "run")}, tmp_path / "state.pt")
    with pytest.raises(PlanError, match="FM230"):
        CheckpointReader(tmp_path / "state.pt").read_metadata()
    folder = copy_of(PLAIN, tmp_path)
    (folder / ".metadata").write_bytes(pickle.dumps(_Attack(tmp_path / "run")))
    with pytest.raises(UnsafePickleError):
        CheckpointReader(folder).read_metadata()
    assert not (tmp_path / "run").exists()


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    state = {"model": {"w": torch.arange(5000.0)}}
    torch.save(state, tmp_path / "state.pt")
    data = bytearray((tmp_path / "state.pt").read_bytes())
    data[data.index(torch.arange(100.0, 120.0).numpy().tobytes()) + 7] ^= 4
    (tmp_path / "state.pt").write_bytes(data)
    # torch's exception is no `Exception`.
    with pytest.raises(BaseException, match="is damaged: its 20000 bytes"):
        load_into({"model": {"w": torch.zeros(5000)}}, CheckpointReader(tmp_path / "state.pt"))


def test_a_file_that_changes_is_seen(tmp_path: Path) -> None:
    folder = copy_of(PLAIN, tmp_path)
    reader = CheckpointReader(folder)
    reader.read_metadata()
    file = next(folder.glob("*.distcp"))
    file.write_bytes(file.read_bytes() + b"more")
    # dcp.load begins anew, and sees the file as it is; between two of its steps it is another one.
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()
    planner.set_up_planner(state, reader.read_metadata(), True)
    with pytest.raises(CheckpointError, match="has changed since it was inspected"):
        reader.read_data(planner.create_local_plan(), planner)


def test_columns_and_odd_memory(tmp_path: Path) -> None:
    whole = torch.arange(600 * 500.0).reshape(600, 500)
    torch.save({"model": {"w": whole, "t": whole.t(), "n": whole[100:200, 30:60]}}, tmp_path / "state.pt")
    found = load_all(CheckpointReader(tmp_path / "state.pt"))["model"]
    assert torch.equal(found["w"], whole)
    assert torch.equal(found["t"], whole.t())
    assert torch.equal(found["n"], whole[100:200, 30:60])
    odd = {"model": {"w": torch.zeros(500, 600).t(), "t": torch.zeros(500, 1200)[:, ::2]}}
    load_into(odd, CheckpointReader(tmp_path / "state.pt"))
    assert torch.equal(odd["model"]["w"], whole)
    assert torch.equal(odd["model"]["t"], whole.t())
