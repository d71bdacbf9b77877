"""What a check of one archive finds, and what it takes for whole."""

from __future__ import annotations

import io
import warnings
import zipfile

import pytest
import torch

from fsdp_migrate.checkpoint_convert.formats.zip_check import check_archive
from fsdp_migrate.errors import CheckpointFormatError, FSDPMigrateError
from tests.checkpoint.samples import flip, open_zip, saved


def test_every_bit_of_an_archive_but_those_that_nobody_reads() -> None:
    data = saved({"a": torch.empty(0, 3), "b": torch.ones(2)})
    check_archive(open_zip(data))
    unseen = set()
    for position in range(len(data)):
        try:
            check_archive(open_zip(flip(data, position, position % 8)))
        except FSDPMigrateError:
            continue
        unseen.add(position)
    directory = data.find(b"PK\1\2")
    wide = data.rfind(b"PK\6\6")
    starts = [at for at in range(directory, wide) if data[at : at + 4] == b"PK\1\2"]
    # Which system made it, attributes of a file, and which version a reader needs.
    inert = {at + n for at in starts for n in (4, 5, 36, 37, 38, 39, 40, 41)}
    assert unseen <= inert | {wide + n for n in (12, 13, 14, 15)}


def test_archives_of_other_programs_are_whole_too() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/version", b"3\n")
    assert check_archive(open_zip(file.getvalue())) == (6, 0)


def test_what_two_readers_would_read_differently() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("archive/data.pkl", b"\x80\x02N.")
        archive.writestr("archive/data.pkl", b"\x80\x02K\x01.")
    with pytest.raises(CheckpointFormatError, match="two records"):
        open_zip(file.getvalue())
    whole = saved(torch.ones(3))
    with pytest.raises(CheckpointFormatError, match="end record is damaged"):
        check_archive(open_zip(whole + b"more"))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in "abc":
            archive.writestr(f"archive/{name}", b"1")
        del archive.filelist[1]
    with pytest.raises(CheckpointFormatError, match="is not what the directory says"):
        check_archive(open_zip(file.getvalue()))
