"""Who shares parameters, and which units would own them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal


if TYPE_CHECKING:
    from collections.abc import Mapping, Set as AbstractSet

    from torch import nn


TieOwner = Literal["parent", "group"]
"""Who owns a parameter that several units would share: the unit above them, or one made of them."""


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


def is_one_module(model: nn.Module, tie: Tie) -> bool:
    """Tell whether a parameter has several names because its module is registered at several places.

    Example:
        >>> from torch import nn
        >>> part = nn.Linear(2, 2)
        >>> model = nn.ModuleDict({"parts": nn.ModuleList([part]), "block": nn.Sequential(part)})
        >>> [is_one_module(model, tie) for tie in find_ties(model, {model["block"]: "block"})]
        [True, True]
    """
    return len({model.get_submodule(name.rpartition(".")[0]) for name in tie.names}) == 1


def find_ties(model: nn.Module, units: Mapping[nn.Module, str]) -> list[Tie]:
    """Find every parameter with several names, and the units that its modules belong to.

    ``units`` maps each unit's module to its name. A module belongs to the nearest unit on the path to it;
    a module that is registered several times has several paths.
    """
    return [
        Tie(names, tuple(dict.fromkeys(units_above(model, name, units)[-1] for name in names)))
        for names in parameter_names(model).values()
        if len(names) > 1
    ]


def units_above(model: nn.Module, parameter_name: str, units: Mapping[nn.Module, str]) -> list[str]:
    """Return the names of the units on the path to a parameter, the root's (empty) first."""
    module, found = model, [""]
    for part in parameter_name.split(".")[:-1]:
        module = module.get_submodule(part)
        if module in units and module is not model:
            found.append(units[module])
    return found


@dataclass(frozen=True)
class TieDecision:
    """Which unit owns a tied parameter, and which units are given up, or grouped, so that it does."""

    tie: Tie
    owner: str
    given_up: tuple[str, ...] = ()
    grouped: tuple[str, ...] = ()


@dataclass(frozen=True)
class TiedUnits:
    """The units after ties are resolved: each module's unit, by the name of the one that is sharded.

    ``grouped`` maps the name of a unit to those of the modules that are sharded together with it.
    """

    names: dict[nn.Module, str]
    grouped: dict[str, tuple[str, ...]]
    decisions: tuple[TieDecision, ...]


def resolve_ties(
    model: nn.Module, units: Mapping[nn.Module, str], ignored: AbstractSet[nn.Parameter], tied: TieOwner
) -> TiedUnits:
    """Give up or group units until no tied parameter belongs to several.

    ``parent``: the parameter goes to the nearest unit that is above all of its modules. The units between
    are given up, and what else they hold goes to the owner too, since a unit manages all that no inner unit
    does. ``group``: the units of its modules become one, where they lie side by side; otherwise as before.
    ``units`` are in the order in which they are sharded.
    """
    names = dict(units)
    decisions: list[TieDecision] = []
    # One at a time: a unit that is given up or grouped changes which units hold the others.
    while (crossing := _first_crossing(model, names, ignored)) is not None:
        paths = [units_above(model, name, names) for name in crossing.names]
        # The units on the way to every name; the last one is the nearest above them all.
        shared = [level[0] for level in zip(*paths, strict=False) if len(set(level)) == 1]
        side_by_side = all(len(path) == len(shared) + 1 for path in paths)
        if tied == "group" and side_by_side:
            together = set(crossing.units)
            members = [units[module] for module, name in names.items() if name in together]
            names = {module: members[-1] if name in together else name for module, name in names.items()}
            decisions.append(TieDecision(crossing, members[-1], grouped=tuple(members)))
        else:
            below = dict.fromkeys(unit for path in paths for unit in path[len(shared) :])
            names = {module: name for module, name in names.items() if name not in below}
            decisions.append(TieDecision(crossing, shared[-1], given_up=tuple(below)))
    grouped = {
        owner: tuple(units[module] for module, name in names.items() if name == owner != units[module])
        for owner in dict.fromkeys(names.values())
    }
    return TiedUnits(names, {owner: others for owner, others in grouped.items() if others}, tuple(decisions))


def _first_crossing(
    model: nn.Module, units: Mapping[nn.Module, str], ignored: AbstractSet[nn.Parameter]
) -> Tie | None:
    shared = {names: param for param, names in parameter_names(model).items()}
    ties = (tie for tie in find_ties(model, units) if tie.crosses_units)
    return next((tie for tie in ties if shared[tie.names] not in ignored), None)
