"""Writes to parameters without dimensions, of which FSDP shards none."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, codes


pytestmark = pytest.mark.any_torch

HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
MODEL = "m = FSDP(net)\n"


@pytest.mark.parametrize(
    ("test", "is_said"),
    [
        ("p.ndim == 0", False),
        ("p.dim() < 1", False),
        ("not p.ndim", False),
        ("p.requires_grad and p.data.dim() == 0", False),
        ("p.numel() == 1 and not p.shape", False),
        ("p.shape == torch.Size([])", False),
        ("len(p.shape) == 0", False),
        # One of several elements, of none on this rank, and another tensor's dimensions.
        ("p.ndim == 1", True),
        ("p.ndim > 0", True),
        ("p.numel() == 1", True),
        ("p.numel() == 0", True),
        ("p.ndim == 0 or p.requires_grad", True),
        ("x.ndim == 0", True),
    ],
)
@pytest.mark.parametrize(
    "write",
    ["p.data = p.data.unsqueeze(0)", "p.data[0] = 1", "p.add_(torch.zeros(1))", "dist.broadcast(p, 0)"],
)
def test_a_write_to_what_has_no_dimensions_never_runs(test: str, write: str, *, is_said: bool) -> None:
    """FSDP1's parameters were flat, and both FSDPs refuse scalars."""
    loop = f"for p in m.parameters():\n    if {test}:\n        {write}\n"
    left = f"for p in m.parameters():\n    if not ({test}):\n        continue\n    {write}\n"
    for code in (loop, left):
        said = {code for code, action in codes(MODEL + code, HEADER) if action == "commented"}
        assert bool(said & {"FM336", "FM423"}) is is_said
