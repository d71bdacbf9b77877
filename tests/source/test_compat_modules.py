"""A project's own objects around FSDP2's model, which have it as ``.module``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HOME = f"""\
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from compat import Compat
{FSDP}

def distribute(model, use_fsdp, version):
    if use_fsdp:
        if version == 1:
            model = FSDP(model)
        else:
            {{shards}}
    else:
        model = DDP(model)
    return model
"""
COMPAT = """\
class Compat(nn.Module):
    def __init__(self, module, group=None):
        super().__init__()
        self.{name} = {value}
"""
TRAIN = (
    "from dist import distribute\n\n\ndef main(net):\n    model = distribute(net)\n    model.module.head\n"
)


@pytest.mark.parametrize(
    ("shards", "name", "value", "is_said"),
    [
        ("model = Compat(fully_shard(model))", "module", "module", False),
        ("fully_shard(model)\n            model = Compat(model)", "module", "module", False),
        ("model = fully_shard(model)", "module", "module", True),
        ("model = Compat(fully_shard(model))", "inner", "module", True),
        ("model = Compat(fully_shard(model))", "module", "nn.Linear(1, 1)", True),
    ],
)
def test_what_has_the_model_as_its_module(
    tmp_path: Path, shards: str, name: str, value: str, *, is_said: bool
) -> None:
    (tmp_path / "dist.py").write_text(HOME.format(shards=shards))
    (tmp_path / "compat.py").write_text(COMPAT.format(name=name, value=value))
    (tmp_path / "train.py").write_text(TRAIN)
    found = [use.text for use in scan_paths([tmp_path]).uses if use.code == "FM333"]
    assert found == ["model.module"] * is_said
