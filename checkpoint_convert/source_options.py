"""What a user can say about a source that the source does not say itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.flat_layout import FlatUnit
    from fsdp_migrate.checkpoint_convert.reshard import Shape


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model as far as its checkpoint needs it: the names and shapes of its parameters, in their order.

    Attributes:
        parameters: The shape of each parameter by name, as ``model.named_parameters()`` yields them: tied
            ones once.
        units: Its FSDP1 units, where the FSDP1 arguments are known too; only flat parameters need them.
        numbered: What an optimizer of the FSDP1 model has numbers for, in their order: names of parameters,
            or with ``use_orig_params=False`` of units and of parameters that are in none.
        aliases: The further names of tied parameters, with the first one.
        apart: The further names of parameters that are tied in the model, and that FSDP1 trained apart
            because they are in different units, with the first name.
        sharding: Over how many ranks a unit is divided: ``"all"``, ``"one"`` (NO_SHARD), or ``"some"``
            (hybrid), which the sizes must tell.
        buffers: The shape of each buffer that a state dict holds; None where nothing is said of them.
        dtypes: The type of each parameter and buffer, where it is known.
        trainable: The parameters that require a gradient; None where nothing is said of that.
        groups: The parameters in each group of the optimizer that is to load the result, where one was given.

    Example:
        >>> list(ModelOutline({"up.weight": (4, 3), "up.bias": (4,)}).parameters)
        ['up.weight', 'up.bias']
    """

    parameters: Mapping[str, Shape]
    units: tuple[FlatUnit, ...] = ()
    numbered: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    sharding: Literal["all", "one", "some"] = "all"
    buffers: Mapping[str, Shape] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    trainable: tuple[str, ...] | None = None
    groups: tuple[tuple[str, ...], ...] | None = None


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
