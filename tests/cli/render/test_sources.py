"""``scan`` of Python files: each use, a summary, one document."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fsdp_migrate.cli import main


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_scan_shows_each_use_and_a_summary(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(scripts), "--all"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"{scripts / 'train.py'}:2:9: FM301 rewritten F(net) -> prepare_fully_shard(net, {{...}})" in out
    assert "FM322 commented" in out
    assert "3 uses in 1 file of 2." in out


def test_the_line_of_a_place_is_shown_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "\n" * 98
    (tmp_path / "a.py").write_text(
        f"from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n{lines}FSDP(net)._handles\n"
    )
    assert main(["scan", str(tmp_path)]) == 0
    assert "a.py:100:1" in capsys.readouterr().out


def test_scan_writes_one_document(scripts: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = run_json("scan", scripts)
    assert code == 0
    assert document["num_files"] == 2
    assert document["totals"] == {"rewritten": 2, "kept": 0, "commented": 1, "mentioned": 0, "unclear": 0}
    assert [use["code"] for use in document["files"][0]["uses"]] == ["FM329", "FM301", "FM322"]


def test_scan_without_fsdp1_says_so(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(scripts / "other.py")]) == 0
    assert "No FSDP1 in 1 file." in capsys.readouterr().out


def test_scan_of_what_cannot_be_read_says_nothing_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.py").write_text("import fsdp\nx = " + "(" * 5000 + ")" * 5000)
    assert main(["scan", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "No FSDP1" not in said
    assert "Nothing is known of 1 file." in said
    (tmp_path / "plain.py").write_text("x = 1\n")
    assert main(["scan", str(tmp_path)]) == 0
    assert "No FSDP1 in 1 file." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["scan", "rewrite"])
def test_a_missing_path_is_a_failure(
    scripts: Path, command: str, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, document = run_json(command, scripts / "none.py")
    assert code == 1
    assert document["error"]["type"] == "SourceError"
    assert document["error"]["path"] == str(scripts / "none.py")


def test_scanning_loads_no_torch(scripts: Path) -> None:
    code = (
        "import sys\nfrom fsdp_migrate.cli import main\n"
        f"assert main(['scan', {str(scripts)!r}]) == 0\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=400)


COUNTS = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "modules = {'actor': FSDP(a), 'critic': FSDP(b)}\n"
    "print(sum(p.COUNT for m in modules.values() for p in m.parameters()))\n"
)


@pytest.mark.parametrize(("counted", "is_shown"), [("numel()", True), ("to_local().numel()", False)])
def test_a_count_that_comes_out_otherwise_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], counted: str, *, is_shown: bool
) -> None:
    (tmp_path / "train.py").write_text(COUNTS.replace("COUNT", counted))
    main(["scan", str(tmp_path)])
    said = capsys.readouterr().out
    assert ("Other numbers than before: 1 place" in said) is is_shown
    assert ("train.py:3:11: FM334 p.numel()" in said) is is_shown
