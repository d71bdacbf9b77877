"""Move a training run from PyTorch FSDP1 to FSDP2.

    prepare_fully_shard             shard a model, with the arguments that FSDP1 had
    plan_fully_shard                what that would do, without a GPU
    shard_plan                      what it did, and what became of each argument
    apply_activation_checkpointing  recompute layers, before or after sharding
    microbatches                    accumulate gradients over uneven numbers of microbatches
    load_checkpoint                 load a checkpoint of an FSDP1 run into it, without converting
    inspect_checkpoint              what is a checkpoint, what does it hold
    convert_checkpoint              make it one that FSDP2 loads
    plan_conversion, execute_plan   the same in two steps
    verify_checkpoints              do two hold the same, bit for bit
    convert_config_file             the same for the config of a framework
    compare_runs                    FSDP1 and FSDP2 on a model of one's own, step by step

What FSDP1 offered at run time (``no_sync``, ``clip_grad_norm_``, full states) is in
:mod:`fsdp_migrate.runtime`.

    >>> import fsdp_migrate
    >>> fsdp_migrate.FSDP1Config(sharding_strategy="full_shard").sharding_strategy
    'FULL_SHARD'

What changes on the way is said in :class:`Finding` objects, which ``fsdp-migrate explain CODE`` explains;
what goes wrong is an :class:`FSDPMigrateError`. The names are loaded when they are first used, so that
working with configs does not import torch.
"""

from __future__ import annotations

import os
import sys


# `python -m fsdp_migrate` looks for modules in the current folder first, and that may be a checkpoint of
# somebody else's with a `json.py` in it. `-m` stands for the name of the program while Python looks for it.
if sys.argv[:1] == ["-m"] and sys.path[:1] == [os.path.abspath(os.curdir)]:  # noqa: PTH100  # pathlib is not loaded
    del sys.path[0]

import importlib  # nothing may be looked for before
from typing import TYPE_CHECKING  # the same


if TYPE_CHECKING:
    from fsdp_migrate.activation_checkpointing import (
        apply_activation_checkpointing as apply_activation_checkpointing,
    )
    from fsdp_migrate.checkpoint_convert import (
        ConversionPlan as ConversionPlan,
        ConversionReport as ConversionReport,
        Manifest as Manifest,
        VerifyReport as VerifyReport,
        convert_checkpoint as convert_checkpoint,
        execute_plan as execute_plan,
        inspect_checkpoint as inspect_checkpoint,
        plan_conversion as plan_conversion,
        verify_checkpoints as verify_checkpoints,
    )
    from fsdp_migrate.config import FSDP1Config as FSDP1Config, FSDP2Config as FSDP2Config
    from fsdp_migrate.config_files import convert_config_file as convert_config_file
    from fsdp_migrate.errors import FSDPMigrateError as FSDPMigrateError
    from fsdp_migrate.findings import Finding as Finding
    from fsdp_migrate.loading import load_checkpoint as load_checkpoint
    from fsdp_migrate.microbatch import microbatches as microbatches
    from fsdp_migrate.parity import compare_runs as compare_runs
    from fsdp_migrate.sharding.plan import ShardPlan as ShardPlan, plan_fully_shard as plan_fully_shard
    from fsdp_migrate.sharding.prepare import (
        prepare_fully_shard as prepare_fully_shard,
        shard_plan as shard_plan,
    )

    __version__: str

__all__ = [
    "ConversionPlan",
    "ConversionReport",
    "FSDP1Config",
    "FSDP2Config",
    "FSDPMigrateError",
    "Finding",
    "Manifest",
    "ShardPlan",
    "VerifyReport",
    "__version__",
    "apply_activation_checkpointing",
    "compare_runs",
    "convert_checkpoint",
    "convert_config_file",
    "execute_plan",
    "inspect_checkpoint",
    "load_checkpoint",
    "microbatches",
    "plan_conversion",
    "plan_fully_shard",
    "prepare_fully_shard",
    "shard_plan",
    "verify_checkpoints",
]

_HOMES = {
    "FSDP1Config": "config",
    "FSDP2Config": "config",
    "FSDPMigrateError": "errors",
    "Finding": "findings",
    "ShardPlan": "sharding.plan",
    "apply_activation_checkpointing": "activation_checkpointing",
    "compare_runs": "parity",
    "convert_config_file": "config_files",
    "load_checkpoint": "loading",
    "microbatches": "microbatch",
    "plan_fully_shard": "sharding.plan",
    "prepare_fully_shard": "sharding.prepare",
    "shard_plan": "sharding.prepare",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from fsdp_migrate.versions import own_version

        return own_version()
    if name not in __all__:
        msg = f"module 'fsdp_migrate' has no attribute {name!r}"
        raise AttributeError(msg)
    home = importlib.import_module(f"fsdp_migrate.{_HOMES.get(name, 'checkpoint_convert')}")
    value: object = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
