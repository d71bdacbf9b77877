"""Times, speeds, memory and progress bars that two runs print: no differences, and nothing else is lost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.parity import script_runs
from fsdp_migrate.parity.of_each_run import name_alike, without_bars, without_moments
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
        ("wps 1200, loss 0.5", "wps 1300, loss 0.5"),
        ("{'total_flos': 12.0, 'train_loss': 0.5}", "{'total_flos': 24.0, 'train_loss': 0.5}"),
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


@pytest.mark.parametrize(
    "name",
    [
        "20261128185356-GPT-B",
        "run_2026-11-28_18-53-56",
        "2026-11-28T18:53:56.123456",
        "log_2026-11-28.txt",
        "18-53-56",
        "Nov28_18-53-56_host",
        "exp-1764356036",
        "1764356036.25.log",
        "events.out.tfevents.1764356036.host.5432.0",
        "run-20261128_185356-a1b2c3d4",
    ],
)
def test_names_by_the_moment_of_a_run(name: str) -> None:
    assert without_moments(name) != name


@pytest.mark.parametrize(
    "name",
    [
        *("step-20000", "checkpoint-1000", "epoch_12", "model-00001-of-00002.safetensors", "v2.0.1"),
        *("seed1234567", "20480", "ckpt_18-53", "__0_0.distcp", "2048x2048", "loss=0.1234567890", "1700000"),
    ],
)
def test_names_by_what_a_run_counts(name: str) -> None:
    """A checkpoint of another step is another one, and is named as written by one run alone."""
    assert without_moments(name) == name


def test_what_is_named_by_its_moment_is_compared_and_what_is_not_stays(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for folder, moment in ((mine, "2026-11-28_18-53-56"), (other, "2026-11-28_18-55-01")):
        (folder / f"run_{moment}" / "step-2").mkdir(parents=True)
        (folder / f"run_{moment}" / "step-2" / f"log_{moment}.txt").write_text(moment)
    (other / "step-3").mkdir()
    (mine / "20261128-a").mkdir()
    (other / "20261129-a").mkdir()
    (other / "20261130-a").mkdir()  # which of two it is nothing tells
    renamed = name_alike(mine, other)
    assert renamed == {
        "run_2026-11-28_18-55-01": "run_2026-11-28_18-53-56",
        "log_2026-11-28_18-55-01.txt": "log_2026-11-28_18-53-56.txt",
    }
    left = {path.relative_to(other).as_posix() for path in other.rglob("*")}
    inside = "run_2026-11-28_18-53-56/step-2"
    same = {"run_2026-11-28_18-53-56", inside, f"{inside}/log_2026-11-28_18-53-56.txt"}
    assert left == {*same, "step-3", "20261129-a", "20261130-a"}
    assert (mine / "20261128-a").is_dir()


@pytest.mark.slow
def test_folders_named_by_the_clock_are_no_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed of them is none either; what differs in a file of them is."""
    script = (
        "import sys, time, pathlib\nout = pathlib.Path(sys.argv[1]) / time.strftime('%Y%m%d%H%M%S-B')\n"
        "out.mkdir()\nprint('to', out)\n(out / 'a.json').write_text('{{\"loss\": {}}}')\ntime.sleep(1)\n"
    )
    for folder, loss in (("before", 1), ("after", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(script.format(loss))
    for folder, is_said in (("after", False), ("other", True)):
        main(["compare", str(tmp_path / "before"), str(tmp_path / folder), "--", "python", "train.py", "OUT"])
        said = capsys.readouterr().out
        assert "only" not in said
        assert ("a.json" in said) is is_said
