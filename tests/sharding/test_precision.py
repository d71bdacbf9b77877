"""Evaluation in full precision."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.sharding import words_bodies as words


@pytest.mark.parametrize(
    ("value", "precision", "codes"), [("1", "bf16", ["FM112"]), ("1", None, []), ("0", "bf16", [])]
)
def test_evaluation_in_full_precision_is_told(value: str, precision: str | None, codes: list[str]) -> None:
    assert run_ranks(words.evaluation_in_full_precision, value, precision) == [codes] * 2
