"""Subclasses of the class."""

from __future__ import annotations

import pytest

from tests.source.samples import assert_uncertain, turned


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("class Mine(FSDP):\n    pass\n\n\nmodel = Mine(net)\n", ["FM304", "FM304"]),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)


def test_functions_of_the_class_are_known_through_a_subclass() -> None:
    body = (
        "class Wrapper(FSDP):\n"
        "    def optim_state_dict(self):\n"
        "        return {}\n\n\n"
        "def save(model: Wrapper):\n"
        "    with Wrapper.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        state = model.state_dict()\n"
        "    return state, Wrapper.optim_state_dict(model)\n"
    )
    after = turned(body)
    assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "Wrapper.optim_state_dict(model)" in after
