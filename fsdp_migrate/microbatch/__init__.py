"""A batch in parts: what is communicated in which microbatch, and the largest microbatch that fits."""

from __future__ import annotations

from fsdp_migrate.microbatch.running import Comms, Microbatches, microbatches
from fsdp_migrate.microbatch.search import MicrobatchRun, auto_microbatch


__all__ = ["Comms", "MicrobatchRun", "Microbatches", "auto_microbatch", "microbatches"]
