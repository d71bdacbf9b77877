"""Files that were changed at random, and small ones that attack: nothing runs, and all stays in bounds."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import random
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save as save_safetensors
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from fsdp_migrate.checkpoint_convert import SourceOptions, convert_checkpoint, inspect_checkpoint
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import load_pickle
from fsdp_migrate.checkpoint_convert.formats.torch_file import read_saved_file
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.errors import CheckpointError, FSDPMigrateError, PlanError, UnsafePickleError
from tests.checkpoint.bombs import BOMBS
from tests.checkpoint.fuzz import legacy_with_pickle, mutate, safetensors_with_header, with_pickle
from tests.checkpoint.samples import DATA, LIGHTNING, PLAIN, assert_nothing_left, copy_of, edit_metadata
from tests.ranks import ROOT


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


# What only a pickle that runs can bring about here; a hook cannot be taken out again, so it is switched.
_EVENTS = {"pickle.find_class", "os.system", "os.exec", "subprocess.Popen", "socket.connect", "ctypes.dlopen"}
_watches: list[list[str]] = []


def _note(event: str, arguments: object) -> None:
    del arguments
    if _watches and event in _EVENTS:
        _watches[-1].append(event)


sys.addaudithook(_note)


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Yield what runs meanwhile."""
    _watches.append([])
    try:
        yield _watches[-1]
    finally:
        _watches.pop()


def in_metadata(folder: Path, chance: random.Random) -> Path:
    source = copy_of(PLAIN, folder, "dcp")
    data = (source / ".metadata").read_bytes()
    (source / ".metadata").write_bytes(mutate(data, chance))
    return source


def in_an_item(folder: Path, chance: random.Random) -> Path:
    """Change the pickle of one item, of a tensor or not, and put it at the end of its file."""
    source = copy_of(PLAIN, folder, "dcp")
    entry = chance.choice(list(inspect_checkpoint(source).entries.values()))
    stored = entry.stored if isinstance(entry, BytesEntry) else entry.chunks[0].stored
    data = (source / stored.file).read_bytes()
    item = with_pickle(data[stored.offset : stored.offset + stored.length], lambda d: mutate(d, chance))
    (source / stored.file).write_bytes(data + item)

    def edit(metadata: Metadata) -> None:
        place = None if isinstance(entry, BytesEntry) else torch.Size(entry.chunks[0].offsets)
        info = metadata.storage_data[MetadataIndex(entry.key, place)]
        info.offset, info.length = len(data), len(item)

    return edit_metadata(source, edit)


def in_a_file(folder: Path, chance: random.Random) -> Path:
    data = (DATA / "torch-2.13.0" / chance.choice(["plain", "flat"])).with_suffix(".expected.pt").read_bytes()
    (folder / "model.pt").write_bytes(with_pickle(data, lambda d: mutate(d, chance)))
    return folder / "model.pt"


def in_an_old_file(folder: Path, chance: random.Random) -> Path:
    file = io.BytesIO()
    state = {"model": {"w": torch.ones(3, 2), "b": torch.zeros(3)}, "step": 3, "names": ["w", "b"]}
    torch.save(state, file, _use_new_zipfile_serialization=False)
    data = file.getvalue()
    is_inside = chance.random() < 0.7
    changed = legacy_with_pickle(data, lambda d: mutate(d, chance)) if is_inside else mutate(data, chance)
    (folder / "old.pt").write_bytes(changed)
    return folder / "old.pt"


def in_a_file_of_a_rank(folder: Path, chance: random.Random) -> Path:
    kind = chance.choice(["torch-2.1.2/flat", "torch-2.15.0/mesh"])
    for rank in (0, 1):
        data = (DATA / f"{kind}.sharded_rank{rank}.pt").read_bytes()
        if rank == 0 or chance.random() < 0.3:
            data = with_pickle(data, lambda d: mutate(d, chance))
        (folder / f"rank{rank}.pt").write_bytes(data)
    return folder


def in_safetensors(folder: Path, chance: random.Random) -> Path:
    tensors = {"a": torch.ones(3, 4), "b.c": torch.zeros(7, dtype=torch.bfloat16)}
    data = save_safetensors(tensors, metadata={"x": "y"})
    (folder / "m.safetensors").write_bytes(safetensors_with_header(data, lambda d: mutate(d, chance)))
    return folder / "m.safetensors"


