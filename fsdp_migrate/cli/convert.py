"""The command ``convert``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate.cli import torchrun
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import (
    All,
    Buffer,
    Checkpoint,
    Checksums,
    DryRun,
    DType,
    HfConfig,
    HowToLink,
    Json,
    KeepCorrupt,
    Link,
    Map,
    ModelDType,
    OptimizerClass,
    OptimizerDType,
    Output,
    Overwrite,
    RankCount,
    Rename,
    Resume,
    ShardSize,
    SourceConfig,
    SourceModel,
    StateDict,
    StateDictType,
    Strict,
    Target,
    To,
    TrustPickle,
    WeightsOnly,
    WithoutOptimizer,
    output_options,
    source_options,
)


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert import ConversionReport, ParameterMap, SourceOptions


def convert(
    source: Checkpoint,
    output: Output = None,
    to: To = Target.auto,
    world_size: RankCount = None,
    dtype: ModelDType = DType.keep,
    optimizer_dtype: OptimizerDType = DType.keep,
    weights_only: WeightsOnly = False,
    without_optimizer: WithoutOptimizer = False,
    max_shard_size: ShardSize = "5GB",
    hf_config: HfConfig = None,
    optimizer_class: OptimizerClass = None,
    state_dict_type: StateDict = StateDictType.auto,
    rename: Rename = None,
    map: Map = None,
    keep_corrupt_optimizer: KeepCorrupt = False,
    model: SourceModel = None,
    config: SourceConfig = None,
    trust_pickle: TrustPickle = False,
    link: HowToLink = Link.auto,
    overwrite: Overwrite = False,
    resume: Resume = False,
    checksums: Checksums = False,
    buffer: Buffer = 64,
    dry_run: DryRun = False,
    strict: Strict = False,
    everything: All = False,
    json: Json = False,
) -> int:
    """Convert a checkpoint of an FSDP1 run into one that FSDP2 loads.

    CKPT is never changed. OUT appears complete or not at all. Without OUT
    it says whether FSDP2 loads CKPT as it is. Under torchrun the
    work is divided over the ranks, and rank 0 reports.
    """
    wanted: dict[str, Any] = {
        "to": to.value,
        "world_size": world_size,
        "dtype": dtype.value,
        "optimizer_dtype": optimizer_dtype.value,
        "weights_only": weights_only,
        "without_optimizer": without_optimizer,
        "link": link.value,
        "output_options": output_options(
            max_shard_size,
            optimizer_class,
            rename,
            hf_config,
            map=_read_map(map, source),
            keep_corrupt_optimizer=keep_corrupt_optimizer,
            state_dict_type=state_dict_type,
        ),
    }
    given = source_options(model, config, trust_pickle)
    if dry_run:
        shown = {"strict": strict, "everything": everything, "json": json}
        _show_plan((source, output), given, wanted, overwrite=overwrite, resume=resume, **shown)
        return 0
    how = {"overwrite": overwrite, "resume": resume, "checksums": checksums, "buffer_bytes": buffer << 20}
    report = _convert(source, output, {**wanted, **how, "strict": strict, "options": given})
    read = {"map": map, "model": model, "config": config, "trust_pickle": trust_pickle}
    _show_report(source, report, {**wanted, "rename": rename, **read}, everything=everything, json=json)
    return 0


def _read_map(map: str | None, source: str) -> ParameterMap | None:
    from fsdp_migrate.checkpoint_convert import read_map

    return None if map is None else read_map(map, beside=source)


def _convert(source: str, output: str | None, asked: dict[str, Any]) -> ConversionReport:
    """Convert, on this process or on the ranks that torchrun started."""
    from fsdp_migrate.checkpoint_convert import convert_checkpoint
    from fsdp_migrate.cli.render.progress import watch_progress

    with torchrun.shared_ranks() as ranks, watch_progress("Converting") as progress:
        shown = None if torchrun.is_quiet() else progress
        return convert_checkpoint(source, output, **asked, progress=shown, ranks=ranks)


def _show_report(
    source: str, report: ConversionReport, asked: dict[str, Any], *, everything: bool, json: bool
) -> None:
    from fsdp_migrate.cli.render.convert import show_conversion, show_verify_command

    if torchrun.is_quiet():
        return
    if json:
        write_document("convert", {"dry_run": False, "report": report.as_dict()})
    else:
        show_conversion(report, everything=everything)
        show_verify_command(source, report.output, asked)


def _show_plan(
    places: tuple[str, str | None],
    given: SourceOptions,
    wanted: dict[str, Any],
    *,
    overwrite: bool,
    resume: bool,
    strict: bool,
    everything: bool,
    json: bool,
) -> None:
    from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
    from fsdp_migrate.checkpoint_convert.convert import with_asked_form, with_side_parts
    from fsdp_migrate.checkpoint_convert.execution.model_folder import with_model_folder
    from fsdp_migrate.checkpoint_convert.outputs.local import check_place
    from fsdp_migrate.checkpoint_convert.planning.merged import check_merged
    from fsdp_migrate.checkpoint_convert.storage.folders import is_url, local_path
    from fsdp_migrate.cli.render.convert import show_plan
    from fsdp_migrate.findings import raise_on_findings

    if torchrun.is_quiet():
        return
    manifest = inspect_checkpoint(places[0], options=with_side_parts(given, wanted["to"]))
    chosen, said = with_asked_form(manifest, wanted["to"], wanted["output_options"], *places)
    plan = plan_conversion(manifest, **{**wanted, "output_options": chosen})
    check_merged(plan.manifest)
    if places[1] is not None and not is_url(places[1]):
        # The real run would stop there, after all the reading.
        keeps = not plan.is_distributed
        where = local_path(places[1])
        check_place(where, plan.manifest.source, overwrite=overwrite, resume=resume, keeps_others=keeps)
    plan = with_model_folder(replace(plan, findings=(*plan.findings, *said)), places[1], overwrite=overwrite)
    raise_on_findings(plan.findings, strict=strict)
    if json:
        write_document("convert", {"dry_run": True, "plan": plan.as_dict()})
    else:
        show_plan(plan, everything=everything)
