"""One byte that changed, anywhere in a source of any layout or an output of any target, is found."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    check_checkpoint,
    convert_checkpoint,
    inspect_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.errors import FSDPMigrateError
from tests.checkpoint import fault_sources, framework_folders
from tests.checkpoint.samples import COMPOSER, PLAIN, contents, copy_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.checkpoint.rank_sources import RankSources


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


def places(size: int) -> list[int]:
    """Return the first bytes of a file, some between, and the last."""
    return sorted({0, 2, *range(17, size, max(size // 8, 1)), size - 20, size - 1})


def flips(file: Path, few: tuple[int, ...] | None = None) -> Iterator[int]:
    """Change one byte of a file at a time, and put it back."""
    data = file.read_bytes()
    for at in places(len(data)) if few is None else few:
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 8)
        file.write_bytes(changed)
        yield at
    file.write_bytes(data)


def sees(look: Callable[[], Any]) -> bool:
    """Tell whether a look at a damaged checkpoint says so; any error but ours fails the test."""
    try:
        report = look()
    except FSDPMigrateError:
        return True
    return getattr(report, "is_whole", True) is False or getattr(report, "is_same", True) is False


def unseen(source: Path, file: Path, whole: Path) -> list[int]:
    """Return where a changed byte is found by no deep look, although the source no longer says the same."""
    missed = []
    for at in flips(file):
        checked = sees(lambda: check_checkpoint(source))
        assert sees(lambda: inspect_checkpoint(source, deep=True)) == checked, (file.name, at)
        if not checked and sees(lambda: verify_checkpoints(whole, source)):
            missed.append(at)
    return missed


def test_a_file_of_torch_save(tmp_path: Path) -> None:
    source = fault_sources.one_file(tmp_path)
    (tmp_path / "whole").mkdir()
    assert unseen(source, source, fault_sources.one_file(tmp_path / "whole")) == []


def test_numbered_pieces(tmp_path: Path) -> None:
    source = fault_sources.pieces(tmp_path)
    for file in sorted(source.iterdir()):
        assert unseen(source, file, copy_of(source, tmp_path, file.stem)) == []


def test_one_of_several_rank_files(rank_sources: RankSources, tmp_path: Path) -> None:
    framework_folders.rank_files(rank_sources, tmp_path / "source")
    whole = copy_of(tmp_path / "source", tmp_path)
    file = sorted((tmp_path / "source").iterdir())[1]
    assert unseen(tmp_path / "source", file, whole) == []


def test_the_folder_of_accelerate(tmp_path: Path) -> None:
    source = fault_sources.accelerate(tmp_path)
    whole = copy_of(source, tmp_path)
    for name in contents(source):
        missed = unseen(source, source / name, whole)
        # Nothing repeats the names of entries, so only `SHA256SUMS` or another copy tells that one changed.
        assert missed == [] or name.endswith("/.metadata"), name


@pytest.mark.parametrize("name", ["scheduler.bin", "scaler.pt", "random_states_0.pkl"])
def test_what_lies_beside(name: str, tmp_path: Path) -> None:
    source = fault_sources.accelerate(tmp_path)
    assert check_checkpoint(source).is_whole
    data = (source / name).read_bytes()
    directory = data.find(b"PK\x01\x02")
    # The first header; what is stored; the names, places and end of the directory.
    for at in flips(source / name, (0, 3, 40, len(data) // 2, directory, directory + 50, len(data) - 22)):
        assert sees(lambda: check_checkpoint(source)), at
        assert sees(lambda: inspect_checkpoint(source, deep=True)), at


def test_safetensors_with_checksums(tmp_path: Path) -> None:
    source = fault_sources.safetensors(tmp_path)
    file = source / "model.safetensors"
    assert not all(sees(lambda: check_checkpoint(source)) for _ in flips(file))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    (source / "SHA256SUMS").write_text(f"{digest}  model.safetensors\n")
    assert check_checkpoint(source).hashed_files == 1
    assert [at for at in flips(file) if not sees(lambda: check_checkpoint(source))] == []


@pytest.mark.parametrize("to", TARGETS)
def test_an_output_with_checksums(to: str, tmp_path: Path) -> None:
    source = COMPOSER if to == "composer" else PLAIN
    options = OutputOptions(optimizer_class="AdamW", max_shard_size=400)
    out = tmp_path / "out"
    convert_checkpoint(source, out, to=to, checksums=True, link="copy", output_options=options)
    assert not sees(lambda: check_checkpoint(out))
    for name in contents(out):
        for at in flips(out / name, (0, (out / name).stat().st_size // 2, -1)):
            assert sees(lambda: check_checkpoint(out)), (name, at)
        for _ in flips(out / name, (100 % (out / name).stat().st_size,)):
            assert sees(lambda: verify_checkpoints(source, out)), name
