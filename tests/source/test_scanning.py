"""What a scan counts, in one process or several."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source import rewrite_paths, scan_paths, scan_source
from tests.source.files import write


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.slow
def test_several_processes_find_what_one_does(tmp_path: Path) -> None:
    write(tmp_path, *(f"m{i}.py" for i in range(6)))
    write(tmp_path, "bad.py", text="fsdp (")
    assert scan_paths([tmp_path], num_processes=2) == scan_paths([tmp_path], num_processes=1)


def test_a_scan_counts_by_rule_and_says_where(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    report = scan_paths([tmp_path])
    assert report.by_rule["constructor"] == {
        "rewritten": 1,
        "kept": 0,
        "commented": 0,
        "mentioned": 0,
        "unclear": 0,
    }
    use = next(use for use in report.uses if use.rule == "constructor")
    assert use.place == f"{tmp_path / 'a.py'}:2:9"
    document = report.as_dict()
    assert document["totals"]["rewritten"] == 2
    assert document["files"][0]["uses"][1]["fidelity"] == "equivalent"


@pytest.mark.parametrize("code", ["", "\n", "# nothing", "x = 1\n", "\f\n", "\ufeff"])
def test_sources_without_fsdp1_have_no_uses(code: str) -> None:
    assert scan_source(code) == []


@pytest.mark.parametrize("run", [scan_paths, rewrite_paths])
@pytest.mark.parametrize(("before", "meanwhile"), [(700, 200_000), (900_000, 900_000), (0, 0)])
def test_garbage_is_collected_seldom_meanwhile(
    tmp_path: Path, run: Callable[[Iterator[Path]], object], before: int, meanwhile: int
) -> None:
    seen: list[int] = []

    def paths(name: str) -> Iterator[Path]:
        seen.append(gc.get_threshold()[0])
        yield tmp_path / name

    (tmp_path / "train.py").write_text("x = 1\n")
    kept = gc.get_threshold()
    try:
        gc.set_threshold(before)
        run(paths("train.py"))
        with pytest.raises(SourceError):
            run(paths("nowhere.py"))
        after = gc.get_threshold()[0]
    finally:
        gc.set_threshold(*kept)
    assert (seen, after) == ([meanwhile, meanwhile], before)
