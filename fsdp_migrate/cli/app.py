"""The commands: from options to library calls to :mod:`fsdp_migrate.cli.render`. No logic of their own.

The library is imported inside the commands, so that ``--help`` does not wait for torch.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsdp_migrate.cli import sources
from fsdp_migrate.cli.config_command import config
from fsdp_migrate.cli.document import write_document


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert import OutputOptions, SourceOptions


app = typer.Typer(
    name="fsdp-migrate",
    help="Move a training run from PyTorch FSDP1 to FSDP2, with nothing dropped silently.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Target(str, Enum):
    """Who is to read the output."""

    auto = "auto"
    torch = "torch"
    composer = "composer"
    accelerate = "accelerate"
    lightning = "lightning"
    torchtitan = "torchtitan"
    hf = "hf"


class DType(str, Enum):
    """The dtype of floating-point values in the output."""

    keep = "keep"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Link(str, Enum):
    """How data files that stay the same get into the output."""

    auto = "auto"
    hard = "hard"
    copy = "copy"


class Tied(str, Enum):
    """Which unit owns a tied parameter."""

    parent = "parent"
    group = "group"


def _check_size(text: str) -> str:
    """Refuse what is no size, as wrong usage."""
    from fsdp_migrate.checkpoint_convert.output_options import parse_size
    from fsdp_migrate.errors import ConfigError

    try:
        parse_size(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _check_renames(texts: list[str] | None) -> list[str] | None:
    """Refuse what is no rename, as wrong usage."""
    from fsdp_migrate.checkpoint_convert.keys import parse_rename
    from fsdp_migrate.errors import ConfigError

    try:
        for text in texts or ():
            parse_rename(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return texts


Checkpoint = Annotated[str, typer.Argument(metavar="CKPT", help="The checkpoint.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout, not a report.")]


RankCount = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Divide tensors as fully_shard on N ranks does.")
]
SourceModel = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="PKG.MOD:FACTORY", help="What makes the model that was saved. It is run."
    ),
]
Output = Annotated[str | None, typer.Argument(metavar="OUT", help="The folder to make.", show_default=False)]
ShardSize = Annotated[
    str,
    typer.Option(
        metavar="SIZE", help="For hf: how large a file may be, such as 5GB or 512MiB.", callback=_check_size
    ),
]
OptimizerClass = Annotated[
    str | None, typer.Option(metavar="NAME", help="For composer: the class of the optimizer.")
]
Rename = Annotated[
    list[str] | None,
    typer.Option(
        metavar="REGEX=NAME",
        help="Change names of parameters, as re.sub does; repeatable.",
        callback=_check_renames,
    ),
]
Checksums = Annotated[bool, typer.Option("--checksums", help="Also write SHA256SUMS, which verify checks.")]
TrustPickle = Annotated[
    bool, typer.Option("--trust-pickle", help="Carry objects of unknown classes over, unread.")
]


SourceConfig = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="YAML or JSON: the keyword arguments of the FSDP1 that saved it."
    ),
]


def _source_options(model: str | None, config: Path | None, trust_pickle: bool) -> SourceOptions:
    """Return what the command line says about a source; a model is built on the meta device for it."""
    from fsdp_migrate.checkpoint_convert.source_options import SourceOptions

    outline = None
    if model is not None:
        from fsdp_migrate.config_files import read_config_file
        from fsdp_migrate.factories import build_run
        from fsdp_migrate.outlines import outline_model

        built, optimizer = build_run(model)
        arguments = None if config is None else read_config_file(config)
        outline = outline_model(built, arguments, optimizer=optimizer)
    elif config is not None:
        from fsdp_migrate.errors import ConfigError

        raise ConfigError("`--config` needs `--model`: the arguments flatten its parameters.", field="config")
    return SourceOptions(model=outline, trust_pickle=trust_pickle)


def _output_options(
    max_shard_size: str, optimizer_class: str | None, renames: list[str] | None
) -> OutputOptions:
    """Return what the command line says about an output."""
    from fsdp_migrate.checkpoint_convert.output_options import OutputOptions, parse_size

    return OutputOptions(optimizer_class, parse_size(max_shard_size), tuple(renames or ()))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fsdp-migrate {version('fsdp-migrate')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Move a training run from PyTorch FSDP1 to FSDP2, with nothing dropped silently."""
    del version


