"""Parameters that a wrapping leaves alone by a dict that functions make, or fill."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

HELPERS = (
    "def options(kept, more=None):\n    return {'ignored_states': kept, 'extra': more}\n"
    "def built(kept):\n    found = {}\n    found['ignored_states'] = kept\n    return found\n"
    "def fill(kwargs, kept):\n    kwargs['ignored_states'] = kept\n"
    "def extend(kwargs, kept):\n    kwargs.update(extra=kept)\n"
)


@pytest.mark.parametrize(
    ("above", "given", "is_said"),
    [
        ("pass", "**options(kept)", False),
        ("cfg = options(kept)", "**cfg", False),
        ("cfg = built(kept)", "**cfg", False),
        ("cfg = {}; fill(cfg, kept)", "**cfg", False),
        ("cfg = {}; fill(kept=kept, kwargs=cfg)", "**cfg", False),
        ("cfg = options(other, kept)", "**cfg", True),
        ("cfg = built(other)", "**cfg", True),
        ("cfg = {}; extend(cfg, kept)", "**cfg", True),
        ("cfg = {}; fill(other, kept)", "**cfg", True),
        ("pass", "**cfg); fill(cfg, kept", True),
    ],
)
def test_a_dict_that_a_function_makes_or_fills(above: str, given: str, *, is_said: bool) -> None:
    body = (
        f"{HELPERS}def wrap(net, cfg, other):\n    kept = [p for p in net.parameters() if p.requires_grad]\n"
        f"    {above}\n    model = FSDP(net, {given})\n    torch.nn.utils.clip_grad_norm_(kept, 1.0)\n"
    )
    assert ("FM446" in dict(codes(body))) is is_said


RUN = (
    "class Run:\n    def __init__(self, net):\n        self.net = net\n"
    "        self.kept = [p for p in net.parameters() if p.requires_grad]\n"
    "        self.kwargs = {0}\n        self._more()\n        self.shard()\n"
    "    def _more(self):\n        {1}\n"
    "    def shard(self):\n        self.net = FSDP(self.net, {2})\n"
    "    def step(self):\n        for p in self.kept:\n            p.mul_(2)\n"
)


@pytest.mark.parametrize(
    ("made", "more", "given", "is_said"),
    [
        ("{}", "pass", "ignored_states=self.kept", False),
        ("{'ignored_states': self.kept}", "pass", "**self.kwargs", False),
        ("{}", "self.kwargs['ignored_states'] = self.kept", "**self.kwargs", False),
        ("{}", "self.kwargs.update(ignored_states=self.kept)", "**self.kwargs", False),
        ("{}", "pass", "**self.kwargs", True),
        ("{}", "self.other['ignored_states'] = self.kept", "**self.kwargs", True),
        ("{}", "pass", "device_id=0", True),
    ],
)
def test_a_dict_of_an_object_that_another_method_fills(
    made: str, more: str, given: str, *, is_said: bool
) -> None:
    assert ("FM446" in dict(codes(RUN.format(made, more, given)))) is is_said
