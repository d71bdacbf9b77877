"""Complete training scripts print the same losses before and after they are rewritten."""

from __future__ import annotations

import ast
import functools
import re
import tempfile
from pathlib import Path

import pytest

from fsdp_migrate.source import rewrite_source, scan_source
from tests.ranks import ROOT
from tests.scripts import run_script


SCRIPTS = {
    path.name.removesuffix(".py.txt"): path.read_text()
    for path in sorted((ROOT / "tests" / "source" / "scripts").glob("*.py.txt"))
}
CLIPPED = {"custom_trainer"}
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
RUNNER = "tests/rank_scripts/one_after_the_other.py"


@functools.cache
def printed(rewritten: bool, names: tuple[str, ...] = tuple(SCRIPTS), num_ranks: int = 2) -> dict[str, str]:
    """Return what each script prints, before or after rewriting; all of them run on the same ranks."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{name}.py") for name in names]
        for file, name in zip(files, names, strict=True):
            file.write_text(rewrite_source(SCRIPTS[name]) if rewritten else SCRIPTS[name])
        output = run_script(RUNNER, *files, num_ranks=num_ranks)
    parts = re.split(r"^=== (\w+)\n", output, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_there_are_scripts_in_six_styles() -> None:
    assert len(SCRIPTS) >= 6


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_rewritten_whole(name: str) -> None:
    after = rewrite_source(SCRIPTS[name])
    ast.parse(after)
    assert rewrite_source(after) == after
    assert [use.action for use in scan_source(after) if use.rule == "constructor"] == []
    assert "FullyShardedDataParallel(" not in after
    assert "FSDP(" not in after


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_the_same_before_and_after(name: str) -> None:
    before, after = printed(rewritten=False)[name], printed(rewritten=True)[name]
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (before, after)]
    assert len(numbers[0]) >= 4
    assert NUMBER.sub("", after) == NUMBER.sub("", before)
    if name in CLIPPED:  # norms are summed in another order, so the last bits may differ
        assert numbers[1] == pytest.approx(numbers[0], rel=1e-5, abs=1e-6)
    else:
        assert numbers[1] == numbers[0]


@pytest.mark.slow
def test_hybrid_sharding_at_two_by_two_ranks() -> None:
    before, after = (printed(rewritten, ("hsdp",), num_ranks=4) for rewritten in (False, True))
    assert after == before