@app.command()
def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Keep the checkpoints in this new or empty folder."),
    ] = None,
    world_size: Annotated[int, typer.Option(min=1, help="How many processes to start.")] = 2,
    steps: Annotated[int, typer.Option(min=2, help="How many steps to train.")] = 10,
    json: Json = False,
) -> int:
    """Watch a real FSDP1 run stop, its checkpoint convert, and the run go on under FSDP2.

    Needs no GPU. Exits with 1 if a bit of the losses, the parameters or the optimizer state differs.
    """
    from fsdp_migrate.cli import render, render_demo
    from fsdp_migrate.demo import run_demo

    report = run_demo(folder, world_size=world_size, num_steps=steps, on_phase=render.say)
    if json:
        write_document("demo", report.as_dict())
    else:
        render_demo.show_demo(report)
    return 0 if report.identical else 1


@app.command()
def inspect(
    source: Checkpoint,
    deep: Annotated[bool, typer.Option("--deep", help="Also read and check every stored item.")] = False,
    model: SourceModel = None,
    config: SourceConfig = None,
    trust_pickle: TrustPickle = False,
    json: Json = False,
) -> int:
    """Show what a checkpoint is, what it holds, and whether FSDP2 loads it as it is."""
    from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
    from fsdp_migrate.cli import render
    from fsdp_migrate.errors import PlanError

    given = _source_options(model, config, trust_pickle)
    with render.progress("Checking") as progress:
        manifest = inspect_checkpoint(source, deep=deep, options=given, progress=progress)
    try:
        plan, problem = plan_conversion(manifest), None
    except PlanError as error:
        plan, problem = None, error
    if json:
        conversion = plan.as_dict() if plan else {"error": str(problem)}
        write_document("inspect", {"manifest": manifest.as_dict(), "conversion": conversion})
    else:
        render.show_manifest(manifest)
        render.show_outlook(manifest, plan, problem)
    return 0


@app.command()
def convert(
    source: Checkpoint,
    output: Output = None,
    to: Annotated[Target, typer.Option(help="Who is to read the output.")] = Target.auto,
    world_size: RankCount = None,
    dtype: Annotated[DType, typer.Option(help="The dtype of model weights.")] = DType.keep,
    optimizer_dtype: Annotated[DType, typer.Option(help="The dtype of optimizer state.")] = DType.keep,
    weights_only: Annotated[bool, typer.Option("--weights-only", help="Only the model.")] = False,
    max_shard_size: ShardSize = "5GB",
    optimizer_class: OptimizerClass = None,
    rename: Rename = None,
    model: SourceModel = None,
    config: SourceConfig = None,
    trust_pickle: TrustPickle = False,
    link: Annotated[Link, typer.Option(help="How unchanged data files get into OUT.")] = Link.auto,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted conversion.")] = False,
    checksums: Checksums = False,
    buffer: Annotated[int, typer.Option(min=1, metavar="MIB", help="How many MiB to hold at once.")] = 64,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and write nothing.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if anything would change.")] = False,
    json: Json = False,
) -> int:
    """Convert a checkpoint of an FSDP1 run into one that FSDP2 loads.

    CKPT is never written to. OUT appears whole or not at all. Without OUT
    the answer is whether FSDP2 loads CKPT as it is. Under torchrun the
    work is divided over the ranks, and rank 0 reports.
    """
    from fsdp_migrate.checkpoint_convert import convert_checkpoint
    from fsdp_migrate.cli import render, torchrun

    wanted: dict[str, Any] = {
        "to": to.value,
        "world_size": world_size,
        "dtype": dtype.value,
        "optimizer_dtype": optimizer_dtype.value,
        "weights_only": weights_only,
        "link": link.value,
        "output_options": _output_options(max_shard_size, optimizer_class, rename),
    }
    given = _source_options(model, config, trust_pickle)
    if dry_run:
        _show_plan(source, given, wanted, strict=strict, json=json)
        return 0
    with torchrun.shared_ranks() as ranks, render.progress("Converting") as progress:
        report = convert_checkpoint(
            source,
            output,
            **wanted,
            overwrite=overwrite,
            resume=resume,
            checksums=checksums,
            buffer_bytes=buffer << 20,
            progress=None if torchrun.is_quiet() else progress,
            strict=strict,
            options=given,
            ranks=ranks,
        )
    if json and not torchrun.is_quiet():
        write_document("convert", {"dry_run": False, "report": report.as_dict()})
    elif not torchrun.is_quiet():
        render.show_conversion(report)
        asked = {**wanted, "rename": rename, "model": model, "config": config, "trust_pickle": trust_pickle}
        render.show_verify_command(source, report.output, asked)
    return 0


