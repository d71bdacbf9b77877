"""The optimizer's own state dict, saved beside a sharded model's state."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "body",
    [
        "m = FSDP(net)\ntorch.save({'model': m.state_dict(), 'optim': optimizer.state_dict()}, path)\n",
        "def save(m: FSDP, opt):\n    return m.state_dict(), opt.state_dict()\n",
    ],
)
def test_it_is_said(body: str) -> None:
    assert ("FM425", "commented") in codes(body)


@pytest.mark.parametrize(
    "body",
    [
        "m = net\nx = m.state_dict(), optimizer.state_dict()\n",
        "m = FSDP(net)\nx = m.state_dict(), scheduler.state_dict()\n",
        "if a:\n    m = FSDP(net)\n    x = m.state_dict()\nelse:\n    x = optimizer.state_dict()\n",
    ],
)
def test_others_are_not(body: str) -> None:
    assert "FM425" not in {code for code, _ in codes(body)}
