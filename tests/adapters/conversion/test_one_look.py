from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.one_look import kept_in_a_look, one_look


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@kept_in_a_look
def text_of(path: Path) -> str:
    return path.read_text()


def test_a_file_is_read_once_in_a_look_and_anew_outside(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("one")
    with one_look():
        assert text_of(file) == "one"
        file.write_text("two")
        assert text_of(file) == "one"
    assert text_of(file) == "two"
    file.write_text("three")
    assert text_of(file) == "three"


def test_nothing_is_kept_for_the_next_look(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for text in ("one", "two"):
        file.write_text(text)
        with one_look():
            assert text_of(file) == text
