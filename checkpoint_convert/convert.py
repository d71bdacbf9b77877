"""Inspect, plan and execute in one call."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.arguments import (
    FLAG,
    FUNCTION,
    NOTHING,
    PATH,
    TEXT,
    check_arguments,
    instance_of,
    whole_number_from,
)
from fsdp_migrate.checkpoint_convert.execution.execute import DEFAULT_BUFFER, ConversionReport, execute_plan
from fsdp_migrate.checkpoint_convert.execution.model_folder import with_model_folder
from fsdp_migrate.checkpoint_convert.inspect import inspect_checkpoint
from fsdp_migrate.checkpoint_convert.loading.advice import advise_loading
from fsdp_migrate.checkpoint_convert.manifest.options import OutputOptions, SourceOptions
from fsdp_migrate.checkpoint_convert.planning.plan import plan_conversion
from fsdp_migrate.checkpoint_convert.sources.config_beside import asked_forms
from fsdp_migrate.checkpoint_convert.storage.errors import within_limits
from fsdp_migrate.checkpoint_convert.targets.accelerate import is_full_form
from fsdp_migrate.errors import OutputError
from fsdp_migrate.findings import Finding, make_finding, named, raise_on_findings


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.execution.ranks import Ranks
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.checkpoint_convert.manifest.options import StateDictForm
    from fsdp_migrate.checkpoint_convert.storage.folders import Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


_CONFIG_WORDS: Final = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}

# Lightning's own file has that name, and is not made of it (FM281).
_WITHOUT_SIDE_FILE: Final = frozenset({"accelerate", "hf", "torchtitan"})


@within_limits("convert the checkpoint")
def convert_checkpoint(
    src: Location,
    dst: Location | None = None,
    *,
    to: str = "auto",
    world_size: int | None = None,
    dtype: object = None,
    optimizer_dtype: object = None,
    weights_only: bool = False,
    without_optimizer: bool = False,
    link: str = "auto",
    overwrite: bool = False,
    resume: bool = False,
    checksums: bool = False,
    buffer_bytes: int = DEFAULT_BUFFER,
    progress: Progress | None = None,
    strict: bool = False,
    options: SourceOptions | None = None,
    output_options: OutputOptions | None = None,
    ranks: Ranks | None = None,
) -> ConversionReport:
    """Convert a checkpoint of an FSDP1 run into one that FSDP2 loads.

    The source is never changed. The output is there whole or not at all. Nothing of a checkpoint is executed.
    The cheapest way that is right is taken: nothing where the checkpoint already loads as it is; new metadata
    over the same data files where names change; new data files where chunks or types change.

    Args:
        src: A folder that torch.distributed.checkpoint or Composer wrote, a file of torch.save or
            safetensors, a folder of such files that belong together, or an fsspec URL of one of these.
        dst: The folder to make. None asks whether one is needed: it is an error if it is.
        to: The framework that is to load the result: ``"torch"``, ``"composer"``, ``"accelerate"`` (also for
            the HF Trainer), ``"lightning"``, ``"torchtitan"``, ``"hf"``, or ``"auto"`` for the one of the
            source.
        world_size: Divide sharded tensors as ``fully_shard`` does on so many ranks.
        dtype: Cast the weights of models to ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        optimizer_dtype: Cast the state of optimizers.
        weights_only: Keep the model and leave the rest out.
        without_optimizer: Leave optimizers out and keep the rest.
        link: ``"hard"`` links data files, ``"copy"`` copies them, ``"auto"`` links where it can be done.
        overwrite: Replace an output that is there, once the new one is whole, and what is left of an
            interrupted conversion.
        resume: Go on where an interrupted conversion stopped, if there was one.
        checksums: Also write ``SHA256SUMS``, the checksum of each file.
        buffer_bytes: How much of the data is held in memory at once, over all threads.
        progress: Called with a :class:`ProgressEvent` now and then.
        strict: Refuse where something would differ that a user could notice.
        options: What the source does not say itself: the model, or the names behind an optimizer's numbers.
        output_options: What else there is to say about the output, such as the size of its files.
        ranks: The ranks that share the work, as ``join_ranks`` gives them under torchrun; each of them makes
            this same call inside ``with ranks:``. None does it alone.

    Raises:
        CheckpointError: The source cannot be read or converted, or the output not be written; see ``errors``.
        FindingsError: Under ``strict``, something would change.
        ConfigError: An argument is none of its words, or ``dst`` is missing.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> source = "tests/checkpoint/data/torch-2.15.0/plain.dcp"
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = convert_checkpoint(source, Path(folder, "out"), world_size=4)
        >>> report.action
        'rewrite'
    """
    # Before anything is read, which may take long.
    check_arguments(PATH | NOTHING, dst=dst)
    check_arguments(FLAG, overwrite=overwrite, resume=resume, checksums=checksums, strict=strict)
    check_arguments(whole_number_from(0), buffer_bytes=buffer_bytes)
    check_arguments(FUNCTION | NOTHING, progress=progress)
    check_arguments(instance_of(OutputOptions) | NOTHING, output_options=output_options)
    manifest = inspect_checkpoint(src, options=with_side_parts(options, to))
    output_options, said = with_asked_form(manifest, to, output_options, src, dst)
    plan = plan_conversion(
        manifest,
        to=to,
        world_size=world_size,
        dtype=dtype,
        optimizer_dtype=optimizer_dtype,
        weights_only=weights_only,
        without_optimizer=without_optimizer,
        link=link,
        output_options=output_options,
    )
    plan = with_model_folder(replace(plan, findings=(*plan.findings, *said)), dst, overwrite=overwrite)
    raise_on_findings(plan.findings, strict=strict)
    if dst is not None:
        return execute_plan(
            plan,
            dst,
            overwrite=overwrite,
            resume=resume,
            checksums=checksums,
            buffer_bytes=buffer_bytes,
            progress=progress,
            ranks=ranks,
        )
    if plan.action != "none":
        as_it_is = advise_loading(manifest).by_framework if to == "auto" else None
        need = f"has to be converted ({plan.action}), and no"
        need = f"need not be converted. {as_it_is} No" if as_it_is else need
        msg = f"{manifest.source!r} {need} output was named. The source is never changed in place."
        raise OutputError(msg, path=manifest.source)
    return ConversionReport(plan, "none", None, 0, 0, plan.findings)


def with_side_parts(options: SourceOptions | None, to: str) -> SourceOptions | None:
    """Ask for what Fabric keeps beside a folder where a framework is to load it that reads no such file.

    Args:
        options: What the user says about the source.
        to: The framework that is to load the result.

    Raises:
        ConfigError: ``to`` is no text.

    Example:
        >>> with_side_parts(None, "accelerate").side_parts, with_side_parts(None, "torch")
        (True, None)
    """
    check_arguments(TEXT, to=to)
    return replace(options or SourceOptions(), side_parts=True) if to in _WITHOUT_SIDE_FILE else options


def with_asked_form(
    manifest: Manifest, to: str, options: OutputOptions | None, src: Location, dst: Location | None
) -> tuple[OutputOptions, tuple[Finding, ...]]:
    """Say which form Accelerate is to open, where that is left to a config beside the checkpoint or above it.

    Args:
        manifest: The source.
        to: The framework that is to load the result.
        options: What the user says about the output.
        src: Where the source lies.
        dst: Where the output will.

    Returns:
        The options, and what there is to say where a config asks for another form.
    """
    options = options or OutputOptions()
    if (manifest.framework if to == "auto" else to) != "accelerate":
        return options, ()
    above = [None if place is None else _above(place) for place in (dst, src)]
    says = asked_forms(place for place in (above[0], src, above[1]) if place is not None)
    if options.state_dict_type == "auto":
        # Where configs differ, nothing tells which of them the run has.
        own: StateDictForm = "full" if is_full_form(manifest) else "sharded"
        options = replace(options, state_dict_type=next(iter(says.values())) if _agree(says) else own)
    written = options.state_dict_type
    others = [name for name, form in says.items() if form != written]
    if not others:
        return options, ()
    which, word = _CONFIG_WORDS["sharded" if written == "full" else "full"], _CONFIG_WORDS[written]
    finding = make_finding(
        "FM288",
        "fsdp_state_dict_type",
        f"{named(others)}: {which}. The output has the form of {word}.",
        f"Set `fsdp_state_dict_type: {word}` in the config (`state_dict_type` in the HF Trainer's "
        "`fsdp_config`) before the run is resumed, or ask for the other form with `state_dict_type` "
        "(--state-dict-type).",
    )
    return options, (finding,)


def _above(place: Location) -> str:
    return os.path.dirname(os.fspath(place).rstrip("/")) or "."  # noqa: PTH120  # may be a URL


def _agree(says: Mapping[str, str]) -> bool:
    return len(set(says.values())) == 1
