"""Imports that are taken out and left."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import rewrite_source


pytestmark = pytest.mark.any_torch


def test_a_comment_stays_beside_the_name_that_it_is_about() -> None:
    header = (
        "from torch.distributed.fsdp import (\n"
        "    MixedPrecision,  # kept\n"
        "    FullyShardedDataParallel as FSDP,  # gone\n"
        ")\n"
    )
    after = rewrite_source(f"{header}m = FSDP(net, mixed_precision=MixedPrecision())\n")
    assert "    MixedPrecision,  # kept\n)\n" in after
