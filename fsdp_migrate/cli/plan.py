"""The command ``plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fsdp_migrate.cli.command_help import MEMORY, option, words_of
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import MODEL_HELP, All, Config, Html, Json, Markdown, Strict, Tied


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.forecast import MemoryForecast
    from fsdp_migrate.sharding.plan import ShardPlan


def _check_memory(text: str | None) -> str | None:
    """Refuse what is no size, as wrong usage."""
    from fsdp_migrate.checkpoint_convert.manifest.options import parse_size
    from fsdp_migrate.errors import ConfigError

    try:
        if text is not None:
            parse_size(text, "memory")
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return text


_DEFAULTS = (
    "Without --config these are FSDP1's defaults: no auto-wrap policy, so that the whole model is one unit, "
    "and nothing is cast."
)
Model = Annotated[str, option("PKG.MOD:FACTORY", MODEL_HELP, show_default=False)]
Ranks = Annotated[int, option("N", "The number of ranks.", min=1, show_default=False)]
PerNode = Annotated[int | None, option("N", "The ranks of a node, for HYBRID_SHARD.", min=1)]
TiedOwner = Annotated[Tied, option("WHO", f"Who owns a parameter that units would share: {words_of(Tied)}.")]
Recomputed = Annotated[
    str | None,
    option(
        "CLASSES",
        "The layers to recompute in backward, by class. Default: as the config says.",
        names="--activation-checkpointing",
    ),
]
Memory = Annotated[
    str | None,
    option(
        "SIZE", "Say whether it fits, and exit with 1 if not: 80GB, 80GiB.", MEMORY, callback=_check_memory
    ),
]
Data = Annotated[str | None, option("PKG.MOD:BATCHES", "What gives batches. Default: generated.", MEMORY)]
Loss = Annotated[str | None, option("PKG.MOD:LOSS", "A function of model and batch: the loss.", MEMORY)]
ToOptimize = Annotated[
    str | None,
    option(
        "NAME",
        "adamw, adam, sgd, sgd-momentum, or PKG.MOD:FUNCTION. Default: the factory's, or adamw.",
        MEMORY,
    ),
]
Rows = Annotated[int | None, option("N", "Rows of generated batches.", MEMORY, min=1)]
Length = Annotated[int | None, option("N", "Tokens of each of these rows.", MEMORY, min=1)]
Accumulate = Annotated[int, option("N", "Microbatches of a step; only the last one syncs.", MEMORY, min=1)]


def plan(
    model: Model,
    world_size: Ranks,
    config: Config = None,
    devices_per_node: PerNode = None,
    tied: TiedOwner = Tied.parent,
    activation_checkpointing: Recomputed = None,
    memory: Memory = None,
    batch_size: Rows = None,
    seq_length: Length = None,
    data: Data = None,
    loss: Loss = None,
    optimizer: ToOptimize = None,
    accumulate: Accumulate = 1,
    strict: Strict = False,
    everything: All = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Show what prepare_fully_shard would do to a model, without a GPU or a process group.

    The model is built on the meta device, so that its size does not matter. With
    any option about memory it predicts the peak of a rank, under FSDP1 and FSDP2.
    """
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.pages.plan import plan_report
    from fsdp_migrate.cli.render.plan import show_shard_plan
    from fsdp_migrate.config import FSDP1Config
    from fsdp_migrate.config_files import read_config_file, recomputes_units
    from fsdp_migrate.factories import build_run, factory_notes
    from fsdp_migrate.findings import raise_on_findings
    from fsdp_migrate.sharding.plan import plan_fully_shard

    pages = wanted_pages(html, markdown)
    arguments = FSDP1Config() if config is None else read_config_file(config)
    recomputed: Any = activation_checkpointing
    if recomputed is None and config is not None and arguments.auto_wrap_policy is not None:
        recomputed = recomputes_units(config)
    options = {
        "world_size": world_size,
        "devices_per_node": devices_per_node,
        "tied": tied.value,
        "activation_checkpointing": recomputed,
    }
    built, own_optimizer = build_run(model)
    shard_plan = plan_fully_shard(built, arguments, **options)
    shard_plan, notes = _with_what_the_config_is(shard_plan, config)
    notes = (*factory_notes(model), *notes)
    forecast = None
    if accumulate > 1 or any((memory, batch_size, seq_length, data, loss, optimizer)):
        named = {"batches": data, "loss": loss, "optimizer": optimizer}
        sizes = {"batch_size": batch_size, "seq_length": seq_length, "accumulate": accumulate}
        forecast = _foretell(built, own_optimizer, arguments, memory, named, {**options, **sizes})
    if json:
        told = None if forecast is None else forecast.as_dict()
        write_document("plan", {**shard_plan.as_dict(), "memory": told, "notes": list(notes)})
    else:
        show_shard_plan(shard_plan, forecast, notes=notes, everything=everything)
    given = None if config is None else str(config)
    pages.write(lambda: plan_report(shard_plan, forecast, model=model, config=given, notes=notes), aside=json)
    raise_on_findings(shard_plan.findings, strict=strict)
    # Also where it is not known (None): 0 says that it fits.
    return 1 if forecast is not None and forecast.limit is not None and not forecast.fits else 0


def _with_what_the_config_is(plan: ShardPlan, config: Path | None) -> tuple[ShardPlan, tuple[str, ...]]:
    """Return the plan with a finding where the config is FSDP2's already, and what else there is to say."""
    from dataclasses import replace

    from fsdp_migrate.config_notes import already_fsdp2, framework_notes

    if config is None:
        return plan, (_DEFAULTS,)
    found = already_fsdp2(config)
    if found is not None:
        plan = replace(plan, findings=(found, *plan.findings))
    return plan, framework_notes(config)


def _foretell(
    built: Any,
    own_optimizer: Any,
    arguments: FSDP1Config,
    memory: str | None,
    named: dict[str, str | None],
    options: dict[str, Any],
) -> MemoryForecast:
    """Foretell the memory of the model that was built, with functions that are named."""
    from fsdp_migrate.checkpoint_convert.manifest.options import parse_size
    from fsdp_migrate.cli.render.progress import say
    from fsdp_migrate.factories import load_function
    from fsdp_migrate.forecast import forecast_memory

    functions: dict[str, Any] = {
        "batches": None if (data := named["batches"]) is None else load_function(data, "data"),
        "loss": None if (loss := named["loss"]) is None else load_function(loss, "loss"),
    }
    chosen: Any = named["optimizer"]
    if chosen is not None and ":" in chosen:
        chosen = load_function(chosen, "optimizer")
    say("two steps are simulated on tensors without memory, under FSDP2 and under FSDP1")
    return forecast_memory(
        built,
        arguments,
        optimizer=chosen or own_optimizer or "adamw",
        limit=None if memory is None else parse_size(memory, "memory"),
        device="cpu" if str(arguments.device_id).startswith("cpu") else "cuda",
        **functions,
        **options,
    )
