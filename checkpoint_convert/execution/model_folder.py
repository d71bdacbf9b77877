"""What will lie beside the weights of a Hugging Face model, known before anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.outputs.kept_files import is_weights
from fsdp_migrate.checkpoint_convert.planning.config_fit import config_findings
from fsdp_migrate.checkpoint_convert.storage.fsspec import open_folder_at
from fsdp_migrate.checkpoint_convert.storage.model_files import MODEL_CONFIG
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.checkpoint_convert.targets.safetensors import missing_files
from fsdp_migrate.errors import CheckpointError


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan
    from fsdp_migrate.checkpoint_convert.storage.folders import Location
    from fsdp_migrate.findings import Finding


def with_model_folder(plan: ConversionPlan, dst: Location | None, *, overwrite: bool) -> ConversionPlan:
    """Return a plan with findings on what lies beside the weights; any but one for Hugging Face as it is.

    Args:
        plan: The plan.
        dst: Where the output will lie.
        overwrite: Whether an output there is replaced: what is beside its weights stays.
    """
    if plan.framework != "hf":
        return plan
    kept = files_that_stay(dst) if overwrite and dst is not None else ()
    findings = settled(plan, kept)
    config = _config(plan, dst if MODEL_CONFIG in kept else None)
    if config is not None:
        findings += config_findings(plan, config)
    return replace(plan, findings=tuple(findings))


def files_that_stay(dst: Location) -> tuple[str, ...]:
    """Return what a folder holds beside the weights that are replaced."""
    try:
        folder = open_folder_at(dst)
    except CheckpointError:
        return ()
    try:
        return tuple(name for name in folder.files() if not is_weights(name))
    finally:
        folder.close()


def settled(plan: ConversionPlan, kept: Sequence[str]) -> list[Finding]:
    """Return the findings; of what was missing, those of what stands in the folder already are gone."""
    found: list[Finding] = []
    for finding in plan.findings:
        again = finding.code == "FM292" and kept
        found += missing_files({*plan.extra_files, *plan.model_files, *kept}) if again else [finding]
    return found


def _config(plan: ConversionPlan, standing: Location | None) -> bytes | None:
    """Return the ``config.json`` of the output: one that is given, the source's, or one that stands there."""
    if MODEL_CONFIG in plan.model_files:
        return plan.model_files[MODEL_CONFIG]
    place = plan.manifest.source if MODEL_CONFIG in plan.extra_files else standing
    if place is None:
        return None
    folder = open_folder(place)
    try:
        return bytes(folder.read(MODEL_CONFIG, 0, folder.files(1)[MODEL_CONFIG]))
    finally:
        folder.close()
