"""A name that stands for something plain at one place, and for a sharded model at another of its function."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

TRAINER = """\
class Trainer:
    def __init__(self, net, vae, zero):
        self.gpt = FSDP(net)
        self.vae = vae
        self.opt = torch.optim.SGD(self.gpt.parameters(), lr=0.1)

    def save(self, parts):
        {}
        {}
"""
ASKS = "torch.save(m.state_dict(), 'vae.pt')"
BELOW = "for k in ('gpt', 'opt'):\n            m = getattr(self, k)\n            torch.save(m, k)"


def is_said(*lines: str, below: str = BELOW) -> bool:
    code = TRAINER.format("\n        ".join(lines), below)
    return not {"FM308", "FM333", "FM425"}.isdisjoint(code for code, _ in codes(code))


@pytest.mark.parametrize(
    ("lines", "below"),
    [
        (["m = self.vae", ASKS], BELOW),
        (["m = self.vae", "if hasattr(m, '_orig_mod'):", "    m = m._orig_mod", ASKS], BELOW),
        (["m = self.gpt", "m.train()", "m = self.vae", ASKS], "pass"),
        (["for _ in parts:", "    m = self.vae", f"    {ASKS}", "    m = self.gpt"], "pass"),
        (["if parts:", "    m = self.vae", f"    {ASKS}"], "else:\n            m = self.gpt"),
    ],
)
def test_what_a_name_stands_for_is_what_it_was_given_last(lines: list[str], below: str) -> None:
    """A stop was set where the name stood for a plain module, by what it is bound to elsewhere."""
    assert not is_said(*lines, below=below)
    assert is_said(*(each.replace("self.vae", "self.gpt") for each in lines), below=below)


@pytest.mark.parametrize(
    ("lines", "below"),
    [
        (["m = self.vae", "if parts:", "    m = self.gpt", ASKS], "pass"),
        (["m = self.vae", "for _ in parts:", f"    {ASKS}", "    m = self.gpt"], "pass"),
        (["m = self.gpt", "if parts:", "    m = self.vae", ASKS], "pass"),
        (["m = self.vae", "FSDP(m)", ASKS], BELOW),
        (["m = self.vae", "m.head = FSDP(m.head)", "torch.save(m.head.state_dict(), 'x')"], BELOW),
        (["m = self.vae", "m = FSDP(m)", ASKS], "pass"),
        (["m = self.vae", "def ask():", f"    {ASKS}"], "m = self.gpt\n        ask()"),
        (["m = self.trainer.vae", "FSDP.set_state_dict_type(m, kind)", ASKS], BELOW),
    ],
)
def test_where_it_may_stand_for_a_sharded_one_it_is_said(lines: list[str], below: str) -> None:
    assert is_said(*lines, below=below)
