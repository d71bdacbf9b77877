"""Units that are alike, in a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.pages.pages import write


if TYPE_CHECKING:
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


def test_units_that_are_alike_are_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "fsdp.yaml").write_text("auto_wrap_policy: [Block, Bilinear]\n")
    code = (
        "from torch import nn\n\nclass Block(nn.Sequential):\n    pass\n\ndef make():\n"
        "    blocks = [Block(nn.Linear(8, 8), nn.Bilinear(2, 2, 2)) for _ in range(6)]\n"
        "    return nn.Sequential(nn.ModuleList(blocks), nn.Linear(8, 9))\n"
    )
    (folder / "made_for_pages.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    given = ("plan", "--model", "made_for_pages:make", "--world-size", "2", "--config", "fsdp.yaml")
    _, page, text = write(folder, *given)
    (tree,) = (each for each in page.find("ul") if each.attributes.get("class") == "tree")
    summaries = [each.children[0].children[0].text for each in tree.find("summary")]
    assert summaries[:2] == ["(root)", "0.0 to 0.5"]
    folded = [each for each in tree.find("details") if "open" not in each.attributes]
    assert [each.find("summary")[0].whole_text.split(",")[0] for each in folded] == [
        "0.0 to 0.5 6 units alike"
    ]
    assert "0.0.1" in tree.whole_text
    assert "0.0.1" not in text.whole_text
