"""The report of ``plan``: the units, what a rank holds, ties and findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.cli.pages.parts import action_words, findings_tables, make_report, size
from fsdp_migrate.cli.pages.units import unit_tree
from fsdp_migrate.cli.render.plan import PEAK_WORDS, forecast_verdict, plan_costs
from fsdp_migrate.findings import counted, named
from fsdp_migrate.report.model import Facts, Name, Notes, Table


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.forecast import MemoryForecast
    from fsdp_migrate.report.model import Cell, Report
    from fsdp_migrate.sharding.plan import ShardPlan


def plan_report(
    plan: ShardPlan,
    forecast: MemoryForecast | None = None,
    *,
    model: str,
    config: str | None,
    notes: Sequence[str] = (),
) -> Report:
    """Return the report of a plan.

    Args:
        plan: The plan.
        forecast: The memory that it takes; None: there is none.
        model: What made the model.
        config: The file with FSDP1's arguments; None: its defaults.
        notes: What else is to be said of that file.
    """
    findings = [finding.as_dict() for finding in plan.findings]
    said, tone = action_words(findings)
    replicas, shards = plan.mesh_shape
    ranks = counted(replicas * shards, "rank")
    title, costs = plan_costs(plan, forecast)
    rows = tuple((name, size(nbytes)) for name, nbytes in costs)
    sections = (
        Facts("What was planned", tuple(_facts(plan, forecast, model, config))),
        *_memory(forecast),
        Notes("The framework's own FSDP2", tuple(notes)) if notes else None,
        Table(f"Bytes {title}", ("what", "bytes"), rows, numbers=frozenset({"bytes"})),
        unit_tree([unit.summary for unit in plan.units]),
        _ties(plan),
        *findings_tables(findings),
    )
    verdict = f"{counted(len(plan.units), 'unit')} on {ranks}: {said}."
    if forecast is not None:
        verdict += f" {forecast_verdict(forecast)}"
        tone = tone if forecast.limit is None or forecast.fits else "bad"
    return make_report("fsdp-migrate plan", verdict, tone, sections, {})


def _memory(forecast: MemoryForecast | None) -> Iterator[Table | Notes]:
    if forecast is None:
        return
    names = [name for name, _ in forecast.peaks]
    rows = [
        (title, *("" if each is None else size(each) for each in sizes)) for title, sizes in forecast.rows()
    ]
    when = ", ".join(f"{name} in {peak.phase}" for name, peak in forecast.peaks if peak is not None)
    intro = f"{PEAK_WORDS} That is: {when}."
    yield Table("Forecast of memory", ("what", *names), tuple(rows), intro, frozenset(names))
    yield Notes("What the forecast does not know", forecast.notes)


def _facts(
    plan: ShardPlan, forecast: MemoryForecast | None, model: str, config: str | None
) -> Iterator[tuple[str, Cell]]:
    replicas, shards = plan.mesh_shape
    yield "model", Name(model)
    yield "arguments of FSDP1", Name(config) if config else "its defaults"
    yield "replicas x shards", f"{replicas:,} x {shards:,}"
    yield "parameters", f"{sum(unit.numel for unit in plan.units):,}"
    if plan.checkpointing is not None:
        yield "recomputed in backward", counted(len(plan.checkpointing.layers), "layer")
    if forecast is not None:
        yield "optimizer", Name(forecast.optimizer)
        yield "microbatches of a step", f"{forecast.microbatches:,}"
    if plan.ignored:
        yield "ignored", named(plan.ignored, 20)
    if plan.full_precision:
        yield "in full precision", named(plan.full_precision, 20)


def _ties(plan: ShardPlan) -> Table | None:
    if not plan.ties:
        return None
    rows = tuple(
        (named(tie.names, 20), named([unit or "(root)" for unit in tie.units], 20)) for tie in plan.ties
    )
    return Table("Tied parameters", ("one parameter under these names", "in these units"), rows)
