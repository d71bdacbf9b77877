"""Sources for a Python that is newer than the one that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.newer_syntax import parse_any
from tests.source.projects import CLIPPED, FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


def test_a_file_for_a_newer_python_is_followed(tmp_path: Path) -> None:
    newer = "type Net = object\n\n\ndef first[T](each: list[T]) -> T:\n    return each[0]\n\n\n"
    newer += 'f"{1!r} {"a"}"\n\n\n'
    files = {
        "loop.py": f"{newer}class Loop[T]:\n    def fit(self, model):\n        model.clip_grad_norm_(1.0)\n",
        "main.py": f"{FSDP}from loop import Loop\nloop = Loop()\nloop.fit(FSDP(net))\n",
    }
    assert CLIPPED in after(tmp_path, files, "loop.py")


def test_what_no_parser_takes_raises() -> None:
    assert parse_any("type Net = object\n").body
    with pytest.raises(SyntaxError):
        parse_any("x = = 1\n")
