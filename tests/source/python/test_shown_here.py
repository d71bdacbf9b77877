"""What FSDP1's functions are given below a check of the project's own: sharded in that branch alone."""

from __future__ import annotations

import pytest

from tests.source.projects import FSDP
from tests.source.samples import uses


pytestmark = pytest.mark.any_torch

GUARDED = f"""\
{FSDP}
def is_fsdp(model):
    return model.__class__.__name__ == "FullyShardedDataParallel"


def export(model, path):
    if not is_fsdp(model):
        return torch.save(model.module, path)
    with FSDP.summon_full_params(model):
        {{inner}}
    {{after}}
"""


@pytest.mark.parametrize(
    ("inner", "after", "turned"),
    [
        ("inner = model.module", "pass", True),
        ("pass", "torch.save(model.module, path)", True),
        ("pass", "model = model.module", True),
        ("pass", "other.module", False),
        ("model = load()", "torch.save(model.module, path)", False),
    ],
)
def test_the_model_is_sharded_where_the_same_checks_lead(inner: str, after: str, *, turned: bool) -> None:
    found = [use for use in uses(GUARDED.format(inner=inner, after=after), header="") if use.code == "FM315"]
    # The one above the early return is none of FSDP1's.
    assert [use.line > 10 for use in found] == [True] * turned
