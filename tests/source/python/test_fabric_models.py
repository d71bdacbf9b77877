"""What Fabric sets up beside FSDP1's strategy is a sharded model, in Fabric's own module."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

HEADER = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"


@pytest.mark.parametrize("call", ["setup(net, optimizer)", "setup(net, optimizer, other)"])
def test_fabric_gives_its_optimizers_behind_the_model(call: str) -> None:
    body = 'fabric = Fabric(strategy="fsdp")\nmodel, optimizer, *rest = fabric.' + call + "\n"
    used = "optimizer.load_state_dict(state)\nx.load_state_dict(state)\nmodel.load_state_dict(state)\n"
    texts = [use.text for use in scan_source(HEADER + body + used) if use.code == "FM333"]
    assert texts == ["model.load_state_dict(state)"]
