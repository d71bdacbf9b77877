"""The example as a user has it, and what its diff makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

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


def test_one_callback_goes_on_with_the_run(tmp_path: Path) -> None:
    source = SCRIPT.read_text()
    other = changed(source)
    assert len(set(other.splitlines()) - set(source.splitlines())) == 2, "an import and the callback"
    runs = [(source, ["--save", str(tmp_path)]), (other, ["--load", str(tmp_path / "ep0-ba3")])]
    for before, after in run_ranks(run_examples, runs, timeout=400):
        assert len(after) == 6
        assert after == before[6:]


@pytest.mark.slow
def test_it_starts_by_composers_launcher(tmp_path: Path) -> None:
    """As a user starts it; only that FSDP1's half is given a CPU where Composer asks for CUDA."""
    without_cuda = tmp_path / "without_cuda"
    without_cuda.mkdir()
    (without_cuda / "sitecustomize.py").write_text(
        "import torch\ntorch.cuda.current_device = lambda: torch.device('cpu')\n"
    )
    migrated = tmp_path / "migrated.py"
    migrated.write_text(changed(SCRIPT.read_text()))
    paths = () if torch.cuda.is_available() else (without_cuda,)
    before = run_composer(SCRIPT, "--save", "saved", cwd=tmp_path, paths=paths)
    after = run_composer(migrated, "--load", "saved/ep0-ba3", cwd=tmp_path)
    losses, others = (out.split("losses ")[1].splitlines()[0].split() for out in (before, after))
    assert len(losses) == 12
    assert others == losses[6:]
