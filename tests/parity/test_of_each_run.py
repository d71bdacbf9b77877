"""Times, speeds, memory and progress bars that two runs print: no differences, and nothing else is lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.parity import script_runs
from fsdp_migrate.parity.of_each_run import without_bars
from fsdp_migrate.parity.printed_lines import Run, printed_lines, printed_order


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def printed(folder: Path, one: str, other: str) -> tuple[int, int, int]:
    """Return how many lines differ in numbers, and how many each run printed alone."""
    pairs, alone = printed_lines(*(Run(folder, tuple(each.splitlines()), folder) for each in (one, other)))
    return len(pairs), len(alone[0]), len(alone[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'train_runtime': 12.3, 'train_loss': 0.5}", "{'train_runtime': 9.25, 'train_loss': 0.5}"),
        ("{'train_samples_per_second': '1.2', 'epoch': 1}", "{'train_samples_per_second': '3', 'epoch': 1}"),
        ("loss 0.5 (12.3 ms)", "loss 0.5 (8 ms)"),
        ("step 3 took 2.5s, 14.1 samples/s", "step 3 took 3s, 12 samples/s"),
        ("tokens/sec: 1200 | loss 0.5", "tokens/sec: 1500 | loss 0.5"),
        ("peak memory 1.25 GB", "peak memory 1.5 GB"),
        ("step time: 1.5 2.5", "step time: 1.25 2.25"),
    ],
)
def test_numbers_of_time_speed_and_memory_are_no_differences(one: str, other: str, tmp_path: Path) -> None:
    assert printed(tmp_path, one, other) == (0, 0, 0)
    assert printed(tmp_path, f"{one}\n{one}", other) == (0, 1, 0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("{'train_runtime': 12.3, 'train_loss': 0.5}", "{'train_runtime': 12.3, 'train_loss': 0.25}"),
        ("time 2.5 s, loss 0.5", "time 2.5 s, loss 0.25"),
        ("memory_bank_loss 0.5", "memory_bank_loss 0.25"),
        ("training time is over, so stop at step 40", "training time is over, so stop at step 20"),
        ("124 parameters", "62 parameters"),
        ("step 3 of 8", "step 4 of 8"),
    ],
)
def test_numbers_of_the_training_beside_them_are(one: str, other: str, tmp_path: Path) -> None:
    assert printed(tmp_path, one, other) == (1, 0, 0)


def test_a_loss_is_shown_first_though_a_time_stands_beside_it() -> None:
    """A line that names a time was shown last, whatever else was in it."""
    loss = ("loss 0.5 took 3 s", "loss 0.4 took 4 s")
    assert printed_order(loss) < printed_order(("rows 8.0", "rows 7.9"))
    assert printed_order(("rows 8.0", "rows 7.9")) < printed_order(("time, at last: 8", "time, at last: 1"))


BAR = " 75%|███████▌  | 3/4 [00:02<00:00,  1.18it/s]"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (BAR, ""),
        (f"Epoch 0: {BAR}", ""),
        ("Map (num_proc=2): 100%|##########| 12/12 [00:00<00:00, 812.11 examples/s]", ""),
        ("Epoch 1:  50%|█████     | 1/2 [00:00<00:00, 9.7it/s, v_num=0, train_loss=2.301]", ""),
        ("  0%|          | 0/4 [00:00<?, ?it/s]", ""),
        ("5it [00:01,  4.02it/s]", ""),
        ("12.5MB [00:01, 9.2MB/s]", ""),
        ("Epoch 0/1 ━━━━━━━━━━━━━━━━ 4/4 0:00:00 • 0:00:00 20.10it/s v_num: 0", ""),
        ("\x1b[A\x1b[2K", ""),
        (BAR + "{'loss': 4.1}", "{'loss': 4.1}"),
        ("{'loss': 4.1}" + BAR, "{'loss': 4.1}"),
        ("loss 4.1, acc 75%", "loss 4.1, acc 75%"),
        ("| step | 3/4 |", "| step | 3/4 |"),
        ("3 batches [0, 4]", "3 batches [0, 4]"),
    ],
)
def test_bars_are_left_out_and_what_stands_beside_them_is_not(line: str, left: str) -> None:
    assert without_bars(line) == left


@pytest.mark.parametrize("bar", ["", BAR])
def test_a_line_that_is_a_long_list_is_looked_at_in_time(bar: str) -> None:
    """Each of its places was the begin of what may stand before a bar: minutes for 100 KB."""
    line = "step 1: " + "0.123, a: " * 30_000
    left = without_bars(f"{line}{bar}")
    assert line.startswith(left)
    assert len(left) > len(line) - 100  # what stands before a bar goes with it


def test_bars_of_one_run_are_not_printed_by_it_only(tmp_path: Path) -> None:
    """They were listed: each redraws when it comes to it."""
    assert printed(tmp_path, f"{BAR}\rloss 0.5\r{BAR}\n\x1b[A", "loss 0.5") == (0, 0, 0)


@pytest.mark.slow
def test_how_far_a_run_is_is_said_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison of minutes said nothing between its two runs."""
    (tmp_path / "train.py").write_text(
        "import time\nprint('begins', flush=True)\ntime.sleep(1)\nprint('ends')\n"
    )
    given = ["compare", str(tmp_path), str(tmp_path), "--", sys.executable, "train.py"]
    assert main(given) == 1
    assert "steps seen" not in capsys.readouterr().err
    monkeypatch.setattr(script_runs, "SECONDS_BETWEEN", 0.1)
    assert main(given) == 1
    shown = capsys.readouterr()
    assert " s, 0 steps seen\n" in shown.err
    assert "Printed" not in shown.out
