"""A bit that flipped where a checksum was stored is noticed by ``convert`` itself, and not certified."""

from __future__ import annotations

import os
import random
import shutil
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.checkpoint_convert import (
    OutputOptions,
    check_checkpoint,
    convert_checkpoint,
    verify_checkpoints,
)
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import StoredChecks
from fsdp_migrate.checkpoint_convert.manifest.manifest import StoredRecord
from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder
from fsdp_migrate.errors import CheckpointFormatError, FSDPMigrateError
from tests.checkpoint import fault_sources, framework_folders
from tests.checkpoint.samples import COMPOSER, PLAIN, assert_nothing_left, contents, copy_of
from tests.rank_bodies import shared_conversions
from tests.ranks import RanksFailedError, run_ranks


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fsdp_migrate.checkpoint_convert import ConversionReport
    from tests.checkpoint.rank_sources import RankSources


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]


# Drawn anew each time: `FLIPS_SEED` repeats a run that failed.
SEED = int(os.environ.get("FLIPS_SEED", random.randrange(1 << 32)))
MOST_FLIPS = 200
FLIPS = int(os.environ.get("FLIPS", "6"))
OPTIONS: dict[str, dict[str, Any]] = {
    "divided": {"world_size": 3},
    "cast": {"dtype": "bf16", "buffer_bytes": 100},
    "copied": {"link": "copy"},
    "weights": {"to": "hf"},
    "checksums": {"world_size": 2, "checksums": True},
}


def make_source(layout: str, folder: Path, rank_sources: RankSources) -> Path:
    """Return a source of a layout whose files have checksums."""
    if layout == "ranks":
        framework_folders.rank_files(rank_sources, folder / "source")
        return folder / "source"
    if layout in ("dcp", "composer"):
        return shutil.copytree(PLAIN if layout == "dcp" else COMPOSER, folder / "source")
    makers: dict[str, Callable[..., Path]] = {
        "file": fault_sources.one_file,
        "pieces": fault_sources.pieces,
        "accelerate": fault_sources.accelerate,
    }
    return makers[layout](folder)


