"""``enable_wrap`` and ``wrap``."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_uncertain


pytestmark = pytest.mark.any_torch


COMMENTED = [
    (
        (
            "from torch.distributed.fsdp.wrap import enable_wrap, wrap\n"
            "with enable_wrap(wrapper_cls=FSDP):\n    layer = wrap(layer)\n"
        ),
        ["FM303", "FM303", "FM303"],
    ),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)
