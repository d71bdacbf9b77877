"""The command ``parity``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

from fsdp_migrate.cli import torchrun
from fsdp_migrate.cli.command_help import SOURCE, TRAINED, flag, option, words_of
from fsdp_migrate.cli.document import write_document
from fsdp_migrate.cli.options import MODEL_HELP, All, Config, Html, Json, Markdown, Strict


if TYPE_CHECKING:
    from fsdp_migrate.parity import ParityReport
    from fsdp_migrate.parity.start import Recipe


class Device(str, Enum):
    """Where both runs train."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Model = Annotated[str, option("PKG.MOD:FACTORY", MODEL_HELP, show_default=False)]
Data = Annotated[
    str | None,
    option(
        "PKG.MOD:BATCHES",
        "What gives batches: each a dict, a tuple or one of the model's inputs. Default: generated.",
        TRAINED,
    ),
]
Loss = Annotated[
    str | None,
    option(
        "PKG.MOD:LOSS",
        "A function of model and batch that gives the loss. Default: what the model returns.",
        TRAINED,
    ),
]
MakesOptimizer = Annotated[
    str | None,
    option(
        "PKG.MOD:OPTIMIZER",
        "A function of the model that gives its optimizer. Default: the factory's, or AdamW.",
    ),
]
Rows = Annotated[int | None, option("N", "Rows of generated batches. Default: 2.", TRAINED, min=1)]
Length = Annotated[int | None, option("N", "Tokens of each of these rows. Default: 8.", TRAINED, min=1)]
Where = Annotated[Device, option("WHERE", f"Where to train: {words_of(Device)}.")]
Checkpoint = Annotated[str | None, option("CKPT", "Both start from this checkpoint.", SOURCE)]
WeightsOnly = Annotated[bool, flag("--weights-only", "Load no optimizer state from the checkpoint.", SOURCE)]


def parity(
    model: Model,
    config: Config = None,
    data: Data = None,
    loss: Loss = None,
    optimizer: MakesOptimizer = None,
    batch_size: Rows = None,
    seq_length: Length = None,
    steps: Annotated[int, option("N", "How many steps to train.", min=1)] = 4,
    ranks: Annotated[int, option("N", "How many processes to start.", min=1)] = 2,
    device: Where = Device.auto,
    checkpoint: Checkpoint = None,
    weights_only: WeightsOnly = False,
    seed: Annotated[int, option("N", "The seed of the random numbers.")] = 0,
    strict: Strict = False,
    everything: All = False,
    html: Html = None,
    markdown: Markdown = None,
    json: Json = False,
) -> int:
    """Train a model of your own under FSDP1 and FSDP2 for some steps, and compare every tensor.

    Needs no GPU. Exits with 1 if something differs that no finding
    explains, and names where the runs part first.
    """
    from fsdp_migrate.cli.pages.output import wanted_pages
    from fsdp_migrate.cli.pages.parity import parity_report
    from fsdp_migrate.cli.render.parity import show_parity
    from fsdp_migrate.cli.render.progress import say
    from fsdp_migrate.errors import ConfigError
    from fsdp_migrate.parity.start import Recipe, run_parity

    if torchrun.is_shared():
        raise ConfigError(
            "`parity` starts its ranks itself. Run it without torchrun, or call `fsdp_migrate.compare_runs` "
            "in a script of your own.",
            field="ranks",
        )
    recipe = Recipe(
        model=model,
        config=None if config is None else str(config),
        data=data,
        loss=loss,
        optimizer=optimizer,
        checkpoint=checkpoint,
        weights_only=weights_only,
        batch_size=batch_size,
        seq_length=seq_length,
        steps=steps,
        seed=seed,
        device=device.value,
    )
    pages = wanted_pages(html, markdown)
    report = _with_what_stops(run_parity(recipe, ranks=ranks, on_phase=say), recipe)
    if json:
        write_document("parity", report.as_dict())
    else:
        show_parity(report, everything=everything)
    pages.write(lambda: parity_report(report, recipe), aside=json)
    if report.identical:
        return 0
    if not report.is_explained:
        return 1
    return 3 if strict else 0


def _with_what_stops(report: ParityReport, recipe: Recipe) -> ParityReport:
    """Return the report with notes: of the model, and of a framework's FSDP2 that would not run it."""
    from dataclasses import replace

    from fsdp_migrate.doctor import look, stops_in_framework
    from fsdp_migrate.errors import FSDPMigrateError
    from fsdp_migrate.factories import factory_notes

    report = replace(report, notes=(*report.notes, *factory_notes(recipe.model)))
    if recipe.config is None:
        return report
    try:
        said = stops_in_framework(look(model=recipe.model, config=recipe.config))
    except FSDPMigrateError:  # a model that cannot be made without memory, say: the ranks have made it
        return report
    return replace(report, notes=(*report.notes, said)) if said else report