def _show_plan(
    source: str, given: SourceOptions, wanted: dict[str, Any], *, strict: bool, json: bool
) -> None:
    from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
    from fsdp_migrate.cli import render, torchrun
    from fsdp_migrate.findings import raise_on_findings

    if torchrun.is_quiet():
        return
    plan = plan_conversion(inspect_checkpoint(source, options=given), **wanted)
    raise_on_findings(plan.findings, strict=strict)
    if json:
        write_document("convert", {"dry_run": True, "plan": plan.as_dict()})
    else:
        render.show_plan(plan)


@app.command()
def verify(
    first: Annotated[str, typer.Argument(metavar="A", help="A checkpoint.", show_default=False)],
    second: Annotated[str | None, typer.Argument(metavar="B", help="Another.", show_default=False)] = None,
    rename: Rename = None,
    dtype: Annotated[DType, typer.Option(help="The dtype that A's weights were cast to.")] = DType.keep,
    optimizer_dtype: Annotated[DType, typer.Option(help="The same for optimizer state.")] = DType.keep,
    weights_only: Annotated[bool, typer.Option("--weights-only", help="Only the model.")] = False,
    model: SourceModel = None,
    config: SourceConfig = None,
    trust_pickle: TrustPickle = False,
    json: Json = False,
) -> int:
    """Check one checkpoint in itself, or two and compare them bit for bit, however they are divided.

    Reads every stored item. Exits with 1 if one is damaged, or if the two
    differ. What the conversion of A into B was asked to change is given
    here too, and is done to A before it is compared.
    """
    from fsdp_migrate.cli import render

    wanted: dict[str, Any] = {
        "renames": tuple(rename or ()),
        "dtype": dtype.value,
        "optimizer_dtype": optimizer_dtype.value,
        "weights_only": weights_only,
    }
    given = _source_options(model, config, trust_pickle)
    if second is None:
        from fsdp_migrate.checkpoint_convert import check_checkpoint

        _refuse_wishes(wanted)
        with render.progress("Checking") as progress:
            checked = check_checkpoint(first, progress=progress, options=given)
        if json:
            write_document("verify", checked.as_dict())
        else:
            render.show_check(checked)
        return 0 if checked.is_whole else 1
    from fsdp_migrate.checkpoint_convert import verify_checkpoints

    with render.progress("Comparing") as progress:
        report = verify_checkpoints(first, second, **wanted, options=given, progress=progress)
    if json:
        write_document("verify", report.as_dict())
    else:
        render.show_verification(report)
    return 0 if report.is_same else 1


def _refuse_wishes(wanted: dict[str, Any]) -> None:
    """Refuse what says how two checkpoints differ where there is one."""
    from fsdp_migrate.errors import ConfigError

    for name, value in wanted.items():
        if value not in ((), False, DType.keep.value):
            option = "--" + name.removesuffix("s").replace("_", "-")
            raise ConfigError(f"`{option}` is for comparing: name the second checkpoint too.", field=name)


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Option(metavar="PKG.MOD:FACTORY", help="What makes the model. It is run.", show_default=False),
    ],
    world_size: Annotated[
        int, typer.Option(min=1, metavar="N", help="The number of ranks.", show_default=False)
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML or JSON: the keyword arguments of FSDP1."),
    ] = None,
    devices_per_node: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The ranks of a node, for HYBRID_SHARD.")
    ] = None,
    tied: Annotated[Tied, typer.Option(help="Who owns a parameter that units would share.")] = Tied.parent,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 if anything would change.")] = False,
    json: Json = False,
) -> int:
    """Show what prepare_fully_shard would do to a model, without a GPU or a process group.

    The model is built on the meta device, so that its size does not matter.
    """
    from fsdp_migrate.cli import render_plan
    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.config_files import read_config_file
    from fsdp_migrate.factories import build_model
    from fsdp_migrate.findings import raise_on_findings
    from fsdp_migrate.plan import plan_fully_shard

    arguments = FSDP1Config() if config is None else read_config_file(config)
    shard_plan = plan_fully_shard(
        build_model(model),
        arguments,
        world_size=world_size,
        devices_per_node=devices_per_node,
        tied=tied.value,
    )
    if json:
        write_document("plan", shard_plan.as_dict())
    else:
        render_plan.show_shard_plan(shard_plan)
    raise_on_findings(shard_plan.findings, strict=strict)
    return 0


app.command()(config)
sources.register(app)
