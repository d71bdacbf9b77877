"""Comments and strings that name FSDP1."""

from __future__ import annotations

import pytest

from tests.source.samples import codes, turned


pytestmark = pytest.mark.any_torch


def test_comments_and_strings_are_told_apart() -> None:
    source = '# FSDP(model) here\n"""FullyShardedDataParallel."""\nx = "torch.distributed.fsdp"\n'
    assert codes(source, header="") == [("FM325", "mentioned")] * 3
    assert turned(source, header="") == source
