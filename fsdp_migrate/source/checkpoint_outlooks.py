"""What a checkpoint's head says: whether it needs a conversion, who loads it as it is, what is in it.

As ``fsdp-migrate inspect`` tells it. Tensors are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.errors import FSDPMigrateError, PlanError


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.source.surroundings import CheckpointFound


# A look at a repository stays quick: larger heads, and more of them, are left to `inspect`.
_LARGEST_HEAD, _MOST_READ = 32 << 20, 20
_FULL = " under FSDP2 with FULL_STATE_DICT"
_OWN_SCRIPTS = frozenset({"hf", "torch"})
_PACKED = (".bz2", ".gz", ".tar", ".tgz", ".xz", ".zip", ".zst")


@dataclass(frozen=True)
class Outlook:
    """What becomes of a checkpoint.

    Attributes:
        is_needed: Whether what reads it under FSDP2 needs it converted.
        reader: Who loads it as it is, where it is not needed; empty where nothing but ``call`` does.
        call: The line of Python that does too, of a project that has no framework for it.
        is_whole: Whether a model and an optimizer are in it, as in what a run goes on from.
        is_weights: Whether there is nothing in it but one model.
        lacks: What is missing in it, of what its framework saves together.
    """

    is_needed: bool
    reader: str = ""
    call: str = ""
    is_whole: bool = False
    is_weights: bool = False
    lacks: str = ""


def with_outlooks(found: Sequence[CheckpointFound]) -> list[CheckpointFound]:
    """Return checkpoints, the latest of each run with what its head says, as far as that is quick to read.

    Weights alone that lie apart from what runs go on from, and which no source reads, are an export.
    """
    seen = {each.path: _look_at(each) for each in [e for e in found if _is_quick(e)][:_MOST_READ]}
    looked = [replace(each, outlook=seen.get(each.path)) for each in found]
    homes = {Path(each.path).parent for each in looked if each.outlook is not None and each.outlook.is_whole}
    return [replace(each, is_export=_is_export(each, homes)) for each in looked]


def _is_export(checkpoint: CheckpointFound, homes: Iterable[Path]) -> bool:
    outlook, homes = checkpoint.outlook, set(homes)
    if outlook is None or outlook.is_needed or not outlook.is_weights or checkpoint.read_by:
        return False
    return bool(homes) and Path(checkpoint.path).parent not in homes


def _is_quick(checkpoint: CheckpointFound) -> bool:
    path = Path(checkpoint.path)
    if not checkpoint.is_latest or checkpoint.is_incomplete or checkpoint.is_of_ranks or checkpoint.beside:
        return False
    if path.name.endswith(_PACKED):
        return False
    heads = [path / METADATA_FILE, *path.glob(f"*/{METADATA_FILE}")] if path.is_dir() else []
    try:
        return path.exists() and sum(e.stat().st_size for e in heads if e.is_file()) <= _LARGEST_HEAD
    except OSError:
        return False


def _look_at(checkpoint: CheckpointFound) -> Outlook | None:
    """Return what the head says, or None where ``inspect`` has to say more than yes or no."""
    from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
    from fsdp_migrate.checkpoint_convert.loading.advice import (
        BEFORE_LOADING,
        WITHOUT_OPTIMIZER,
        advise_loading,
        lacks_optimizer,
    )

    try:
        manifest = inspect_checkpoint(checkpoint.path)
        try:
            plan = plan_conversion(manifest)
        except PlanError as error:
            return _of_refused(manifest, error)
    except (FSDPMigrateError, OSError, RecursionError):
        return None
    if not BEFORE_LOADING.isdisjoint(finding.code for finding in plan.findings):
        return None
    kinds = [part.kind for part in manifest.parts]
    advice = advise_loading(manifest)
    is_whole, is_weights = {"model", "optimizer"}.issubset(kinds), kinds == ["model"]
    if plan.action != "none" and advice.by_framework is None:
        return Outlook(is_needed=True, is_whole=is_whole, is_weights=is_weights)
    reader = _reader(manifest, checkpoint, is_named=advice.by_framework is not None)
    # Of several models there is a line for each.
    has_call = manifest.framework in _OWN_SCRIPTS and "\n" not in advice.call
    call = advice.call if has_call else ""
    lacks = WITHOUT_OPTIMIZER if lacks_optimizer(manifest) else ""
    return Outlook(
        is_needed=False, reader=reader, call=call, is_whole=is_whole, is_weights=is_weights, lacks=lacks
    )


def _of_refused(manifest: Manifest, error: PlanError) -> Outlook | None:
    """Return what becomes of what cannot be converted, where a prepared model loads it as it is."""
    from fsdp_migrate.checkpoint_convert.loading.advice import (
        BEFORE_LOADING,
        advise_loading,
        loads_unconverted,
    )

    call = advise_loading(manifest).call
    is_ready = BEFORE_LOADING.isdisjoint(finding.code for finding in manifest.findings)
    if not is_ready or "\n" in call or not loads_unconverted(manifest, (f.code for f in error.findings)):
        return None
    kinds = [part.kind for part in manifest.parts]
    return Outlook(is_needed=False, call=call, is_whole={"model", "optimizer"}.issubset(kinds))


def _reader(manifest: Manifest, checkpoint: CheckpointFound, *, is_named: bool) -> str:
    """Return who loads it as it is; ``is_named``: a framework reads a full state under FSDP2."""
    from fsdp_migrate.checkpoint_convert.loading.advice import LIGHTNINGS_WAY
    from fsdp_migrate.checkpoint_convert.sources.lightning import FABRICS

    if manifest.framework == "composer":
        return "Composer's Trainer, with FSDP2Migration among its callbacks,"
    if manifest.framework == "lightning":
        return f"Lightning's Trainer, {LIGHTNINGS_WAY},"
    if loader := _loader(manifest.framework, checkpoint):
        return f"{loader}{_FULL if is_named else ''}, by the path as before,"
    if manifest.layout == "safetensors":
        return "load_file or from_pretrained"
    if checkpoint.is_full:
        return "torch.load in a script that is turned"
    return f"{'fabric.load or ' if FABRICS in manifest.evidence else ''}dcp.load, by the names in it,"


def _loader(framework: str, checkpoint: CheckpointFound) -> str:
    """Return what of a framework loads it: HF Trainer where that saved it, or Accelerate alone."""
    from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
    from fsdp_migrate.source.publishing import is_trainers

    if framework == "accelerate":
        return "HF Trainer" if is_trainers(checkpoint) else "`Accelerator.load_state`"
    return TARGETS[framework].loader
