"""Several ranks make one output: the bytes of one process, an error that names the rank, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.checkpoint_convert import convert_checkpoint, verify_checkpoints
from tests.checkpoint.samples import PLAIN, assert_nothing_left, contents, copy_of
from tests.rank_bodies import shared_conversions
from tests.ranks import ROOT, run_ranks


if TYPE_CHECKING:
    from pathlib import Path


def torchrun(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # By its name a machine may not find itself, and torchrun would wait.
    launcher = ["torch.distributed.run", "--standalone", "--local-addr", "localhost", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, "-m", *launcher, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.any_torch
def test_torchrun_makes_what_one_process_makes(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_checkpoint(PLAIN, out, world_size=3, dtype="bf16", checksums=True)
    wanted = contents(out)
    out.rename(tmp_path / "alone")
    done = torchrun(
        *("-m", "fsdp_migrate", "convert", str(PLAIN), str(out)),
        *("--world-size", "3", "--dtype", "bf16", "--checksums", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert contents(out) == wanted
    report = json.loads(done.stdout)["report"]
    (shares,) = (f["message"] for f in report["findings"] if f["code"] == "FM265")
    assert "rank 1: " in shares
    assert "rank 1: 0 bytes" not in shares
    assert_nothing_left(tmp_path, "alone", "out")


@pytest.mark.any_torch
@pytest.mark.parametrize(("how", "rank"), [("error", 1), ("kill", 1), ("kill", 0)])
def test_a_rank_that_fails_stops_all_and_is_named(
    how: str, rank: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = str(ROOT / "tests" / "rank_scripts" / "failing_convert.py")
    how_it_fails = {"FAIL_HOW": how, "FAIL_RANK": str(rank)}
    begun = str(tmp_path_factory.mktemp("begun") / "begun")
    done = torchrun(
        *(script, str(PLAIN), str(tmp_path / "out"), "--world-size=4"), **how_it_fails, FAIL_BEGUN=begun
    )
    assert done.returncode == 1
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert said.startswith(f"Error: Rank {rank} ")
    assert ("killed" if how == "kill" else "[Errno 5] Input/output error: '/the/disk'") in said
    assert_nothing_left(tmp_path)


@pytest.mark.any_torch
@pytest.mark.parametrize("segment_bytes", [1, 4096, 1 << 30])
def test_files_in_parts_and_checksums_on_ranks(segment_bytes: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"world_size": 3, "checksums": True}
    convert_checkpoint(PLAIN, out, **options)
    wanted = contents(out)
    out.rename(tmp_path / "alone")
    found = run_ranks(
        shared_conversions.convert, str(PLAIN), str(out), str(tmp_path / "store"), options, segment_bytes
    )
    assert contents(out) == wanted
    assert found[0]["report"] == found[1]["report"]
    total = found[0]["report"]["bytes_written"]
    assert (total, total) in found[0]["events"]
    assert found[1]["events"] == []


@pytest.mark.parametrize("link", ["auto", "copy"])
def test_relinking_on_ranks(link: str, tmp_path: Path) -> None:
    source = copy_of(PLAIN, tmp_path, "source")
    (source / "notes.txt").write_text("mine")
    found = run_ranks(
        shared_conversions.convert,
        *(str(source), str(tmp_path / "out"), str(tmp_path / "store"), {"link": link}, 1 << 20),
    )
    assert verify_checkpoints(source, tmp_path / "out").is_same
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    nbytes = sum(f.stat().st_size for f in source.glob("*.distcp"))
    assert found[1]["report"]["bytes_linked"] == (nbytes if link == "auto" else 0)


@pytest.mark.parametrize(
    ("how", "errors"),
    [
        (
            "error",
            [("RankError", "Rank 1 failed: ZeroDivisionError: by zero"), ("ZeroDivisionError", "by zero")],
        ),
        ("interrupt", [("RankError", "Rank 1 was interrupted"), ("KeyboardInterrupt", "")]),
        ("source", [("RankError", "Rank 1 failed: There is nothing at"), ("CheckpointNotFoundError", "")]),
        ("options", [("RankError", "not what rank 0 sees"), ("CheckpointMismatchError", "")]),
    ],
)
def test_every_rank_raises_and_rank_0_says_which_failed(
    how: str, errors: list[tuple[str, str]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    sources = [str(PLAIN), str(PLAIN if how != "source" else tmp_path / "nowhere")]
    found = run_ranks(shared_conversions.fail, sources, str(out), str(tmp_path / "store"), how)
    for (kind, text), (found_kind, found_text, _) in zip(errors, found, strict=True):
        assert found_kind == kind
        assert text in found_text
    assert [speaks for _, _, speaks in found] == [True, False]
    # What was interrupted can be gone on with; all else is removed.
    if how == "interrupt":
        options: dict[str, Any] = {"world_size": 3, "resume": True}
        again = run_ranks(
            shared_conversions.convert, str(PLAIN), str(out), str(tmp_path / "two"), options, 1 << 20
        )
        assert again[0]["report"]["bytes_resumed"] > 0
        assert verify_checkpoints(PLAIN, out).is_same
    assert_nothing_left(tmp_path, *(["out", "two"] if how == "interrupt" else []), "store")
