"""Any FSDP1-era checkpoint straight into the model, without converting.

load_checkpoint   weights, optimizers, and what else is asked for
LoadReport        what was loaded, and what there is to say about it
"""

from __future__ import annotations

from fsdp_migrate.loading.load import load_checkpoint
from fsdp_migrate.loading.report import LoadReport


__all__ = ["LoadReport", "load_checkpoint"]
