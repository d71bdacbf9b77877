from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from tests import ranks
from tests.rank_bodies import harness
from tests.ranks import ROOT, RanksFailedError, run_ranks
from tests.time_limit import is_gone


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_rank_returns_its_result(world_size: int) -> None:
    results = run_ranks(harness.sum_of_ranks, 10, world_size=world_size)
    assert [result["rank"] for result in results] == list(range(world_size))
    expected = float(sum(10 + rank for rank in range(world_size)))
    for number, result in enumerate(results):
        assert result["total"] == torch.tensor([expected])
        assert result["world_size"] == world_size
        assert result["threads"] == 1
        rank, size = str(number), str(world_size)
        assert result["env"] == {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
        }


def test_tensors_travel_by_value() -> None:
    value = torch.arange(6.0)
    first, second = run_ranks(harness.times_two, value)
    assert torch.equal(first, value * 2)
    assert torch.equal(second, value * 2)
    assert torch.equal(value, torch.arange(6.0))


def test_bodies_are_preloaded() -> None:
    assert run_ranks(harness.preloaded) == [True, True]
    assert all("tests.sharding.consensus_bodies" in found for found in run_ranks(harness.bodies_of_one_test))


def test_warnings_are_no_errors_in_ranks() -> None:
    assert run_ranks(harness.warn) == ["went on", "went on"]


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_that_raises_is_named_first_with_its_traceback(culprit: int) -> None:
    with pytest.raises(RanksFailedError, match=f"rank {culprit} is broken") as caught:
        run_ranks(harness.raise_on, culprit)
    assert f"ValueError: rank {culprit} is broken" in caught.value.failures[culprit]
    assert "said before the failure" in caught.value.failures[culprit]
    assert str(caught.value).split("---- rank ")[1].startswith(str(culprit))


def test_every_failing_rank_is_named() -> None:
    with pytest.raises(RanksFailedError, match="2 of 2 ranks failed: 0, 1") as caught:
        run_ranks(harness.raise_everywhere)
    assert sorted(caught.value.failures) == [0, 1]
    for rank in (0, 1):
        assert f"KeyError: 'from {rank}'" in caught.value.failures[rank]


def test_a_rank_that_dies_is_named_with_its_exit_code() -> None:
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(harness.exit_on, 1, 7)
    assert "died with exit code 7" in caught.value.failures[1]


@pytest.mark.parametrize("lock_held", [False, True])
def test_a_rank_that_hangs_is_named_with_its_stack(lock_held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "GRACE", 1.0)
    with pytest.raises(RanksFailedError) as caught:
        run_ranks(harness.hang_on, 1, lock_held, timeout=10)
    assert "did not finish within 10 s" in caught.value.failures[1]
    assert "hang_on" in caught.value.failures[1]


def test_a_rank_whose_parent_is_gone_ends_by_itself(tmp_path: Path) -> None:
    """As when the system kills pytest for its memory: nobody reads what the rank has to say, or ends it."""
    code = f"from tests import ranks; from tests.rank_bodies import harness; ranks.GRACE = 0.5; \
        ranks.run_ranks(harness.tell_and_hang, {str(tmp_path)!r}, timeout=10)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        while len(pids := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            assert parent.poll() is None
            time.sleep(0.05)
        parent.kill()
    assert [pid for pid in pids if not is_gone(pid)] == []


def test_the_harness_works_after_failures() -> None:
    assert len(run_ranks(harness.sum_of_ranks, 0)) == 2


def test_ranks_that_share_a_gpu_get_what_collectives_give() -> None:
    """Here in host memory; averages are those of NCCL, which gloo has not."""
    found = run_ranks(harness.collectives, backend="shared_gpu")
    first, second = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]
    for rank, given in enumerate(found):
        assert given == {
            "sum": [10.0, 12.0, 14.0, 16.0],
            "mean": [5.0, 6.0, 7.0, 8.0],
            "broadcast": second,
            "all-gather": first + second,
            "reduce-scatter": [[5.0, 6.0], [7.0, 8.0]][rank],
            "scatter": [first, [1.0, 2.0, 3.0, 4.0]][rank],
            "DTensor": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "objects": [0, 1],
        }


def test_what_a_killed_process_leaves_goes_with_pytests_folder(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    code = "import os, tempfile; print(tempfile.mkdtemp(), flush=True); os.kill(os.getpid(), 9)"
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    left = [started.stdout.strip(), *run_ranks(harness.leaves_a_folder), tempfile.mkdtemp()]
    for each in map(Path, left):
        assert each.is_dir()
        assert each.is_relative_to(tmp_path_factory.getbasetemp())


def test_a_socket_fits_into_the_folder_of_temporary_files() -> None:
    """The queues of torch's and Python's processes have one; its path may be 107 characters long."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(tempfile.mkdtemp(prefix="torch-shm-dir-"), "listener-12345678")))


def test_where_a_socket_would_not_fit_temporary_files_stay_where_they_were(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    (tmp_path / "test_one.py").write_text(
        "import tempfile\ndef test_one():\n    print('made', tempfile.gettempdir())"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "tests.conftest", f"--basetemp={deep}"]
    done = subprocess.run(
        [*command, str(tmp_path / "test_one.py")], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert f"made {tempfile.gettempdir()}\n" in done.stdout, done.stdout + done.stderr
