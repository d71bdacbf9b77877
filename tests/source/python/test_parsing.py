"""Text that is not plain UTF-8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.files import CODE


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


ENCODED = {
    "byte order mark": "\ufeff" + CODE,
    "CRLF": CODE.replace("\n", "\r\n"),
    "CR": CODE.replace("\n", "\r"),
    "form feed": CODE.replace("\nmodel", "\n\f\nmodel"),
    "tabs": "def f():\n\tpass\n" + CODE,
    "no end of line": CODE.rstrip("\n"),
    "a newer Python": CODE + "type X = int\n",
}


@pytest.mark.parametrize("case", ENCODED)
def test_unusual_text_is_read(tmp_path: Path, case: str) -> None:
    (tmp_path / "a.py").write_bytes(ENCODED[case].encode())
    report = scan_paths([tmp_path])
    assert [use.code for use in report.uses if use.rule == "constructor"] == ["FM301"]
    assert [file.problem for file in report.files] == [None]
