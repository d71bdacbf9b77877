"""Processes that scan end with the command that started them, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.time_limit import is_gone


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.any_torch, pytest.mark.slow]

MODULE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nimport torch\n" + "".join(
    f"def train_{number}(net, rows):\n    model = FSDP(net)\n    return model.state_dict()\n"
    for number in range(30)
)


@pytest.fixture
def scan(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Scan many files, in a group of processes of its own, as a terminal and ``timeout`` make one."""
    for number in range(200):
        (tmp_path / f"train_{number:04}.py").write_text(MODULE)
    command = [sys.executable, "-m", "fsdp_migrate", "scan", str(tmp_path)]
    with subprocess.Popen(
        command, start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def _working(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until two of its processes have worked for a second."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        children: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
        if sum(sum(each.cpu_times()[:2]) > 1 for each in children) >= 2:
            return children
        time.sleep(0.1)
    pytest.fail("no process was started")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_to_all_of_them_ends_the_command(
    scan: subprocess.Popen[str], number: int, code: int
) -> None:
    children = _working(scan)
    os.killpg(scan.pid, number)
    _, said = scan.communicate(timeout=60)
    assert scan.returncode == code
    assert "Traceback" not in said
    assert all(is_gone(each.pid) for each in children)


def test_they_end_with_a_command_that_is_killed(scan: subprocess.Popen[str]) -> None:
    children = _working(scan)
    scan.kill()
    scan.wait()
    assert all(is_gone(each.pid) for each in children)
