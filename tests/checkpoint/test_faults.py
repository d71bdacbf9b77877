"""Full disks, broken reads and sources that change, between layouts and targets of several kinds."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import resource
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    check_checkpoint,
    convert_checkpoint,
    execute_plan,
    inspect_checkpoint,
    plan_conversion,
    verify_checkpoints,
)
from fsdp_migrate.errors import (
    CheckpointError,
    CheckpointFormatError,
    CheckpointReadError,
    FSDPMigrateError,
    OutputError,
    OutputExistsError,
)
from tests.checkpoint import fault_sources
from tests.checkpoint.samples import assert_nothing_left, contents


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


@dataclass(frozen=True)
class Way:
    """A source, and what becomes of it."""

    make: Callable[..., Path]
    options: dict[str, Any] = field(default_factory=dict)


FULL = OutputOptions(state_dict_type="full")
WAYS = {
    "file to torch": Way(fault_sources.one_file, {"to": "torch"}),
    "accelerate": Way(fault_sources.accelerate, {"to": "accelerate", "dtype": "bf16"}),
    "dcp to hf": Way(fault_sources.distributed, {"to": "hf", "checksums": True}),
    "file to full": Way(fault_sources.one_file, {"to": "accelerate", "output_options": FULL}),
    "pieces to lightning": Way(fault_sources.pieces, {"to": "lightning"}),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


def bytes_of(source: Path) -> dict[str, bytes]:
    return contents(source) if source.is_dir() else {source.name: source.read_bytes()}


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Faults:
    """Stands for a function of ``os``, and fails at a call of it that concerns a folder, or from then on."""

    def __init__(self, name: str, folder: str) -> None:
        self._name, self._real, self._folder = name, getattr(os, name), folder
        self.count, self._at, self._number, self._lasts = 0, 1 << 60, 0, False

    def start(self, *, at: int, number: int = 0, lasts: bool = False) -> None:
        self.count, self._at, self._number, self._lasts = 0, at, number, lasts

    def __call__(self, *args: Any, **options: Any) -> Any:
        where = args[0] if args else ""
        if not isinstance(where, int) and self._folder not in os.fsdecode(where):
            return self._real(*args, **options)
        self.count += 1
        if self.count == self._at or (self._lasts and self.count > self._at):
            if self._name == "close":
                self._real(*args)
            raise OSError(self._number, os.strerror(self._number))
        return self._real(*args, **options)


@dataclass
class Reads:
    """Counts the reads of sources, and does something at one of them."""

    action: Callable[[], None] = lambda: None
    at: int = 1 << 60
    count: int = 0

    def start(self, at: int, action: Callable[[], None]) -> None:
        self.action, self.at, self.count = action, at, 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    counter, preadv = Reads(), os.preadv

    def counted(fd: int, buffers: Any, offset: int) -> int:
        counter.count += 1
        if counter.count == counter.at:
            counter.action()
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", counted)
    return counter


def replace_call(patch: pytest.MonkeyPatch, name: str, function: Callable[..., Any]) -> None:
    """Replace a function of ``os``, also where Python 3.10's pathlib took it when it was imported."""
    patch.setattr(os, name, function)
    taken = getattr(pathlib, "_NormalAccessor", None)
    if getattr(taken, name, None) is not None and name != "open":
        patch.setattr(taken, name, staticmethod(function))


