"""The page of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.pages.pages import EVIL, write
from tests.parity.reports import GRADIENT, report_of


if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("differences", "code", "tone"),
    [((), 0, "good"), ((GRADIENT,), 1, "bad"), (("FM012",), 0, "warning")],
    ids=["same", "different", "explained"],
)
def test_parity(
    differences: Sequence[object], code: int, tone: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        type(GRADIENT)(
            **{**vars(GRADIENT), "name": EVIL, **({"explained_by": each} if each == "FM012" else {})}
        )
        for each in differences
    ]
    monkeypatch.setattr("fsdp_migrate.parity.start.run_parity", lambda *_, **__: report_of(*found))
    exit_code, page, text = write(folder, "parity", "--model", "a:b")
    assert exit_code == code
    assert page.find("h1")[0].children[1].attributes["class"] == f"verdict {tone}"
    assert len(page.find("polyline")) == 2
    assert len(page.find("circle", "path")) == 4  # of the legend, and of the one step
    for form in (page, text):
        titles = [each.whole_text for each in form.find("h2", "h3")]
        assert {"Losses", "Steps", "What the last step cost", "What was assumed"} <= set(titles)
        assert ("Where the runs part first" in titles) == ("Differences: 1" in titles) == bool(found)
        assert "all-gather, float32, of 2 ranks5 x, 4.8 kB" in form.whole_text.replace("\n", "")
        if found:
            assert EVIL.replace("\u202e", "\\u202e") in {each.whole_text for each in form.find("code")}
