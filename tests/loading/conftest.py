"""The folders of real FSDP1 ranks, which the tests of conversions have too."""

from __future__ import annotations

from tests.checkpoint.conftest import rank_sources


__all__ = ["rank_sources"]
