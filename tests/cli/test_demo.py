"""The demo, as a newcomer runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch

from fsdp_migrate import demo, verify_checkpoints
from fsdp_migrate.cli import main
from fsdp_migrate.demo.compare import compare_states
from fsdp_migrate.errors import ConfigError, OutputExistsError
from tests.report.reading import check_page
from tests.report.test_markdown import rendered
from tests.scripts import launch_forked


if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = [sys.executable, "-m", "fsdp_migrate", "demo"]


@contextlib.contextmanager
def start(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a demo, and kill what is left of it: after a failure it would be waited for, however long."""
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                parent = psutil.Process(process.pid)
                for each in (*parent.children(recursive=True), parent):
                    with contextlib.suppress(psutil.Error):
                        each.kill()


@pytest.mark.any_torch
def test_the_run_goes_on_under_fsdp2(tmp_path: Path) -> None:
    """The one for people, that keeps its files; the one for machines is below."""
    kept, page, markdown = tmp_path / "kept", tmp_path / "report.html", tmp_path / "report.md"
    with start("--dir", kept, "--html", page, "--markdown", markdown) as shown:
        text, said = finish(shown)
    assert "FSDP1" not in text.partition("step")[0]
    assert said.strip()
    assert "identical" not in said
    text, *named = text.rstrip().rsplit("\n", 2)
    assert named == [f"The report is in {page}", f"The report is in {markdown}"]
    assert text.split()[-1] == "identical"
    root = check_page(page.read_text())
    assert len(root.find("polyline")) == 3
    assert len(root.find("table")[0].find("tr")) == 11
    for form in (root, rendered(markdown.read_text())):
        assert "Identical: after step 5 the run went on under FSDP2. No bit differs." in form.whole_text
        assert "From the checkpoint on the three lines are one" in form.whole_text
    for word in (
        "FSDP1",
        "FSDP2",
        "relink",
        "_orig_mod.",
        "sharding_strategy",
        "fsdp-migrate convert",
        "fsdp-migrate scan .",
    ):
        assert word in text
    assert "Warning" not in text
    assert verify_checkpoints(kept / "fsdp1-checkpoint", kept / "fsdp2-checkpoint").is_same


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, shown = process.communicate(timeout=400)
    assert process.returncode == 0, shown
    return out, shown


def check_numbers(document: dict[str, Any], *, world_size: int, num_steps: int) -> None:
    assert (document["schema_version"], document["command"]) == (1, "demo")
    assert document["identical"] is True
    assert (document["num_steps"], document["world_size"]) == (num_steps, world_size)
    steps = [str(step) for step in range(1, num_steps + 1)]
    losses = document["losses"]
    assert list(losses["fsdp1"]) == steps
    assert list(losses["fsdp2"]) == steps[document["saved_at"] :]
    assert losses["fsdp2"].items() <= losses["fsdp1"].items()
    assert losses["loaded"] == losses["fsdp2"]
    for run in (document, document["loaded"]):
        for part in ("loss", "parameters", "optimizer"):
            assert run[part]["num_values"] > 0
            assert run[part]["num_different"] == 0
            assert run[part]["largest_difference"] == 0
    assert document["conversion"]["action"] == "relink"
    assert document["verification"]["is_same"] is True
    assert {finding["subject"] for finding in document["findings"]} >= {"sharding_strategy"}
    assert document["folder"] is None


@pytest.mark.slow
def test_two_replicas_of_two_shards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "launch_ranks", launch_forked)
    assert main(["demo", "--world-size", "4", "--steps", "3", "--json"]) == 0
    check_numbers(json.loads(capsys.readouterr().out), world_size=4, num_steps=3)


