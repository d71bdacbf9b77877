"""What one branch shows, and what it does not."""

from __future__ import annotations

import pytest

from tests.source.samples import turned


pytestmark = pytest.mark.any_torch


def test_below_a_switch_it_shows_nothing_of_what_is_outside() -> None:
    body = (
        "def save(model, use_fsdp):\n"
        "    if use_fsdp:\n"
        "        state = FSDP.optim_state_dict(model, None)\n"
        "    return model.state_dict()\n"
    )
    assert "return model.state_dict()" in turned(body)


def test_and_nothing_of_the_other_branch() -> None:
    body = (
        "def save(model, sharded):\n"
        "    if sharded:\n"
        "        state = FSDP.optim_state_dict(model, optimizer)\n"
        "    else:\n"
        "        state = model.state_dict()\n"
    )
    assert "state = model.state_dict()" in turned(body)
