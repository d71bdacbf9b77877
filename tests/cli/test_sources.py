"""The commands ``scan`` and ``rewrite``."""

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


CODE = "from torch.distributed.fsdp import FullyShardedDataParallel as F\nmodel = F(net)\nmodel.apply(f)\n"
TURNED = "from fsdp_migrate import prepare_fully_shard\nmodel = prepare_fully_shard(net)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(CODE)
    (tmp_path / "other.py").write_text("x = 1\n")
    return tmp_path


def test_scan_shows_each_use_and_a_summary(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(folder), "--all"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert f"{folder / 'train.py'}:2:9: FM301 rewritten F(net) -> prepare_fully_shard(net, {{...}})" in out
    assert "FM322 commented" in out
    assert "3 uses in 1 file of 2." in out


def test_scan_writes_one_document(folder: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]) -> None:
    code, document = run_json("scan", folder)
    assert code == 0
    assert document["num_files"] == 2
    assert document["totals"] == {"rewritten": 2, "kept": 0, "commented": 1, "mentioned": 0}
    assert [use["code"] for use in document["files"][0]["uses"]] == ["FM329", "FM301", "FM322"]


def test_scan_without_fsdp1_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", str(folder / "other.py")]) == 0
    assert "No FSDP1 in 1 file." in capsys.readouterr().out


@pytest.mark.parametrize("command", ["scan", "rewrite"])
def test_a_missing_path_is_a_failure(
    folder: Path, command: str, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, document = run_json(command, folder / "none.py")
    assert code == 1
    assert document["error"]["type"] == "SourceError"
    assert document["error"]["path"] == str(folder / "none.py")


def test_rewrite_shows_a_diff_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in ([], ["--diff"]):
        assert main(["rewrite", str(folder), *options]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("--- ")
        assert "+model = prepare_fully_shard(net)\n" in out
        assert "1 file of 2 would change." in err
    assert (folder / "train.py").read_text() == CODE


def test_check_tells_by_its_exit_code(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rewrite", str(folder), "--check"]) == 1
    assert (folder / "train.py").read_text() == CODE
    assert "would change: " in capsys.readouterr().out
    assert main(["rewrite", str(folder), "--write"]) == 0
    assert (folder / "train.py").read_text().startswith(TURNED)
    assert (folder / "train.py.fsdp1").read_text() == CODE
    assert "Look for `# fsdp-migrate:` comments" in capsys.readouterr().out
    assert main(["rewrite", str(folder), "--check"]) == 0


def test_a_file_that_cannot_be_read_fails_after_the_others_are_done(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").write_text("import fsdp\nprint 'x'\n")
    assert main(["rewrite", str(folder), "--write"]) == 1
    assert (folder / "train.py").read_text().startswith(TURNED)
    assert "bad.py:2:1: no Python 3" in capsys.readouterr().err


def test_rewrite_writes_one_document(
    folder: Path, run_json: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, document = run_json("rewrite", folder)
    assert (code, document["num_files"], document["num_changed"], document["written"]) == (0, 2, 1, False)
    assert "+model = prepare_fully_shard(net)" in document["files"][0]["diff"]


def test_modes_exclude_each_other(folder: Path) -> None:
    assert main(["rewrite", str(folder), "--check", "--write"]) == 2


def test_scanning_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys\nfrom fsdp_migrate.cli import main\n"
        f"assert main(['scan', {str(folder)!r}]) == 0\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=400)
