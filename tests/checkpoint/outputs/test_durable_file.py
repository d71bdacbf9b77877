"""Files of outputs hold what was written, past the page cache and through it, in parts and whole."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert.outputs import durable_file
from fsdp_migrate.checkpoint_convert.outputs.durable_file import create_file
from fsdp_migrate.errors import OutputError


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


STAGE = 4 * durable_file._ALIGNMENT
SIZES = [0, 1, STAGE - 1, STAGE, STAGE + 1, 10 * STAGE + 77]


@pytest.fixture(autouse=True)
def small_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_file, "STAGE_BYTES", STAGE)
    # Whatever the file system of temporary files is, direct writes are tried.
    monkeypatch.setattr(durable_file, "_is_on_local_disk", lambda fd: True)


def direct_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the lengths of writes past the page cache from here on."""
    lengths: list[int] = []
    pwrite = os.pwrite

    def noting(fd: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            lengths.append(len(data))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", noting)
    return lengths


def takes_direct_writes(folder: Path) -> bool:
    """Tell whether the file system here does; some, such as older tmpfs, do not."""
    try:
        os.close(os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    return True


def write_pieces(
    path: Path, data: bytes, seed: int, size: int, keep: int = 0, part: int | None = None
) -> None:
    """Write ``data[keep:]`` in pieces of every length, with a flush to the disk now and then."""
    chance = random.Random(seed)
    with create_file(path, path, keep, part, size) as file:
        at = keep
        while at < len(data):
            count = chance.choice([1, 100, durable_file._ALIGNMENT, STAGE + 5, 3 * STAGE])
            file.write(memoryview(data)[at : at + count])
            at += count
            if chance.random() < 0.2:
                assert file.sync()


@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_a_whole_file(size: int, is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_file, "DIRECT_BYTES", 0 if is_direct else size + 1)
    lengths = direct_writes(monkeypatch)
    data = random.Random(size).randbytes(size)
    write_pieces(tmp_path / "file", data, size, size)
    assert (tmp_path / "file").read_bytes() == data
    assert bool(lengths) == (is_direct and size >= durable_file._ALIGNMENT and takes_direct_writes(tmp_path))


@pytest.mark.parametrize("seed", range(6))
def test_going_on_with_a_file(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_file, "DIRECT_BYTES", 0)
    chance = random.Random(seed)
    data = chance.randbytes(5 * STAGE + 11)
    keep = chance.choice([1, 4095, 4096, 4097, STAGE, 5 * STAGE])
    # What an interrupted process wrote beyond what it noted is not what belongs there.
    (tmp_path / "file").write_bytes(data[:keep] + b"x" * 10_000_000)
    write_pieces(tmp_path / "file", data, seed, len(data), keep)
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("seed", range(6))
def test_parts_that_share_pages_written_at_once(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_file, "DIRECT_BYTES", 0)
    chance = random.Random(seed)
    data = chance.randbytes(20 * STAGE + 333)
    cuts = sorted({0, len(data), *(chance.randrange(len(data)) for _ in range(5))})
    # Two parts of one page, and a part that is less than a page.
    cuts = sorted({*cuts, cuts[1] + 7, cuts[1] + 1000})
    errors: list[BaseException] = []

    def write(start: int, stop: int) -> None:
        try:
            keep = (stop - start) // 3 if start % 2 else 0
            if keep:
                with create_file(tmp_path / "file", tmp_path / "file", 0, start, keep) as file:
                    file.write(data[start : start + keep])
            write_pieces(tmp_path / "file", data[start:stop], start, stop - start, keep, start)
        except BaseException as error:  # carried to the test
            errors.append(error)

    threads = [threading.Thread(target=write, args=pair) for pair in itertools.pairwise(cuts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize(
    ("kind", "is_local"),
    [("ext4", True), ("xfs", True), ("nfs4", False), ("lustre", False), ("fuse.x", False)],
)
def test_network_file_systems_are_left_to_gather_writes(
    kind: str, is_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with (tmp_path / "file").open("wb") as file:
        device = os.fstat(file.fileno()).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            f"21 1 0:0 / / rw - proc proc rw\n"
            f"36 35 {number} /mnt1 /mnt2 rw,noatime master:1 - {kind} /dev/root rw\n"
        )
        monkeypatch.setattr(durable_file, "_MOUNTS", mounts)
        assert durable_file._is_on_local_disk(file.fileno()) == is_local
        monkeypatch.setattr(durable_file, "_MOUNTS", tmp_path / "missing")
        assert not durable_file._is_on_local_disk(file.fileno())


def no_direct_io(fd: int, data: Any, offset: int, *, pwrite: Callable[..., int] = os.pwrite) -> int:
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
        raise OSError(errno.EINVAL, "Invalid argument")
    return pwrite(fd, data, offset)


def short_writes(fd: int, data: Any, offset: int, *, pwrite: Callable[..., int] = os.pwrite) -> int:
    return pwrite(fd, data[:1000] if len(data) > 1000 and offset % 3 else data, offset)


@pytest.mark.parametrize("pwrite", [no_direct_io, short_writes])
def test_a_file_system_that_writes_otherwise(
    pwrite: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_file, "DIRECT_BYTES", 0)
    monkeypatch.setattr(os, "pwrite", pwrite)
    data = random.Random(1).randbytes(3 * STAGE + 5)
    write_pieces(tmp_path / "file", data, 1, len(data))
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_a_direct_write_is_not_taken_for_another_file_system(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int, data: Any, offset: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable_file, "DIRECT_BYTES", 0)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OutputError) as caught:
        write_pieces(tmp_path / "file", bytes(STAGE), 1, STAGE)
    assert caught.value.errno == number
