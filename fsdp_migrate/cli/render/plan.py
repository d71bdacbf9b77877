"""What a shard plan shows: the tree of units with what each costs, and the sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal
from rich.markup import escape
from rich.tree import Tree

from fsdp_migrate.cli.render.findings import show_findings
from fsdp_migrate.cli.render.screen import console, make_table
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from fsdp_migrate.sharding.plan import ShardPlan
    from fsdp_migrate.sharding.units import UnitPlan


_MOST_CHILDREN = 8


def show_shard_plan(plan: ShardPlan, *, everything: bool = False) -> None:
    """Show the units as a tree, what a rank holds, what a step communicates, ties and findings."""
    out = console()
    replicas, shards = plan.mesh_shape
    out.print(
        f"{counted(len(plan.units), 'unit')} on {counted(replicas * shards, 'rank')}: "
        f"{replicas} x {shards} (replicas x shards)"
    )
    out.print(_tree(plan))
    table = make_table("on the rank that holds most", "", right=("",))
    for name, size in plan.bytes.as_dict().items():
        table.add_row(name.replace("_", " "), decimal(size))
    out.print(table)
    for tie in plan.ties:
        out.print(f"tied: {', '.join(tie.names)}", markup=False)
    if plan.checkpointing is not None:
        out.print(f"recomputed: {counted(len(plan.checkpointing.layers), 'layer')}")
    show_findings([finding.as_dict() for finding in plan.findings], everything=everything)


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
    parts = [f"{unit.numel:,} parameters"]
    if unit.bytes is not None:
        parts.append(f"{decimal(unit.bytes.sharded)} sharded, {decimal(unit.bytes.unsharded)} whole")
    if policy.param_dtype:
        parts.append(policy.param_dtype)
    parts.append("freed after forward" if unit.frees_after_forward else "kept after forward")
    return f"[bold]{escape(names)}[/] {escape(unit.module_class)}: {', '.join(parts)}"
