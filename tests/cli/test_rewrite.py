"""`rewrite`: the diff, what is written, and the exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main
from tests.cli.conftest import CODE


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


TURNED = "from fsdp_migrate import prepare_fully_shard\nmodel = prepare_fully_shard(net)\n"


def test_rewrite_shows_a_diff_and_writes_nothing(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--diff"]):
        assert main(["rewrite", str(scripts), *options]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("--- ")
        assert "+model = prepare_fully_shard(net)\n" in out
        assert "1 file of 2 would change." in err
    assert (scripts / "train.py").read_text() == CODE


def test_check_tells_by_its_exit_code(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", str(scripts), "--check"]) == 1
    assert (scripts / "train.py").read_text() == CODE
    assert "would change: " in capsys.readouterr().out
    assert main(["rewrite", str(scripts), "--write"]) == 0
    assert (scripts / "train.py").read_text().startswith(TURNED)
    assert (scripts / "train.py.fsdp1").read_text() == CODE
    assert "Look for `# fsdp-migrate:` comments" in capsys.readouterr().out
    assert main(["rewrite", str(scripts), "--check"]) == 0


def test_a_file_that_cannot_be_read_fails_after_the_others_are_done(
    scripts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (scripts / "bad.py").write_text("import fsdp\nprint 'x'\n")
    assert main(["rewrite", str(scripts), "--write"]) == 1
    assert (scripts / "train.py").read_text().startswith(TURNED)
    assert "bad.py:2:1: no Python 3" in capsys.readouterr().err


def test_rewrite_writes_one_document(
    scripts: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, document = run_json("rewrite", scripts)
    assert (code, document["num_files"], document["num_changed"], document["written"]) == (0, 2, 1, False)
    assert "+model = prepare_fully_shard(net)" in document["files"][0]["diff"]


def test_modes_exclude_each_other(scripts: Path) -> None:
    assert main(["rewrite", str(scripts), "--check", "--write"]) == 2