@pytest.mark.parametrize("layout", ["file", "pieces", "accelerate", "ranks", "dcp", "composer"])
@pytest.mark.parametrize("option", OPTIONS)
def test_a_flipped_bit_is_noticed(
    layout: str, option: str, rank_sources: RankSources, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {layout} {option}")
    source = make_source(layout, tmp_path, rank_sources)
    options = {"output_options": OutputOptions(optimizer_class="AdamW"), **OPTIONS[option]}
    convert_checkpoint(source, tmp_path / "out", **options)
    (tmp_path / "out").rename(tmp_path / "whole")
    files = [source] if source.is_file() else [p for p in source.rglob("*") if p.name != ".metadata"]
    files = [path for path in files if path.is_file()]
    wanted = contents(tmp_path / "whole")
    drawn = noticed = 0
    # Most of a small file is nothing that a conversion reads.
    while drawn < FLIPS or (not noticed and drawn < MOST_FLIPS):
        drawn += 1
        file = chance.choice(files)
        data = file.read_bytes()
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        # A new file, because outputs can be links to the old one.
        file.unlink()
        file.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        try:
            convert_checkpoint(source, tmp_path / "out", **options)
        except FSDPMigrateError:
            noticed += 1
            assert not (tmp_path / "out").exists()
        else:
            # Where nothing was noticed it is a bit that the output has not, or that no reader looks at: on
            # which system an archive was made.
            if contents(tmp_path / "out") != wanted:
                assert verify_checkpoints(tmp_path / "whole", tmp_path / "out").is_same, (SEED, file, at, bit)
                damaged = check_checkpoint(source).damages
                assert not damaged, (SEED, file.name, at, bit, damaged)
            shutil.rmtree(tmp_path / "out")
        file.unlink()
        file.write_bytes(data)
    assert noticed, SEED


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def find_elements(file: Path, tensor: torch.Tensor) -> int:
    """Return where the elements of a tensor lie in a file."""
    at = file.read_bytes().find(tensor.contiguous().numpy().tobytes())
    assert at > 0
    return at


@pytest.mark.parametrize("strides", ["plain", "transposed", "sliced"])
def test_elements_in_another_order(strides: str, tmp_path: Path) -> None:
    whole = torch.rand(40, 30)
    ways = {"plain": whole, "transposed": whole.t(), "sliced": whole[:, :20]}
    torch.save({"model": {"w": ways[strides]}}, tmp_path / "a.pt")
    flip(tmp_path / "a.pt", find_elements(tmp_path / "a.pt", whole) + 50)
    with pytest.raises(CheckpointFormatError, match=r"have the checksum .* was written"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "out")
    assert_nothing_left(tmp_path, "a.pt")


def test_a_record_that_only_several_tensors_read_whole(tmp_path: Path) -> None:
    flat = torch.rand(100)
    state = {"a": flat[:30], "b": flat[30:60], "c": flat[60:]}
    torch.save({"model": state}, tmp_path / "a.pt")
    report = convert_checkpoint(tmp_path / "a.pt", tmp_path / "whole", world_size=3)
    assert "FM283" not in {finding.code for finding in report.findings}
    flip(tmp_path / "a.pt", find_elements(tmp_path / "a.pt", flat) + 130)
    with pytest.raises(CheckpointFormatError, match="was written"):
        convert_checkpoint(tmp_path / "a.pt", tmp_path / "out", world_size=3)


def said(report: ConversionReport) -> str:
    (finding,) = [found for found in report.findings if found.code == "FM283"]
    return finding.message


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    flat = torch.rand(100)
    torch.save({"model": {"a": flat[:30]}}, tmp_path / "part.pt")
    assert "120 bytes are of records that were read in part" in said(
        convert_checkpoint(tmp_path / "part.pt", tmp_path / "part")
    )
    torch.save({"model": {"a": flat}}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "400 bytes carry no checksum" in said(convert_checkpoint(tmp_path / "old.pt", tmp_path / "old"))
    source = copy_of(PLAIN, tmp_path)
    assert "bytes were linked and not read" in said(
        convert_checkpoint(source, tmp_path / "linked", link="hard")
    )


def test_a_file_beside_that_is_damaged_is_not_certified(tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path)
    torch.save({"seed": torch.arange(100)}, source / "rng.pt")
    (source / "notes.pkl").write_bytes(b"somebody's own")
    convert_checkpoint(source, tmp_path / "whole", link="copy", checksums=True)
    flip(source / "rng.pt", find_elements(source / "rng.pt", torch.arange(100)) + 8)
    with pytest.raises(CheckpointFormatError, match=r"rng\.pt"):
        convert_checkpoint(source, tmp_path / "out", link="copy", checksums=True)
    assert not (tmp_path / "out").exists()
    assert verify_checkpoints(PLAIN, tmp_path / "whole").is_same


def test_a_record_that_two_ranks_read_between_them(tmp_path: Path) -> None:
    whole = torch.rand(100, 40)
    torch.save({"model": {"w": whole}}, tmp_path / "a.pt")
    given = str(tmp_path / "a.pt"), str(tmp_path / "out"), str(tmp_path / "store"), {"world_size": 2}, 1
    report = run_ranks(shared_conversions.convert, *given)[0]["report"]
    # Each rank read a half, and together they read the whole.
    assert "FM283" not in {finding["code"] for finding in report["findings"]}
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "store").unlink()
    flip(tmp_path / "a.pt", find_elements(tmp_path / "a.pt", whole) + 15_000)
    with pytest.raises(RanksFailedError, match="was written"):
        run_ranks(shared_conversions.convert, *given)
    assert not (tmp_path / "out").exists()


def test_parts_that_an_earlier_process_read_count(tmp_path: Path) -> None:
    data = random.Random(SEED).randbytes(10_000)
    (tmp_path / "a").write_bytes(data)
    folder = LocalFolder(tmp_path)
    record = StoredRecord(100, 9000, zlib.crc32(data[100:9100]))
    first, second = StoredChecks(folder), StoredChecks(folder)
    first.saw("a", record, 100, memoryview(data)[100:4000])
    first.saw("a", record, 7000, memoryview(data)[7000:9100])
    second.resume(first.runs())
    second.saw("a", record, 4000, memoryview(data)[4000:6999])
    assert second.agreed == 0
    second.saw("a", record, 6999, memoryview(data)[6999:7000])
    assert second.agreed == 9000
    wrong = StoredChecks(folder)
    wrong.saw("a", record, 4000, memoryview(bytes(3000)))
    with pytest.raises(CheckpointFormatError, match="is damaged"):
        wrong.join(first.runs())
    folder.close()
