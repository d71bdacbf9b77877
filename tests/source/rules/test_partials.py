"""``functools.partial`` of the class."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_uncertain, plain


pytestmark = pytest.mark.any_torch


TURNED = [
    (
        "wrap = functools.partial(FSDP, device_id=0)\nmodel = wrap(net)\n",
        'wrap = functools.partial(prepare_fully_shard, fsdp1_config={"device_id": 0})\nmodel = wrap(net)\n',
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_calls_are_turned_with_the_same_arguments(before: str, after: str) -> None:
    assert plain(before) == after


COMMENTED = [
    ("wrap = functools.partial(FSDP, device_id=0)\nuse(wrap)\n", ["FM303"]),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)