@pytest.mark.any_torch
def test_any_difference_shows_and_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if FSDP2 had gone on with two numbers a little off."""
    true_load = demo._load

    def load(path: Path) -> dict[str, Any]:
        state = true_load(path)
        if path.name == "loaded-final.pt":
            state["model"]["norm.bias"].view(-1)[0] += 0.125
        if path.name == "fsdp2-final.pt":
            state["model"]["head.weight"].view(-1)[0] += 0.25
            state["optimizer"]["state"]["tokens.weight"]["exp_avg"].view(-1)[0] += 0.5
        return state

    monkeypatch.setattr(demo, "_load", load)
    monkeypatch.setattr(demo, "launch_ranks", launch_forked)
    page = tmp_path / "report.html"
    assert main(["demo", "--steps", "2", "--html", str(page)]) == 1
    shown = capsys.readouterr().out
    assert "identical" not in shown
    rows = {re.split(r"\s{2,}", line.strip())[0]: line for line in shown.splitlines()}
    assert "every bit is the same" in rows["converted: losses"]
    assert "0.25, 1 differ, first head.weight" in rows["converted: parameters"]
    assert "0.125, 1 differ, first norm.bias" in rows["loaded: parameters"]
    assert "0.5, 1 differ, first" in rows["converted: optimizer state"]
    assert "state.tokens.weight.exp_avg" in shown
    root = check_page(page.read_text())
    assert "Different: this is a bug" in root.find("h1")[0].whole_text
    assert "state.tokens.weight.exp_avg" in {each.text for each in root.find("code")}


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OutputExistsError, match="not an empty folder"):
        demo.run_demo(tmp_path)
    assert main(["demo", "--dir", str(tmp_path)]) == 1
    assert "not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("wrong", [{"world_size": 0}, {"num_steps": 1}])
def test_numbers_that_are_too_small_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        demo.run_demo(**wrong)  # type: ignore[arg-type]


FAILING = """
import signal, sys
from pathlib import Path
from fsdp_migrate.launch import launch_ranks
from fsdp_migrate.errors import RankError

handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
arguments = ["no-such-phase", sys.argv[1], "2"]
try:
    launch_ranks("fsdp_migrate.demo.worker", arguments, world_size=2, logs=Path(sys.argv[1], "logs"))
except RankError as error:
    print(error)
assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
"""


@pytest.mark.any_torch
def test_a_process_that_fails_is_named_with_its_traceback(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FAILING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=400,
    )
    # Which rank fails first is chance; the launcher ends the other.
    assert re.search(r"^rank [01] \(exit code 1\):$", result.stdout, re.MULTILINE)
    assert "KeyError: 'no-such-phase'" in result.stdout
    # torch itself warns where the name of the machine does not resolve.
    said = [line for line in result.stderr.splitlines() if "[c10d]" not in line]
    assert not said, "the launcher's own report is not to be shown as well"


@pytest.mark.any_torch
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_processes(tmp_path: Path, number: int, code: int) -> None:
    with start("--dir", tmp_path / "kept", "--steps", 100_000) as process:
        workers = wait_for_workers(process.pid)
        assert not any(catches_interrupts(worker.pid) for worker in workers)
        os.kill(process.pid, number)
        shown = process.communicate(timeout=400)[1]
    assert process.returncode == code, shown
    assert "Traceback" not in shown
    gone, alive = psutil.wait_procs(workers, timeout=20)
    assert (len(gone), alive) == (2, [])


def is_worker(process: psutil.Process) -> bool:
    try:
        return "fsdp_migrate.demo.worker" in process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False


def wait_for_workers(pid: int) -> list[psutil.Process]:
    """Return the demo's two processes once both import torch: by then Python's handlers are gone."""
    parent = psutil.Process(pid)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        workers = [child for child in parent.children(recursive=True) if is_worker(child)]
        if len(workers) == 2 and all(map(imports_torch, workers)):
            return workers
        time.sleep(0.05)
    raise AssertionError("the demo started no processes")


def imports_torch(process: psutil.Process) -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def catches_interrupts(pid: int) -> bool:
    """Whether SIGINT runs Python's handler there, of which a process that waits in C++ hears late."""
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert caught is not None
    return bool(int(caught[1], 16) >> (signal.SIGINT - 1) & 1)


@pytest.mark.parametrize(
    ("first", "second", "different", "gap"),
    [
        ({"a": torch.ones(2)}, {"a": torch.ones(2)}, 0, 0.0),
        ({"a": torch.tensor([float("nan")])}, {"a": torch.tensor([float("nan")])}, 0, 0.0),
        ({"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])}, 1, 0.0),
        ({"a": torch.ones(2)}, {"a": torch.ones(2, dtype=torch.float64)}, 1, 0.0),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, 1, float("inf")),
        ({"a": torch.ones(2)}, {}, 1, float("inf")),
        ({"a": [{"lr": 0.5}]}, {"a": [{"lr": 0.25}]}, 1, 0.25),
        ({"a": {"b": "x"}}, {"a": {"b": "y"}}, 1, float("inf")),
        ({"a": 1}, {"a": 1.0}, 1, 0.0),
    ],
)
def test_states_are_compared_bit_for_bit(first: object, second: object, different: int, gap: float) -> None:
    comparison = compare_states(first, second)
    assert comparison.num_different == different
    assert comparison.largest_difference == gap
    assert (comparison.first_different is None) == (not different)
