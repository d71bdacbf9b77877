"""What comes first of what is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_migrate.doctor import FAULTS, examine
from fsdp_migrate.doctor.known import HARMS
from tests.doctor.sights import TIED


pytestmark = pytest.mark.any_torch


def test_what_needs_action_comes_first_and_the_worst_of_it() -> None:
    """What ``prepare_fully_shard`` mends stood among, and above, what hits its user."""
    source = "m = FSDP(m)\nd = [p for p in m.parameters() if p.ndim >= 2]\n"
    source += "try:\n    dcp.load(s)\nexcept Exception:\n    deepcopy(model)\n"
    source += "net.to('meta')\n"
    found = examine(replace(TIED, sources={"train.py": source}))
    order = [(each.fault.is_handled, list(HARMS).index(each.fault.harm)) for each in found.symptoms]
    assert order == sorted(order)
    assert found.symptoms == (*found.needed, *found.handled)
    assert [each.fault.name for each in found.needed[:2]] == ["groups-by-dimensions", "deepcopy-of-shards"]
    assert {"ties-across-units", "ties-torn-on-meta"} <= {each.fault.name for each in found.handled}
    for fault in FAULTS:  # what says that prepare_fully_shard mends it is not told as a person's work
        assert fault.is_handled or not fault.action.startswith("`prepare_fully_shard`")
