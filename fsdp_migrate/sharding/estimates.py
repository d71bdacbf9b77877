"""What a plan costs: bytes on each rank, and bytes communicated in a step. Pure arithmetic on shapes.

The rules are those of FSDP2 (``_fsdp_param.FSDPParam``, ``_fsdp_collectives``): a parameter of ``r`` rows on
``n`` shards is padded to ``ceil(r / n) * n`` rows; it is gathered in ``param_dtype`` and its gradient reduced
in ``reduce_dtype``, padded; what stays on a rank is in the parameter's own dtype.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

from fsdp_migrate.sharding.resolve import resolve_dtype
from fsdp_migrate.torch_compat.packed_weights import is_packed


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from fsdp_migrate.config import MixedPrecisionPolicy


@dataclass(frozen=True)
class UnitBytes:
    """The bytes of one unit, on the rank that holds most; ``*_per_step`` are the sizes of the collectives.

    ``sharded``: parameters at rest. ``unsharded``: parameters during forward and backward. ``gradients``:
    after backward. ``optimizer_element``: one optimizer state as large as the trained parameters. The
    collectives' sizes are those of the whole tensor on one rank: an all-gather's output, a reduce-scatter's
    input, an all-reduce's tensor.
    """

    sharded: int
    unsharded: int
    gradients: int
    optimizer_element: int
    all_gathered_per_step: int
    reduce_scattered_per_step: int
    all_reduced_per_step: int


@dataclass(frozen=True)
class PlanBytes:
    """The sums of a plan, on the rank that holds most.

    ``unsharded_peak`` counts the parameters that are whole at one time: the root's, and of the others the two
    largest neighbours, since one is prefetched while the other computes; all of them where nothing is freed.
    ``optimizer_state`` is for two states as large as the parameters, as Adam has.
    """

    sharded: int
    unsharded_peak: int
    gradients: int
    optimizer_state: int
    all_gathered_per_step: int
    reduce_scattered_per_step: int
    all_reduced_per_step: int

    def as_dict(self) -> dict[str, int]:
        """Return the sums as plain JSON data."""
        return asdict(self)


def estimate_unit(
    parameters: Iterable[nn.Parameter],
    policy: MixedPrecisionPolicy,
    shape: tuple[int, int],
    *,
    gathers_again: bool,
) -> UnitBytes:
    """Estimate one unit.

    Args:
        parameters: What it manages, whole; on any device.
        policy: Its mixed precision.
        shape: The numbers of replicas and of shards.
        gathers_again: Whether parameters are freed after forward, and so gathered again for backward.

    Example:
        >>> import torch
        >>> from fsdp_migrate.config import MixedPrecisionPolicy
        >>> weight = torch.nn.Parameter(torch.empty(5, 3, device="meta"))
        >>> found = estimate_unit([weight], MixedPrecisionPolicy(), (1, 2), gathers_again=True)
        >>> found.sharded, found.unsharded, found.all_gathered_per_step  # three of six padded rows
        (36, 72, 144)
    """
    replicas, shards = shape
    sharded = unsharded = gradients = reduced = 0
    for parameter in parameters:
        shape_here = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).shape
        local = -(-shape_here[0] // shards) * math.prod(shape_here[1:])
        # Packed weights are never cast: their bytes are no numbers of that dtype.
        cast = None if is_packed(parameter) else resolve_dtype(policy.param_dtype)
        gathered = cast or parameter.dtype
        sharded += local * parameter.dtype.itemsize
        unsharded += local * shards * gathered.itemsize
        if parameter.requires_grad:
            gradients += local * parameter.dtype.itemsize
            reduced += local * shards * (resolve_dtype(policy.reduce_dtype) or gathered).itemsize
    return UnitBytes(
        sharded=sharded,
        unsharded=unsharded,
        gradients=gradients,
        optimizer_element=gradients,
        all_gathered_per_step=unsharded * (2 if gathers_again else 1) if shards > 1 else 0,
        reduce_scattered_per_step=reduced if shards > 1 else 0,
        all_reduced_per_step=reduced // shards if replicas > 1 else 0,
    )


def estimate_plan(units: Sequence[UnitBytes], *, frees: Sequence[bool]) -> PlanBytes:
    """Add up a plan's units, the root last; ``frees`` tells for each whether it is freed after forward."""
    kept = sum(unit.unsharded for unit, freed in zip(units, frees, strict=True) if not freed)
    freed = [unit.unsharded for unit, is_freed in zip(units, frees, strict=True) if is_freed]
    neighbours = [sum(pair) for pair in itertools.pairwise(freed)] or freed
    return PlanBytes(
        sharded=sum(unit.sharded for unit in units),
        unsharded_peak=kept + max(neighbours, default=0),
        gradients=sum(unit.gradients for unit in units),
        optimizer_state=2 * sum(unit.optimizer_element for unit in units),
        all_gathered_per_step=sum(unit.all_gathered_per_step for unit in units),
        reduce_scattered_per_step=sum(unit.reduce_scattered_per_step for unit in units),
        all_reduced_per_step=sum(unit.all_reduced_per_step for unit in units),
    )
