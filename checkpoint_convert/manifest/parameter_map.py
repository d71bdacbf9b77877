"""Rules that say how a later model holds its parameters: renamed, stacked, joined, split or transposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.checkpoint_convert.manifest.pieces import (
    Pieced,
    concatenate,
    split,
    stack,
    transpose,
    unstack,
)


if TYPE_CHECKING:
    from collections.abc import Sequence


STAR: Final = "*"


class Match(NamedTuple):
    """What a rule makes of a name: a new one for each target, and the number of the pattern that it matches.

    After ``unstack`` a star in a new name stands for the number of the part.
    """

    names: tuple[str, ...]
    pattern: int


Matcher = Callable[[str], "Match | None"]
"""Returns what a rule makes of a name, or None where it does not match."""


class Operation(NamedTuple):
    """One step: ``stack``, ``concatenate``, ``transpose``, ``split`` or ``unstack``, and its dimensions.

    Any other ``kind`` is something that moving boxes cannot do.
    """

    kind: str
    dim: int = 0
    other: int = 0


DOABLE: Final = frozenset({"stack", "concatenate", "transpose", "split", "unstack"})


@dataclass(frozen=True, slots=True)
class MapRule:
    """One rule of a map.

    Attributes:
        sources: Its patterns, as they were written.
        targets: What they become.
        operations: What is done to the tensors of the names that match; nothing for a change of names alone.
        matcher: Returns a matcher. One that counts what it has seen begins anew.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    operations: tuple[Operation, ...]
    matcher: Callable[[], Matcher]

    @property
    def text(self) -> str:
        """Return what it says, for messages, and to tell it from others."""
        steps = "".join(
            f", {op.kind} {op.dim}" + f" {op.other}" * (op.kind == "transpose") for op in self.operations
        )
        return f"{' and '.join(self.sources)} -> {' and '.join(self.targets)}{steps}"

    @property
    def not_doable(self) -> list[str]:
        """Return the operations that moving boxes cannot do."""
        return [operation.kind for operation in self.operations if operation.kind not in DOABLE]


@dataclass(frozen=True, slots=True)
class ParameterMap:
    """What is to become of a model's parameters, and of their optimizer state alike.

    Attributes:
        name: What the user calls it: ``transformers-5:mixtral``, or the name of a file.
        rules: They are tried one after the other. Those that only change names see what the ones before made;
            of the others the first that matches a parameter has it.
        all_used: Whether each rule must match some name; of a table only one of them.
    """

    name: str
    rules: tuple[MapRule, ...]
    all_used: bool = False

    @property
    def text(self) -> str:
        """Return all that it says."""
        return "\n".join(rule.text for rule in self.rules)


def carry_out(
    operations: Sequence[Operation], given: Sequence[Sequence[Pieced]], targets: int
) -> list[Pieced]:
    """Do the operations of a rule to the tensors of its patterns.

    Args:
        operations: The operations, all of which are doable.
        given: For each pattern its tensors, in order.
        targets: How many targets the rule has.

    Returns:
        The new tensors: one; or one for each target; or, after ``unstack``, all of the first target and then
        those of the next.

    Raises:
        ValueError: Shapes do not fit, or the operations do not lead there.

    Example:
        >>> from fsdp_migrate.checkpoint_convert.manifest.pieces import whole
        >>> gate, up = ([whole(f"{n}.{e}", (4, 3)) for e in range(2)] for n in ("gate", "up"))
        >>> carry_out([Operation("stack", 0), Operation("concatenate", 1)], [gate, up], 1)[0].shape
        (2, 8, 3)
    """
    # Tensors by pattern: `stack` leaves one for each, `concatenate` one in all, `split` one for each target.
    held = [list(tensors) for tensors in given]
    for operation in operations:
        dim = operation.dim
        if operation.kind == "stack":
            held = [[stack(tensors, dim)] for tensors in held]
        elif operation.kind == "concatenate":
            held = [[concatenate([tensor for tensors in held for tensor in tensors], dim)]]
        elif operation.kind == "transpose":
            held = [[transpose(tensor, dim, operation.other) for tensor in tensors] for tensors in held]
        elif operation.kind == "split":
            held = [[part] for tensors in held for tensor in tensors for part in split(tensor, targets, dim)]
        else:
            held = [[part for tensor in tensors for part in unstack(tensor, dim)] for tensors in held]
    is_taken_apart = any(operation.kind == "unstack" for operation in operations)
    if len(held) != targets or not (is_taken_apart or all(len(tensors) == 1 for tensors in held)):
        found = sum(map(len, held))
        raise ValueError(f"the rule makes {found} tensors, and names {targets}")
    return [tensor for tensors in held for tensor in tensors]
