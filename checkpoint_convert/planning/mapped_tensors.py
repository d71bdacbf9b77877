"""Put the tensors of parameters together, or take them apart, and their optimizer state alike. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import carry_out
from fsdp_migrate.checkpoint_convert.manifest.pieces import chunks_of, whole
from fsdp_migrate.checkpoint_convert.sources.parameter_numbers import MOMENTS
from fsdp_migrate.findings import Finding, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.pieces import Pieced
    from fsdp_migrate.checkpoint_convert.planning.mapped_names import Joint


_WITHOUT: Final = "Leave the optimizer out: `without_optimizer` (--without-optimizer)."
_OWN_RULES: Final = (
    "Write the rules that you need into a file of your own, and give its name in place of the table; or load "
    "the weights alone by `from_pretrained` of transformers 5, which does all of it."
)


@dataclass(frozen=True, slots=True)
class Joined:
    """One new entry.

    Attributes:
        name: The name of the parameter that it is of.
        entry: The entry, still under the key of its first source.
        sources: The entries that it is made of, in order.
        is_merged: Whether these must be equal, and it is the first of them.
    """

    name: str
    entry: Entry
    sources: tuple[Entry, ...]
    is_merged: bool = False


@dataclass
class JoinResult:
    """What became of some parameters in one part; nothing where findings say why it cannot be done."""

    joined: list[Joined] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def join_entries(
    joint: Joint,
    fields: Mapping[tuple[str, ...], Mapping[str, Entry]],
    shapes: Mapping[str, Shape],
    *,
    is_model: bool,
) -> JoinResult:
    """Put together what one part of a checkpoint holds of some parameters.

    Args:
        joint: Which they are, and what becomes of them.
        fields: For a model their tensors; for an optimizer each kind of their state and settings; by the
            names of the parameters.
        shapes: The shapes of the parameters of models.
        is_model: Whether the part is a model.
    """
    result = JoinResult()
    if joint.rule.not_doable:
        result.findings.append(_not_doable(joint))
    elif (problem := joint.problem()) is not None:
        result.findings.append(
            make_finding("FM295", joint.subject, f"{problem}.", "Give the checkpoint that has all of them.")
        )
    for members in fields.values() if not result.findings else ():
        if len(members) != len(joint.every):
            result.findings.append(_not_in_all(joint, members, is_model=is_model))
            break
    if result.findings:
        return result
    for name, members in fields.items():
        _join_field(joint, name, members, _shapes_of(fields, shapes), result, is_model=is_model)
    return result


def _shapes_of(
    fields: Mapping[tuple[str, ...], Mapping[str, Entry]], shapes: Mapping[str, Shape]
) -> Mapping[str, Shape]:
    """Return the shapes of parameters; without their model, those of their moments."""
    moments = {
        name: entry.shape
        for kind, members in fields.items()
        if kind and kind[-1] in MOMENTS
        for name, entry in members.items()
        if isinstance(entry, TensorEntry)
    }
    return {**moments, **shapes}


def _join_field(
    joint: Joint,
    kind: tuple[str, ...],
    members: Mapping[str, Entry],
    shapes: Mapping[str, Shape],
    result: JoinResult,
    *,
    is_model: bool,
) -> None:
    entries = [members[name] for name in joint.every]
    tensors = {name: entry for name, entry in members.items() if isinstance(entry, TensorEntry)}
    # Of an optimizer only state in its parameter's shape: one value for each element moves as weights do.
    is_alike = len(tensors) == len(members) and (
        is_model or all(entry.shape == shapes.get(name) for name, entry in tensors.items())
    )
    if is_alike:
        result.findings += _join_tensors(joint, tensors, result)
    elif is_model or not all(_is_one_value(entry) for entry in entries):
        result.findings.append(_not_element_wise(joint, kind, entries, shapes, is_model=is_model))
    else:
        # One step, or one setting, for each parameter: whether they are equal is seen when they are read.
        for name in joint.expanded_for(_count(joint, shapes)):
            result.joined.append(Joined(name, entries[0], tuple(entries), is_merged=True))


def _count(joint: Joint, shapes: Mapping[str, Shape]) -> int:
    """Return how many tensors a rule makes of parameters of these shapes."""
    try:
        return len(_pieced(joint, {name: shapes.get(name, ()) for name in joint.every}))
    except ValueError:
        return 0


def _pieced(joint: Joint, shapes: Mapping[str, Shape]) -> list[Pieced]:
    given = [[whole(name, shapes[name]) for name in names] for names in joint.members]
    return carry_out(joint.rule.operations, given, len(joint.names))


def _join_tensors(joint: Joint, tensors: Mapping[str, TensorEntry], result: JoinResult) -> Sequence[Finding]:
    kinds = {entry.dtype for entry in tensors.values()}
    reason = f"they are of the types {' and '.join(sorted(kinds))}" if len(kinds) > 1 else ""
    try:
        made = _pieced(joint, {name: entry.shape for name, entry in tensors.items()})
    except ValueError as error:
        reason = str(error)
        made = []
    if reason:
        text = f"{named(joint.every, 3)} cannot be put together by `{joint.rule.text}`: {reason}."
        return [make_finding("FM295", joint.subject, text, "Is it the map of this model?")]
    first = tensors[joint.every[0]]
    for name, pieced in zip(joint.expanded_for(len(made)), made, strict=True):
        entry = replace(
            first,
            shape=pieced.shape,
            chunks=chunks_of(pieced, tensors),
            requires_grad=any(tensor.requires_grad for tensor in tensors.values()),
        )
        result.joined.append(Joined(name, entry, tuple(tensors[source] for source in pieced.sources)))
    joint.expanded = joint.expanded_for(len(made))
    return []


def _is_one_value(entry: Entry) -> bool:
    return not isinstance(entry, TensorEntry) or math.prod(entry.shape) == 1


def _not_doable(joint: Joint) -> Finding:
    text = (
        f"{named(joint.every, 3)}: `{joint.rule.text}` needs {named(joint.rule.not_doable)}, which does more "
        "than move elements."
    )
    return make_finding("FM297", joint.subject, text, _OWN_RULES)


def _not_in_all(joint: Joint, members: Mapping[str, Entry], *, is_model: bool) -> Finding:
    missing = [name for name in joint.every if name not in members]
    if is_model:
        text = f"the model lacks {named(missing)}, which its optimizer knows."
        return make_finding("FM295", joint.subject, text, "Give the checkpoint that has all of them.")
    text = (
        f"the optimizer has state or settings of {len(members)} of the {len(joint.every)} parameters that "
        f"become one, and none of {named(missing, 3)}: were they frozen, or never used?"
    )
    return make_finding("FM296", joint.subject, text, _WITHOUT)


def _not_element_wise(
    joint: Joint,
    kind: tuple[str, ...],
    entries: Sequence[Entry],
    shapes: Mapping[str, Shape],
    *,
    is_model: bool,
) -> Finding:
    name = ".".join(kind[1:]) or "the weight"
    odd = next((entry for entry in entries if not _is_one_value(entry)), entries[0])
    shape = list(odd.shape) if isinstance(odd, TensorEntry) else "no tensor"
    if is_model:
        text = f"`{odd.key}` is no tensor."
        return make_finding("FM295", joint.subject, text, "Is it the map of this model?")
    own = shapes.get(joint.every[0])
    of_its = "a shape that is not known" if own is None else list(own)
    text = (
        f"`{name}` of {named(joint.every, 2)} has shape {shape}, and the parameter has {of_its}: it is no "
        "value for each element, so it cannot be put together as the weights are (Adafactor's rows and "
        "columns, 8-bit states with scales, and their like)."
    )
    return make_finding("FM296", joint.subject, text, _WITHOUT)
