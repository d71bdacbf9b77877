"""Commands that write pages, and a folder with names that attack them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fsdp_migrate.cli import main
from tests.ranks import ROOT
from tests.report.reading import check_page
from tests.report.test_markdown import ALLOWED, every, linked_by_github, rendered


if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.report.reading import Element

    Capture = pytest.CaptureFixture[str]


EVIL = "<img src=x onerror=alert(1)>\u202e|`@octocat"


CODE = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as F\nmodel = F(net)\nmodel.apply('<b>')\n"
)


def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put something for each command into a folder, under names that would do harm in a page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "fsdp.yaml").write_text("backward_prefetch: BACKWARD_POST\n")
    for name, value in (("one.pt", 1.0), ("other.pt", 2.0)):
        torch.save({"model": {EVIL: torch.full((2, 2), value)}}, tmp_path / name)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / f"{EVIL.replace('/', '')}.py").write_text(CODE)
    (tmp_path / "source" / "copy.py").write_text("import copy\naverage = copy.deepcopy(model)\n")
    (tmp_path / "source" / "accelerate.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2\n"
    )
    (tmp_path / "source" / "requirements.txt").write_text("torch==2.1.2\n")
    return tmp_path


def write(folder: Path, *command: str) -> tuple[int, Element, Element]:
    """Run a command that writes both; return its exit code, the page, and the Markdown as it is read."""
    page, text = folder / "report.html", folder / "report.md"
    code = main([*command, "--html", str(page), "--markdown", str(text)])
    markdown = rendered(text.read_text())
    assert {each.tag for each in every(markdown)} <= ALLOWED
    assert linked_by_github(markdown) == []
    return code, check_page(page.read_text()), markdown


PLAN = ("plan", "--model", "tests.models:tied_net", "--world-size", "2", "--config", "fsdp.yaml")
