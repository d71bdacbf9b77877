"""Notebooks, cell by cell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.files import _only


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def notebook(*cells: str) -> str:
    return json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "source": ["FullyShardedDataParallel"]},
                *({"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells),
            ],
            "nbformat": 4,
        }
    )


def test_notebooks_are_read_cell_by_cell(tmp_path: Path) -> None:
    cells = (
        "%matplotlib inline\n!ls\nfrom torch.distributed.fsdp import FullyShardedDataParallel as F",
        "%%bash\necho FullyShardedDataParallel(",
        "x = 1\n\nmodel = F(net)  # here",
        "this is no python",
        "model.no_sync()",
    )
    (tmp_path / "a.ipynb").write_text(notebook(*cells))
    file = _only(scan_paths([tmp_path]).files)
    assert [(use.cell, use.line, use.code) for use in file.uses if use.rule != "import"] == [
        (4, 3, "FM301"),
        (6, 1, "FM312"),
    ]
    assert "cells 5 left out" in str(file.problem)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"cells": 3}', '{"cells": [{"fsdp": 1}]}', "fsdp", "{}fsdp"]
)
def test_what_is_no_notebook_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(f"{text} " if "fsdp" in text else text)
    files = scan_paths([tmp_path]).files
    assert all("no notebook" in str(file.problem) for file in files)
    assert bool(files) == ("fsdp" in text), "without a word of FSDP there is nothing to say"