def some_of(total: int) -> list[int]:
    """Return some of so many events, the first and the last among them."""
    return sorted({total, *range(1, total + 1, max(total // 4, 1))})


@pytest.mark.parametrize("name", ["pwrite", "fsync", "mkdir", "rename", "open", "write"])
def test_every_kind_of_write_that_fails(
    name: str, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = way.make(tmp_path)
    before = bytes_of(source)
    real, count, fail_at = getattr(os, name), 0, 1 << 60

    def full(*args: Any, **options: Any) -> Any:
        nonlocal count
        is_read = name == "open" and not args[1] & os.O_CREAT
        count += not is_read
        if count == fail_at and not is_read:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **options)

    replace_call(monkeypatch, name, full)
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    numbers: set[int | None] = set()
    for number in some_of(count) if count else ():
        count, fail_at = 0, number
        try:
            convert_checkpoint(source, tmp_path / "out", **way.options)
        except OutputError as error:
            numbers.add(error.errno)
        else:
            # The output was in its place already, or nothing was to be made.
            assert name in ("fsync", "mkdir"), number
            fail_at = 1 << 60
            assert contents(tmp_path / "out").keys() == contents(tmp_path / "whole").keys()
            assert verify_checkpoints(tmp_path / "whole", tmp_path / "out").is_same
            remove(tmp_path / "out")
        fail_at = 1 << 60
        assert_nothing_left(tmp_path, "whole", source.name)
    assert numbers <= {errno.ENOSPC}
    assert bytes_of(source) == before


def test_reads_and_writes_that_are_cut_short(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may do less than it was asked for, and says how much."""
    source = way.make(tmp_path)
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    preadv, pwrite, counts = os.preadv, os.pwrite, [0, 0]

    def read_less(fd: int, buffers: Any, offset: int) -> int:
        counts[0] += 1
        return preadv(fd, [memoryview(buffer)[: -(-len(buffer) // 2)] for buffer in buffers], offset)

    def write_less(fd: int, data: Any, offset: int) -> int:
        counts[1] += 1
        return pwrite(fd, memoryview(data)[: -(-len(data) // 2)], offset)

    monkeypatch.setattr(os, "preadv", read_less)
    monkeypatch.setattr(os, "pwrite", write_less)
    convert_checkpoint(source, tmp_path / "out", **way.options)
    assert min(counts) > 10
    found, wanted = contents(tmp_path / "out"), contents(tmp_path / "whole")
    assert found.keys() == wanted.keys()
    assert verify_checkpoints(tmp_path / "whole", tmp_path / "out").is_same


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES], ids=["EIO", "EACCES"])
@pytest.mark.parametrize("name", ["pwrite", "fsync", "mkdir", "rename", "open"])
def test_the_first_write_that_fails_for_other_reasons(
    name: str, number: int, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = way.make(tmp_path)
    before, real = bytes_of(source), getattr(os, name)

    def fail(*args: Any, **options: Any) -> Any:
        if name == "open" and not args[1] & os.O_CREAT:
            return real(*args, **options)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        replace_call(patch, name, fail)
        with pytest.raises(OutputError) as caught:
            convert_checkpoint(source, tmp_path / "out", **way.options)
    assert caught.value.errno == number
    assert not (tmp_path / "out").exists()
    assert bytes_of(source) == before


CALLS = (
    "open",
    "mkdir",
    "link",
    "unlink",
    "rename",
    "rmdir",
    "ftruncate",
    "pwrite",
    "fsync",
    "listdir",
    "stat",
)
CALLS_THAT_READ = ("preadv", "scandir", "close")
NUMBERS = (errno.ENOSPC, errno.EIO, errno.EACCES)


@pytest.mark.parametrize("name", [*CALLS, *CALLS_THAT_READ])
@pytest.mark.parametrize("kind", ["file to full", "relinked", "replaced"])
def test_any_call_that_fails_loses_nothing_and_is_gone_on_from(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call fails once, or from then on; then `--resume` goes on, where the system is well again."""
    relinks = Way(fault_sources.distributed, {"to": "composer", "output_options": OutputOptions("AdamW")})
    way = relinks if kind == "relinked" else WAYS["file to full"]
    source, out = way.make(tmp_path), tmp_path / "out"
    options = {**way.options, "overwrite": kind == "replaced"}
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    old = tmp_path / "old"
    convert_checkpoint(source, old, **way.options, dtype="fp16")
    before, states = bytes_of(source), [contents(old), contents(tmp_path / "whole")]
    faults = Faults(name, str(tmp_path))
    replace_call(monkeypatch, name, faults)

    def start_anew() -> None:
        remove(out)
        if kind == "replaced":
            shutil.copytree(old, out)

    start_anew()
    faults.start(at=1 << 60)
    convert_checkpoint(source, out, **options)
    for turn, number in enumerate(some_of(faults.count) if faults.count else ()):
        start_anew()
        faults.start(at=number, number=NUMBERS[turn % len(NUMBERS)], lasts=turn % 2 == 1)
        with contextlib.suppress(OutputError, OutputExistsError, CheckpointReadError):
            convert_checkpoint(source, out, **options)
        faults.start(at=1 << 60)
        assert bytes_of(source) == before
        if out.exists() or kind == "replaced":
            assert [found.keys() for found in (contents(out),) if found != states[0]] in (
                [],
                [states[1].keys()],
            )
        convert_checkpoint(source, out, **options, resume=True)
        assert contents(out).keys() == states[1].keys()
        assert verify_checkpoints(tmp_path / "whole", out).is_same
        assert_nothing_left(tmp_path, "whole", "old", "out", source.name)


def test_a_limit_on_files_of_every_size(way: Way, tmp_path: Path) -> None:
    source = way.make(tmp_path)
    before, limits = bytes_of(source), resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = 0
    try:
        for size in [*range(0, 4096, 512), *range(4096, 1 << 18, 8192)]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            try:
                convert_checkpoint(source, tmp_path / "out", **way.options)
            except OutputError:
                refused += 1
                assert_nothing_left(tmp_path, source.name)
            else:
                break
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert refused
    assert check_checkpoint(tmp_path / "out").is_whole
    assert bytes_of(source) == before


def test_a_read_that_fails(way: Way, reads: Reads, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    source = way.make(tmp_path)
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    for number in some_of(reads.count):
        reads.start(number, fail)
        with pytest.raises(CheckpointReadError, match="Input/output error"):
            convert_checkpoint(source, tmp_path / "out", **way.options)
        assert_nothing_left(tmp_path, "whole", source.name)


def test_a_source_that_vanishes(way: Way, reads: Reads, tmp_path: Path) -> None:
    source = way.make(tmp_path)
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    total = reads.count
    for number in some_of(total):
        remove(source)
        way.make(tmp_path)
        reads.start(number, lambda: remove(source))
        try:
            convert_checkpoint(source, tmp_path / "out", **way.options)
        except CheckpointError:
            assert_nothing_left(tmp_path, "whole")
        else:
            # What was open could be read to its end, and the output is all that it was.
            assert contents(tmp_path / "out") == contents(tmp_path / "whole")
            assert number == total
            remove(tmp_path / "out")


def test_a_source_that_is_cut_off_meanwhile(way: Way, reads: Reads, tmp_path: Path) -> None:
    source = way.make(tmp_path)

    def cut() -> None:
        for file in [source] if source.is_file() else [f for f in source.rglob("*") if f.is_file()]:
            os.truncate(file, file.stat().st_size // 2)

    convert_checkpoint(source, tmp_path / "whole", **way.options)
    total = reads.count
    for number in some_of(total):
        remove(source)
        way.make(tmp_path)
        reads.start(number, cut)
        with pytest.raises(CheckpointError):
            convert_checkpoint(source, tmp_path / "out", **way.options)
        assert_nothing_left(tmp_path, "whole", source.name)


@pytest.mark.parametrize("replaces", [False, True], ids=["in place", "replaced"])
def test_a_source_that_is_saved_again_meanwhile(
    replaces: bool, way: Way, reads: Reads, tmp_path: Path
) -> None:
    """The same names and sizes, other values: half of the one and half of the other would look whole."""
    (tmp_path / "new").mkdir()
    newer = way.make(tmp_path / "new", 8)
    convert_checkpoint(newer, tmp_path / "newer", **way.options)
    source = way.make(tmp_path)

    def save_again() -> None:
        for name, data in bytes_of(newer).items():
            file = source if source.is_file() else source / name
            if replaces:
                file.unlink()
            file.write_bytes(data)
            os.utime(file, ns=(0, 10**18))

    reads.start(1 << 60, save_again)
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    total, refused = reads.count, 0
    for number in some_of(total):
        remove(source)
        way.make(tmp_path)
        reads.start(number, save_again)
        try:
            convert_checkpoint(source, tmp_path / "out", **way.options)
        except CheckpointError:
            refused += 1
        else:
            assert number == 1
            assert verify_checkpoints(tmp_path / "newer", tmp_path / "out").is_same
            remove(tmp_path / "out")
        assert_nothing_left(tmp_path, "new", "newer", "whole", source.name)
    assert refused >= len(some_of(total)) - 1


def test_a_source_that_changed_since_it_was_inspected(way: Way, tmp_path: Path) -> None:
    source = way.make(tmp_path)
    options = {key: value for key, value in way.options.items() if key not in ("link", "checksums")}
    plan = plan_conversion(inspect_checkpoint(source), **options)
    file = (
        source if source.is_file() else max(source.rglob("*"), key=lambda f: f.is_file() * f.stat().st_size)
    )
    with file.open("ab") as opened:
        opened.write(b"more")
    with pytest.raises(CheckpointFormatError, match="has changed since it was inspected"):
        execute_plan(plan, tmp_path / "out")
    assert_nothing_left(tmp_path, source.name)


def test_two_conversions_into_one_output(way: Way, reads: Reads, tmp_path: Path) -> None:
    source = way.make(tmp_path)
    convert_checkpoint(source, tmp_path / "whole", **way.options)
    errors: list[FSDPMigrateError] = []

    def second() -> None:
        try:
            convert_checkpoint(source, tmp_path / "out", **way.options)
        except (OutputError, OutputExistsError) as error:
            errors.append(error)

    total = reads.count
    for number in some_of(total):
        errors.clear()
        reads.start(number, second)
        try:
            convert_checkpoint(source, tmp_path / "out", **way.options)
        except (OutputError, OutputExistsError) as error:
            errors.append(error)
        assert len(errors) == 1, number
        assert contents(tmp_path / "out").keys() == contents(tmp_path / "whole").keys()
        assert verify_checkpoints(tmp_path / "whole", tmp_path / "out").is_same
        assert_nothing_left(tmp_path, "out", "whole", source.name)
        remove(tmp_path / "out")


def test_links_out_of_the_folder(way: Way, tmp_path: Path) -> None:
    source = way.make(tmp_path)
    said: set[bool] = set()
    for name in contents(source) if source.is_dir() else ():
        (source / name).replace(tmp_path / "secret")
        (source / name).symlink_to(tmp_path / "secret")
        secret = (tmp_path / "secret").read_bytes()
        try:
            convert_checkpoint(source, tmp_path / "out", **way.options)
        except CheckpointFormatError as error:
            said.add("is a link to something outside" in str(error))
        else:
            assert secret not in contents(tmp_path / "out").values()
            remove(tmp_path / "out")
        (source / name).unlink()
        (tmp_path / "secret").replace(source / name)
    assert said == ({True} if source.is_dir() else set())
    assert_nothing_left(tmp_path, source.name)
