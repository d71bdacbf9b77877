"""What a shard plan shows: the tree of units with what each costs, and the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.markup import escape
from rich.tree import Tree

from fsdp_migrate.cli.render.findings import show_findings
from fsdp_migrate.cli.render.screen import console, make_table, print_text
from fsdp_migrate.findings import counted
from fsdp_migrate.forecast.report import PARTS


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.forecast import MemoryForecast
    from fsdp_migrate.sharding.plan import ShardPlan
    from fsdp_migrate.sharding.units import UnitPlan


PEAK_WORDS = (
    "The rank that holds most, at the moment when it holds most; what does not exist at that moment is 0."
)
_MOST_CHILDREN = 8
_NOTABLE = 0.01
_SENT = "per step"


def show_shard_plan(
    plan: ShardPlan,
    forecast: MemoryForecast | None = None,
    *,
    notes: Sequence[str] = (),
    everything: bool = False,
) -> None:
    """Show the units as a tree, what a rank holds, what a step communicates, ties, findings, and memory."""
    out = console()
    replicas, shards = plan.mesh_shape
    out.print(
        f"{counted(len(plan.units), 'unit')} on {counted(replicas * shards, 'rank')}: "
        f"{replicas} x {shards} (replicas x shards)"
    )
    out.print(_tree(plan))
    title, costs = plan_costs(plan, forecast)
    table = make_table(title, "", right=("",))
    for name, size in costs:
        table.add_row(name, decimal(size))
    out.print(table)
    for tie in plan.ties:
        out.print(f"tied: {', '.join(tie.names)}", markup=False)
    if plan.checkpointing is not None:
        out.print(f"recomputed: {counted(len(plan.checkpointing.layers), 'layer')}")
    show_findings([finding.as_dict() for finding in plan.findings], everything=everything)
    for note in notes:
        print_text(out, note)
    if forecast is None:
        out.print(
            "Activations are not counted. `--batch-size N` predicts the peak memory with them, and "
            "`--memory 80GB` says whether it fits."
        )
    else:
        show_forecast(forecast)


def plan_costs(plan: ShardPlan, forecast: MemoryForecast | None) -> tuple[str, list[tuple[str, int]]]:
    """Return the bytes that follow from shapes, under a title; of memory none where it was foretold.

    The sums of shapes are no peak: they have no activations, and count what does not exist at one time.
    Beside a forecast they would be a second, other answer to the same question.
    """
    every = [(name.replace("_", " "), size) for name, size in plan.bytes.as_dict().items()]
    if forecast is None:
        return "on the rank that holds most", every
    return "sent in a step", [(name, size) for name, size in every if name.endswith(_SENT)]


def show_forecast(forecast: MemoryForecast) -> None:
    """Show the peak of a rank by its parts, under FSDP1 and FSDP2, what is not known, and the verdict."""
    out = console()
    names = [name for name, _ in forecast.peaks]
    print_text(out, PEAK_WORDS)
    table = make_table("held at the peak", *names, right=names)
    for title, sizes in forecast.rows():
        table.add_row(title, *("" if size is None else decimal(size) for size in sizes))
    table.add_row("when", *("" if peak is None else peak.phase for _, peak in forecast.peaks))
    out.print(table)
    for note in forecast.notes:
        print_text(out, note)
    print_text(out, forecast_verdict(forecast))


def forecast_verdict(forecast: MemoryForecast) -> str:
    """Say in one line how much memory is taken, and whether it fits.

    Example:
        >>> from fsdp_migrate.forecast import MemoryForecast, PeakMemory
        >>> peak = PeakMemory(phase="backward", parts={"parameters": 3000}, at_rest=3000)
        >>> print(forecast_verdict(MemoryForecast(fsdp1=None, fsdp2=peak, counts_activations=True,
        ...     world_size=2, optimizer="sgd", microbatches=1, limit=2000)))
        Does not fit into 2.0 kB: FSDP2 takes 3.0 kB at its peak.
    """
    taken = [f"{name} {decimal(peak.total)}" for name, peak in reversed(forecast.peaks) if peak is not None]
    if not taken:
        return "Memory is not predicted: neither FSDP2 nor FSDP1 could be simulated."
    at_peak = "at its peak" if forecast.counts_activations else "without activations"
    said = f"{taken[0].replace(' ', ' takes ', 1)} {at_peak}{''.join(f', {each}' for each in taken[1:])}."
    said = f"{said}{_more_than_fsdp1(forecast)}"
    if forecast.limit is None:
        return said
    fits = {True: "Fits into", False: "Does not fit into", None: "It is not known whether it fits into"}
    return f"{fits[forecast.fits]} {decimal(forecast.limit)}: {said}"


def _more_than_fsdp1(forecast: MemoryForecast) -> str:
    """Say what it is that FSDP2 holds more, where it holds more than FSDP1."""
    if forecast.fsdp1 is None or forecast.fsdp2 is None:
        return ""
    before, after = forecast.fsdp1.total, forecast.fsdp2.total
    more = {
        title: size - forecast.fsdp1.parts.get(part, 0)
        for part, title in PARTS.items()
        if (size := forecast.fsdp2.parts.get(part, 0)) > forecast.fsdp1.parts.get(part, 0)
    }
    if after - before < _NOTABLE * before or not more:
        return ""
    return (
        f" FSDP2 takes {decimal(after - before)} more: above all {max(more, key=lambda title: more[title])}."
    )


def _tree(plan: ShardPlan) -> Tree:
    """Hang each unit below the nearest unit above it; many alike are cut short."""
    trees: dict[str, Tree] = {"": Tree(_label(plan.root))}
    counts: dict[str, int] = {}
    for unit in sorted(plan.units[:-1], key=lambda unit: unit.fqn.count(".")):
        above = unit.fqn
        while above not in trees or above == unit.fqn:
            above = above.rpartition(".")[0]
        counts[above] = counts.get(above, 0) + 1
        if counts[above] <= _MOST_CHILDREN:
            trees[unit.fqn] = trees[above].add(_label(unit))
        else:
            trees[unit.fqn] = Tree("")
    for fqn, count in counts.items():
        if count > _MOST_CHILDREN:
            trees[fqn].add(f"[dim]and {count - _MOST_CHILDREN} more[/]")
    return trees[""]


def _label(unit: UnitPlan) -> str:
    names = " + ".join((*unit.grouped, unit.fqn or "(root)"))
    policy = unit.mp_policy
    parts = [counted(unit.numel, "parameter")]
    if unit.bytes is not None:
        parts.append(f"{decimal(unit.bytes.sharded)} sharded, {decimal(unit.bytes.unsharded)} whole")
    if policy.param_dtype:
        parts.append(policy.param_dtype)
    parts.append("freed after forward" if unit.frees_after_forward else "kept after forward")
    return f"[bold]{escape(names)}[/] {escape(unit.module_class)}: {', '.join(parts)}"
