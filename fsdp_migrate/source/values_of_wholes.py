"""What is said of functions of all values of parameters, as sums, norms and comparisons are.

Measured with torch 2.7 and 2.13 on two ranks: most give a DTensor, of which ``.full_tensor()`` is that of the
whole. Some are refused by each torch, ``torch.equal`` gives each rank the whole's answer, and
``vector_to_parameters`` changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.no_shard import chooses_no_shard
from fsdp_migrate.source.python.nodes import last_name


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


STATISTIC: Final = (
    "this was of one rank's part of a flat parameter, and comes as a DTensor now: .full_tensor() of it, on "
    "every rank, is that of the whole, and not to be summed over the ranks that share it again; .to_local() "
    "of what it is made of is this rank's rows: of FSDP2's parts the sum over the ranks is that of FSDP1's, "
    "and what one rank has is not."
)
STATISTIC_OR_WHOLE: Final = (
    "this was of one rank's part of a flat parameter, or under NO_SHARD of the whole, and comes as a DTensor "
    "now: for what it was, take .to_local() of what it is made of, which NO_SHARD leaves whole; "
    ".full_tensor() of it, on every rank, is that of the whole, not to be summed over the ranks again."
)
REFUSED_VALUES: Final = (
    "torch takes no DTensors here, and raises: give it .to_local() of each, this rank's part, as FSDP1's "
    "was, or .full_tensor() of each, the whole, on every rank."
)
_EQUAL: Final = (
    "of DTensors this asks all ranks, and tells each whether the whole is equal; FSDP1's told of this rank's "
    "part. For that give it .to_local() of both, also where one rank alone comes, which would wait for all."
)
_VECTOR: Final = (
    "this assigns .data of each parameter, which does not reach a DTensor, without an error. Make the vector "
    "of this rank's parts, torch.cat([p.detach().to_local().reshape(-1) for p in params]), and write each "
    "back by p.data.to_local().copy_(part.view_as(p.to_local()))."
)
_BY_VALUE: Final = frozenset({"isfinite", "isinf", "isnan"})
_FOR_EACH: Final = frozenset({"masked_fill", "masked_fill_", "where"})
_DEEPEST: Final = 2
_OTHERS: Final = {
    "equal": _EQUAL,
    "vector_to_parameters": _VECTOR,
    **dict.fromkeys(
        (
            *("allclose", "histogram", "lstsq", "nonzero", "pca_lowrank", "renorm", "svd_lowrank", "unique"),
            "unique_consecutive",
        ),
        REFUSED_VALUES,
    ),
}


def said_of_values(source: Source, call: cst.Call, name: str) -> str:
    """Return what is said of a function, or of a method, of parameters; nothing where it goes on."""
    if name in _BY_VALUE and _goes_on(source, call, 0):
        return ""
    is_whole = source.models.links.no_shard or chooses_no_shard(source.code)
    return _OTHERS.get(name) or (STATISTIC_OR_WHOLE if is_whole else STATISTIC)


def _goes_on(source: Source, node: cst.BaseExpression, depth: int) -> bool:
    """Tell whether an answer for each value is used for each: ``torch.where(torch.isnan(g), zeros, g)``."""
    above = source.index.parents[node]
    if isinstance(above, cst.Arg):
        call = source.index.parents[above]
        # `torch.where(mask)` alone gives the places, which torch refuses of DTensors.
        is_one = isinstance(call, cst.Call) and last_name(call.func) in _FOR_EACH
        return is_one and isinstance(call, cst.Call) and call.args[-1] is not call.args[0]
    if isinstance(above, cst.UnaryOperation):
        return isinstance(above.operator, cst.BitInvert) and _goes_on(source, above, depth)
    if isinstance(above, cst.BinaryOperation):
        is_joined = isinstance(above.operator, (cst.BitAnd, cst.BitOr))
        return isinstance(above.operator, cst.Multiply) or (is_joined and _goes_on(source, above, depth))
    target = above.targets[0].target if isinstance(above, cst.Assign) and len(above.targets) == 1 else None
    if not isinstance(target, cst.Name) or depth == _DEEPEST:
        return False
    readers = [each for each in source.readers(target) if each is not target]
    return bool(readers) and all(_goes_on(source, each, depth + 1) for each in readers)
