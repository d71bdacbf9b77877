"""The example as a user has it, and what its diff makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rank_bodies.composer_training import run_examples
from tests.ranks import ROOT, run_ranks
from tests.scripts import run_composer


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.composer

SCRIPT, DIFF = (ROOT / "examples" / f"composer_finetune.{kind}" for kind in ("py", "diff"))


def changed(source: str) -> str:
    """Apply the diff: each hunk is a few lines, which stand once in the script."""
    _, *hunks = DIFF.read_text().split("@@\n")
    for hunk in hunks:
        lines = hunk.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] != "+")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] != "-")
        assert source.count(before) == 1, before
        source = source.replace(before, after)
    return source


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[list[float]]]]:
    """A checkpoint of FSDP1, and the losses of each rank: under FSDP1, and from there under FSDP2."""
    saved = tmp_path_factory.mktemp("saved")
    source = SCRIPT.read_text()
    scripts = [(source, ["--save", str(saved)]), (changed(source), ["--load", str(saved / "ep0-ba3")])]
    return saved / "ep0-ba3", run_ranks(run_examples, scripts, timeout=400)


def test_one_callback_goes_on_with_the_run(runs: tuple[Path, list[list[list[float]]]]) -> None:
    source = SCRIPT.read_text()
    added = set(changed(source).splitlines()) - set(source.splitlines())
    assert len(added) == 2, "an import and the callback"
    for before, after in runs[1]:
        assert len(after) == 6
        assert after == before[6:]


@pytest.mark.slow
def test_it_starts_by_composers_launcher(tmp_path: Path, runs: tuple[Path, list[list[list[float]]]]) -> None:
    """As a user starts it."""
    migrated = tmp_path / "migrated.py"
    migrated.write_text(changed(SCRIPT.read_text()))
    checkpoint, ((before, _), _) = runs
    out = run_composer(migrated, "--load", checkpoint, cwd=tmp_path)
    losses = [float(loss) for loss in out.split("losses ")[1].splitlines()[0].split()]
    assert losses == before[6:]
