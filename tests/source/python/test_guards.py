"""What checks make sure behind them: where a sharded model has left by an early return."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

CHECKS = """\
def is_sharded(model):
    return {asked}


def whole(model):
    if {left}:
        return None
    return model.module.state_dict() if isinstance(model, (DDP, FSDP)) else model.state_dict()


m = FSDP(net)
whole(m)
whole(DDP(net))
"""


@pytest.mark.parametrize(
    ("asked", "left", "may_be_sharded"),
    [
        ("isinstance(model, (FSDP, FSDPModule))", "is_sharded(model)", False),
        ("isinstance(model, FSDP) or isinstance(model, FSDPModule)", "is_sharded(model)", False),
        ("1", "isinstance(model, (FSDP, Other))", False),
        ("1", "isinstance(model, FSDP) or isinstance(model, Other)", False),
        ("1", "not on or isinstance(model, (Other, FSDP))", False),
        ("1", "isinstance(model, (DDP, Other))", True),
        ("isinstance(model, Other)", "is_sharded(model)", True),
    ],
)
def test_code_below_an_early_return(asked: str, left: str, may_be_sharded: bool) -> None:
    header = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    found = codes(f"{header}{CHECKS.format(asked=asked, left=left)}")
    assert any(code in {"FM308", "FM315", "FM333"} for code, _ in found) is may_be_sharded
