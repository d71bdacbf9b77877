"""What the operations of a map refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.checkpoint_convert.manifest.parameter_map import Operation, carry_out
from fsdp_migrate.checkpoint_convert.manifest.pieces import (
    whole,
)


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.pieces import Pieced


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("operations", "given", "targets", "words"),
    [
        ([Operation("stack", 0)], [[whole("a", (2,)), whole("b", (3,))]], 1, "shapes differ"),
        ([Operation("concatenate", 0)], [[whole("a", (2, 3))], [whole("b", (2, 4))]], 1, "shapes differ"),
        ([Operation("concatenate", 2)], [[whole("a", (2, 3))], [whole("b", (2, 3))]], 1, "no dimension 2"),
        ([Operation("split", 0)], [[whole("a", (3,))]], 2, "not divided by 2"),
        ([Operation("transpose", 0, 1)], [[whole("a", (3,))]], 1, "no dimension 1"),
        ([Operation("stack", 0)], [[whole("a", (3,))], [whole("b", (3,))]], 1, "makes 2 tensors"),
    ],
)
def test_what_does_not_fit(
    operations: list[Operation], given: list[list[Pieced]], targets: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        carry_out(operations, given, targets)