def in_a_file_of_a_stack(folder: Path, chance: random.Random) -> Path:
    """The one file of Lightning's Trainer, or one of the two that llama-cookbook saves."""
    if chance.random() < 0.5:
        data = (LIGHTNING / "full.ckpt").read_bytes()
        (folder / "full.ckpt").write_bytes(with_pickle(data, lambda d: mutate(d, chance)))
        return folder / "full.ckpt"
    optimizer = {"state": {"w": {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": ["w"]}]}
    for name, state in (("run-0.pt", {"w": torch.ones(3)}), ("optimizer-run-0.pt", optimizer)):
        file = io.BytesIO()
        torch.save(state, file)
        (folder / name).write_bytes(with_pickle(file.getvalue(), lambda d: mutate(d, chance)))
    return folder


KINDS = [
    in_metadata,
    in_an_item,
    in_a_file,
    in_an_old_file,
    in_a_file_of_a_rank,
    in_a_file_of_a_stack,
    in_safetensors,
]


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None)
def test_changed_pickles_are_errors_of_ours_or_read(make: Any, seed: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    try:
        (folder / "source").mkdir()
        source = make(folder / "source", random.Random(seed))
        trusted = SourceOptions(trust_pickle=True)
        with watched() as seen:
            errors = [
                error_of(lambda: inspect_checkpoint(source, deep=True)),
                error_of(lambda: convert_checkpoint(source, folder / "out", world_size=3, options=trusted)),
            ]
        assert seen == []
        assert all(error is None or 0 < len(error) < 10_000 for error in errors)
        left = {path.name for path in folder.iterdir()}
        assert left == ({"source", "out"} if errors[1] is None else {"source"})
    finally:
        shutil.rmtree(folder)


def error_of(action: Callable[[], object]) -> str | None:
    """Return what the error says, if there is one of ours."""
    try:
        action()
    except FSDPMigrateError as error:
        return str(error)
    return None


def test_the_watch_sees_what_runs(tmp_path: Path) -> None:
    with watched() as seen:
        pickle.loads(pickle.dumps(tmp_path))
    assert "pickle.find_class" in seen


def test_small_files_take_little_memory_and_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.checkpoint.bombs", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert {line[0] for line in lines} == set(BOMBS)
    assert {line[2] for line in lines} <= {"done", "refused"}
    assert [line for line in lines if int(line[3]) > 150] == []


def test_a_global_is_no_more_than_a_name(tmp_path: Path) -> None:
    """A name with a line's end in it would be opcodes, once it is written again."""
    name = "Thing\n(S'x'\ntRcos\nsystem"
    pickled = b"\x80\x04}\x8c\x01a\x8c\x04mine\x8c" + bytes([len(name)]) + name.encode() + b"\x93s."
    with pytest.raises(UnsafePickleError, match="that has no name"):
        load_pickle(pickled, {}, where="x", unknown=lambda name: name)
    torch.save({"a": 1}, tmp_path / "model.pt")
    data = with_pickle((tmp_path / "model.pt").read_bytes(), lambda _: pickled)
    (tmp_path / "model.pt").write_bytes(data)
    folder = open_folder(tmp_path)
    with pytest.raises(UnsafePickleError, match="that has no name"):
        read_saved_file(folder, "model.pt", len(data))
    folder.close()


@pytest.mark.parametrize(
    "name", ["../secret.safetensors", "/etc/passwd", "a/../../secret", "\\\\host\\x", "a\0b"]
)
def test_an_index_that_points_outside(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "secret.safetensors").write_bytes(save_safetensors({"a": torch.ones(2)}))
    index = {"weight_map": {"a": name}}
    (source / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="outside"):
        convert_checkpoint(source, tmp_path / "out")
    assert_nothing_left(tmp_path, "source", "secret.safetensors")


def test_a_header_that_names_a_tensor_twice(tmp_path: Path) -> None:
    one = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = f"{{{one},{one}}}".encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(CheckpointError, match="stands in it twice"):
        inspect_checkpoint(path)


class Foreign:
    pass


def test_many_refusals_are_told_shortly(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(2)}, **{f"x{n}": Foreign() for n in range(500)}}, tmp_path / "m.pt")
    with pytest.raises(PlanError, match="and 480 more") as caught:
        convert_checkpoint(tmp_path / "m.pt", tmp_path / "out")
    assert len(caught.value.findings) == 500
    assert len(str(caught.value)) < 10_000


def header_of(size: int, kind: bytes) -> bytes:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE])
def test_an_archive_with_a_name_of_a_gigabyte(kind: bytes, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "ep0.tar.gz", "wb", compresslevel=1) as file:
        file.write(header_of(1 << 30, kind))
        file.write(bytes(4 << 20))
    with pytest.raises(CheckpointError, match="a header of 1073741824 bytes"):
        inspect_checkpoint(tmp_path / "ep0.tar.gz")


def test_an_archive_of_very_many_files(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "ep0.tar.gz", "wb", compresslevel=1) as file:
        file.write(tarfile.TarInfo("a").tobuf() * 10_001 + bytes(1024))
    with pytest.raises(CheckpointError, match="more than 10000 files"):
        inspect_checkpoint(tmp_path / "ep0.tar.gz")


def test_an_archive_that_leads_outside(tmp_path: Path) -> None:
    """No path in an archive is followed: the state is taken by its last name, to where nothing else is."""
    state = tmp_path / "state.pt"
    torch.save({"state": {"model": {"w": torch.ones(2)}}}, state)
    with tarfile.open(tmp_path / "ep0.tar", "w") as archive:
        archive.add(state, "../../composer_states.pt")
        archive.add(state, "/etc/other")
    inspect_checkpoint(tmp_path / "ep0.tar")
    assert_nothing_left(tmp_path, "state.pt", "ep0.tar")
