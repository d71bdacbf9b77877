"""Who shares parameters, and which units would own them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn


@dataclass(frozen=True)
class Tie:
    """One parameter under several names, and the names of the units whose modules hold it."""

    names: tuple[str, ...]
    units: tuple[str, ...]

    @property
    def crosses_units(self) -> bool:
        """Whether the parameter would belong to several units."""
        return len(self.units) > 1


def parameter_names(model: nn.Module) -> dict[nn.Parameter, tuple[str, ...]]:
    """Return every parameter of the model with all of its names, in the model's order.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        >>> model[1].weight = model[0].weight
        >>> list(parameter_names(model).values())
        [('0.weight', '1.weight')]
    """
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {parameter: tuple(found) for parameter, found in names.items()}


def find_ties(model: nn.Module, units: Mapping[nn.Module, str]) -> list[Tie]:
    """Find every parameter with several names, and the units that its modules belong to.

    ``units`` maps each unit's module to its name. A module belongs to the nearest unit on the path to it;
    a module that is registered several times has several paths.
    """
    return [
        Tie(names, tuple(dict.fromkeys(_unit_of(model, name, units) for name in names)))
        for names in parameter_names(model).values()
        if len(names) > 1
    ]


def _unit_of(model: nn.Module, parameter_name: str, units: Mapping[nn.Module, str]) -> str:
    module, unit = model, units.get(model, "")
    for part in parameter_name.split(".")[:-1]:
        module = module.get_submodule(part)
        unit = units.get(module, unit)
    return unit
