"""The table of known faults. ``docs/known-issues.md`` is the same table for people."""

from __future__ import annotations

from fsdp_migrate.doctor.checkpoint_faults import CHECKPOINT_FAULTS
from fsdp_migrate.doctor.framework_faults import FRAMEWORK_FAULTS
from fsdp_migrate.doctor.model_faults import MODEL_FAULTS
from fsdp_migrate.doctor.source_faults import SOURCE_FAULTS


FAULTS = (*MODEL_FAULTS, *CHECKPOINT_FAULTS, *FRAMEWORK_FAULTS, *SOURCE_FAULTS)
"""Every fault that is known, in the order in which they are shown."""
