"""Every function for run time is documented: what it takes, what it raises, what it takes the place of."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from fsdp_migrate import errors, runtime
from tests.ranks import ROOT


PAGE = (ROOT / "docs" / "runtime.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| FSDP1 |")]


def test_the_names_are_sorted() -> None:
    assert runtime.__all__ == sorted(runtime.__all__)


@pytest.mark.parametrize("name", runtime.__all__)
def test_each_function_has_its_row_and_tells_its_arguments(name: str) -> None:
    assert [row for row in ROWS if f"`{name}(" in row.split("|")[2] or f"{name}(" in row.split("|")[2]]
    function = getattr(runtime, name)
    text = inspect.getdoc(function) or ""
    assert ">>>" in text
    missing = [
        p for p in inspect.signature(function).parameters if not re.search(rf"^ +{p}: ", text, re.MULTILINE)
    ]
    assert missing == []


def test_the_page_names_nothing_that_is_not_there() -> None:
    imported = re.findall(r"from fsdp_migrate.runtime import (.*)", PAGE)
    assert imported
    assert {name.strip() for line in imported for name in line.split(",")} <= set(runtime.__all__)
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        ast.parse(block)
    assert {name for name in re.findall(r"`(\w+Error)`", PAGE) if not hasattr(errors, name)} == set()
