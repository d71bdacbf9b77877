"""What is known of memory without a forward: what units hold while they are gathered and reduced."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from fsdp_migrate.forecast.rehearsal import Which
    from fsdp_migrate.sharding.plan import ShardPlan


def gathered_and_reduced(plan: ShardPlan, which: Which, *, accumulates: bool) -> dict[str, int]:
    """Return the bytes of gathered units, and of whole gradients with the buffers that reduce them.

    Counted are the units that are whole at one time, with the buffer of FSDP2 that the largest is gathered
    into; and the largest whole gradients with their copy in the dtype of the reduction, or under accumulation
    those of all units.
    """
    units = [unit.bytes for unit in plan.units if unit.bytes is not None]
    # FSDP2 gathers into a buffer, and copies out of it.
    buffer = max((unit.unsharded for unit in units if unit.all_gathered_per_step), default=0)
    reduced = [max(unit.reduce_scattered_per_step, unit.all_reduced_per_step) for unit in units]
    whole = [min(unit.unsharded, size) for unit, size in zip(units, reduced, strict=True)]
    held = sum(reduced if which == "FSDP2" else whole) if accumulates else max(whole, default=0)
    return {
        "gathered": plan.bytes.unsharded_peak + (buffer if which == "FSDP2" else 0),
        "reducing": held + max(reduced, default=0),
    }
