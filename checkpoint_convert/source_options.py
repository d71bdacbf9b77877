"""What a user can say about a source that the source does not say itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.reshard import Shape


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model as far as its checkpoint needs it: the names and shapes of its parameters, in their order.

    Attributes:
        parameters: The shape of each parameter by name, as ``model.named_parameters()`` yields them: tied
            ones once.

    Example:
        >>> list(ModelOutline({"up.weight": (4, 3), "up.bias": (4,)}).parameters)
        ['up.weight', 'up.bias']
    """

    parameters: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read a source.

    Attributes:
        model: The model that it was saved from.
        parameter_names: The name of every parameter that an optimizer knows by number, in the order of the
            numbers.
        trust_pickle: Carry objects over whose classes are on no list. Nothing of them is executed here, but
            whoever loads the output without ``weights_only`` does.
    """

    model: ModelOutline | None = None
    parameter_names: tuple[str, ...] | None = None
    trust_pickle: bool = False
