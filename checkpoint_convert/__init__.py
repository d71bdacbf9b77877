"""FSDP1-era checkpoints in, FSDP2 checkpoints out.

    inspect_checkpoint   what is it, what does it hold
    plan_conversion      what would become of every entry
    execute_plan         do it
    convert_checkpoint   the three in one
    check_checkpoint     is one checkpoint whole in itself
    join_ranks           the processes that torchrun started share a conversion
    verify_checkpoints   do two checkpoints hold the same, bit for bit

torch is imported for casts, and where ranks share the work. Nothing of a checkpoint is ever executed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.convert import convert_checkpoint as convert_checkpoint
    from fsdp_migrate.checkpoint_convert.execute import (
        ConversionReport as ConversionReport,
        execute_plan as execute_plan,
    )
    from fsdp_migrate.checkpoint_convert.inspect import inspect_checkpoint as inspect_checkpoint
    from fsdp_migrate.checkpoint_convert.metadata import Manifest as Manifest
    from fsdp_migrate.checkpoint_convert.output_options import OutputOptions as OutputOptions
    from fsdp_migrate.checkpoint_convert.plan import (
        ConversionPlan as ConversionPlan,
        plan_conversion as plan_conversion,
    )
    from fsdp_migrate.checkpoint_convert.progress import ProgressEvent as ProgressEvent
    from fsdp_migrate.checkpoint_convert.ranks import Ranks as Ranks, join_ranks as join_ranks
    from fsdp_migrate.checkpoint_convert.self_check import (
        CheckReport as CheckReport,
        check_checkpoint as check_checkpoint,
    )
    from fsdp_migrate.checkpoint_convert.source_options import (
        ModelOutline as ModelOutline,
        SourceOptions as SourceOptions,
    )
    from fsdp_migrate.checkpoint_convert.verify import (
        Difference as Difference,
        VerifyReport as VerifyReport,
        verify_checkpoints as verify_checkpoints,
    )

__all__ = [
    "CheckReport",
    "ConversionPlan",
    "ConversionReport",
    "Difference",
    "Manifest",
    "ModelOutline",
    "OutputOptions",
    "ProgressEvent",
    "Ranks",
    "SourceOptions",
    "VerifyReport",
    "check_checkpoint",
    "convert_checkpoint",
    "execute_plan",
    "inspect_checkpoint",
    "join_ranks",
    "plan_conversion",
    "verify_checkpoints",
]

_HOMES = {
    "CheckReport": "self_check",
    "ConversionPlan": "plan",
    "ConversionReport": "execute",
    "Difference": "verify",
    "Manifest": "metadata",
    "ModelOutline": "source_options",
    "OutputOptions": "output_options",
    "ProgressEvent": "progress",
    "Ranks": "ranks",
    "SourceOptions": "source_options",
    "VerifyReport": "verify",
    "check_checkpoint": "self_check",
    "convert_checkpoint": "convert",
    "execute_plan": "execute",
    "inspect_checkpoint": "inspect",
    "join_ranks": "ranks",
    "plan_conversion": "plan",
    "verify_checkpoints": "verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
