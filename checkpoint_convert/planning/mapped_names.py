"""Which parameters a map renames, and which of them it puts together. By names alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.manifest.parameter_map import STAR, MapRule
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import Matcher, ParameterMap


_NUMBER = re.compile(r"(\d+)")


@dataclass
class Joint:
    """Parameters that one rule puts together, or takes apart.

    Attributes:
        rule: The rule.
        names: What they become, a name for each target. With a star there are as many as it counts.
        members: For each pattern of the rule the parameters that match it, in order.
        expanded: The names with numbers in place of stars, once it is known how many there are.
    """

    rule: MapRule
    names: tuple[str, ...]
    members: list[list[str]]
    expanded: tuple[str, ...] = ()

    @property
    def every(self) -> list[str]:
        """Return all its members."""
        return [name for names in self.members for name in names]

    @property
    def subject(self) -> str:
        """Return the name by which findings speak of it."""
        return self.names[0]

    def expanded_for(self, count: int) -> tuple[str, ...]:
        """Return the names of so many new parameters: all of the first target, then those of the next.

        Example:
            >>> rule = MapRule(("w13",), ("*.w1", "*.w3"), (), lambda: lambda name: None)
            >>> Joint(rule, ("*.w1", "*.w3"), [["w13"]]).expanded_for(4)
            ('0.w1', '1.w1', '0.w3', '1.w3')
        """
        if not any(STAR in name for name in self.names):
            return self.names
        each = count // len(self.names)
        return tuple(name.replace(STAR, str(number)) for name in self.names for number in range(each))

    def problem(self) -> str | None:
        """Say which parameters are missing, by their names, or return None."""
        for pattern, names in zip(self.rule.sources, self.members, strict=True):
            if not names:
                return f"nothing matches `{pattern}`, which belongs to {named(self.every, 2)}"
        if not any(operation.kind == "stack" for operation in self.rule.operations):
            return (
                None if all(len(names) == 1 for names in self.members) else f"{named(self.every)} all match"
            )
        numbers = [_counted(names) for names in self.members]
        if any(found is None for found in numbers):
            return f"{named(self.every)} differ in more than one number"
        most = max(max(found or ()) for found in numbers)
        for names, found in zip(self.members, numbers, strict=True):
            missing = sorted(set(range(most + 1)) - set(found or ()))
            if missing:
                what = f"number {missing[0]} of {most + 1} is missing"
                return f"there are {len(names)} like `{names[0]}`, and {what}"
        return None


@dataclass
class NewNames:
    """What a map makes of some names.

    Attributes:
        renamed: The new name of each that only gets another one.
        joints: What is put together or taken apart.
        joint_of: The one that each of its members is in.
    """

    renamed: dict[str, str] = field(default_factory=dict)
    joints: list[Joint] = field(default_factory=list)
    joint_of: dict[str, Joint] = field(default_factory=dict)


def new_names(asked: ParameterMap, names: Iterable[str]) -> NewNames:
    """Find out what becomes of parameters.

    Args:
        asked: The map.
        names: The names of all parameters, without wrappers.

    Raises:
        ConfigError: Nothing is changed, or a rule of the user's own changes nothing.
    """
    rules = [(rule, rule.matcher()) for rule in asked.rules]
    found = NewNames()
    joints: dict[tuple[str, tuple[str, ...]], Joint] = {}
    used: set[str] = set()
    # In the order in which transformers reads them: experts by their numbers, not 10 before 2.
    for name in sorted(dict.fromkeys(names), key=natural_order):
        made, by = _follow(name, rules, used)
        if by is not None:
            rule, pattern = by
            joint = joints.setdefault((rule.text, made), Joint(rule, made, [[] for _ in rule.sources]))
            joint.members[pattern].append(name)
            found.joint_of[name] = joint
        elif made != (name,):
            found.renamed[name] = made[0]
    found.joints = list(joints.values())
    _check_used(asked, used)
    return found


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return by what names are sorted so that numbers in them count.

    Example:
        >>> sorted(["experts.10.w", "experts.2.w"], key=natural_order)
        ['experts.2.w', 'experts.10.w']
    """
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(name)]


def _follow(
    name: str, rules: Sequence[tuple[MapRule, Matcher]], used: set[str]
) -> tuple[tuple[str, ...], tuple[MapRule, int] | None]:
    """Take a name through all rules; return its new names, and the rule that joins it, with the pattern."""
    made: tuple[str, ...] = (name,)
    by: tuple[MapRule, int] | None = None
    for rule, matcher in rules:
        if rule.operations:
            # Once: a parameter that is joined is no parameter any more that another rule could join.
            match = None if by is not None else matcher(made[0])
            if match is not None:
                by, made = (rule, match.pattern), match.names
                used.add(rule.text)
            continue
        matches = [matcher(one) for one in made]
        if any(match is not None for match in matches):
            made = tuple(
                one if match is None else match.names[0] for one, match in zip(made, matches, strict=True)
            )
            used.add(rule.text)
    stars = any(operation.kind == "unstack" for operation in (by[0].operations if by is not None else ()))
    odd = next((new for new in made if new != name and _is_odd(new, stars=stars)), None)
    if odd is not None:
        raise ConfigError(f"`map` makes {odd!r} of `{name}`, which is no name.", field="map")
    return made, by


def _is_odd(name: str, *, stars: bool) -> bool:
    return any(not part for part in name.split(".")) or name.count(STAR) != int(stars)


def _check_used(asked: ParameterMap, used: set[str]) -> None:
    unused = [rule.text for rule in asked.rules if rule.text not in used]
    if used and not (unused and asked.all_used):
        return
    what = f"its rule `{unused[0]}` matches" if used else "its rules match"
    msg = (
        f"`map` is {asked.name!r}, and {what} no parameter of the checkpoint. Is it the map of another "
        "model, or does the checkpoint hold the new form already? `inspect --json` lists the names."
    )
    raise ConfigError(msg, field="map")


def _counted(names: Sequence[str]) -> list[int] | None:
    """Return the numbers in which names differ, or None where they differ in something else."""
    parts = [name.split(".") for name in names]
    if len({len(each) for each in parts}) != 1:
        return None
    places = [n for n, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if not places and len(names) == 1:
        numbers = [part for part in parts[0] if part.isdigit()]
        # One expert alone: which of the numbers counts it is not known, and none can be missing but by name.
        return [0] if numbers else None
    if len(places) != 1 or not all(each[places[0]].isdigit() for each in parts):
        return None
    return [int(each[places[0]]) for each in parts]
