"""Classes and functions of other packages that are made for FSDP1's models, as their names say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.held import MODEL
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.optimizers import has_groups
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "other-packages"
CODES = ("FM317", "FM450")

_MEANT = (
    "by its name `{}` is made for FSDP's models, and this gives it a sharded one. FSDP1's was a wrapper "
    "around flat parameters, FSDP2's is the model itself, of DTensors: see that this package takes those. A "
    "checkpoint can be saved and loaded by torch.distributed.checkpoint in its place."
)
_FUNCTION = "by its name `{}` of another package is for FSDP's models: see that it takes FSDP2's."
_STORES = (
    "by its name `{}` of another package saves or loads the sharded model that it is given: see that it "
    "takes FSDP2's, whose state is of DTensors, and on which FSDP1's contexts raise or do nothing."
)
_CLIPS = (
    "by its name `{}` of another package clips the gradients of a sharded model: these are DTensors now, and "
    "FSDP1's were one rank's flat parts. See that it takes DTensors, and how it sums norms over ranks: "
    "clip_grad_norm_(model, max_norm) of fsdp_migrate.runtime gives the norm that FSDP1's method gave."
)
_TORCHS = frozenset({"FSDP", "FullyShardedDataParallel"})
"""What a package calls torch's own class that it hands on."""
_FSDP = re.compile(r"fsdp(?!_?2|_?module)|FullySharded", re.IGNORECASE)
_STORING = re.compile(r"(?:^|_)(?:save|load|resume|restore)(?:_|$)")

# Not timm's, of which `clip-grad-norm` speaks.
_CLIPPING = re.compile(r"(?:^|_)clip_?(?:grad|norm)(?!.*value)|clip\w*_norm(?:_|$)")


def find(source: Source) -> Iterator[Found]:
    """Find calls of them that are given a sharded model, also in a list or a dict."""
    if not source.links.foreign:
        return
    for call in source.calls:
        clipping = _by_name(source, call.func, _CLIPPING)
        if (
            clipping
            and not _is_timms(source, call)
            and any(_has_gradients(source, arg.value) for arg in call.args)
        ):
            yield Found("FM450", call, _CLIPS.format(clipping), "unclear")
            continue
        name, storing = _foreign(source, call.func), _by_name(source, call.func, _STORING)
        if not (name or storing) or not any(has_model(source, arg.value) for arg in call.args):
            continue
        if not name:
            yield Found("FM450", call, _STORES.format(storing), "unclear")
            continue
        if name[:1].isupper():
            yield Found("FM317", call, _MEANT.format(name), "commented")
        else:  # what a function does may be the same for both: activation checkpointing is
            yield Found("FM450", call, _FUNCTION.format(name), "unclear")


def in_packages(source: Source, func: cst.BaseExpression) -> Iterator[list[str]]:
    """Yield names within another package: of what is called, or of what made the object whose method is."""
    yield from _behind_packages(source, func)
    if isinstance(func, cst.Attribute) and (made := _maker(source, func)) is not None:
        yield from ([*names, func.attr.value] for names in _behind_packages(source, made))


def _maker(source: Source, func: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what was called to make the object whose method this is."""
    made = func.value if isinstance(func, cst.Attribute) else None
    if isinstance(made, (cst.Attribute, cst.Name)):
        made = last_value(source.index, made)
    return made.func if isinstance(made, cst.Call) else None


def _foreign(source: Source, func: cst.BaseExpression) -> str:
    """Return another package's name for FSDP that is called, or that made the object whose method is."""
    made = _maker(source, func)
    return _named(source, func) or (_named(source, made) if made is not None else "")


def _by_name(source: Source, func: cst.BaseExpression, wanted: re.Pattern[str]) -> str:
    """Return the name of another package's function, where it says that it does what is wanted."""
    for names in _behind_packages(source, func):
        if not any(each[:1].isupper() for each in names) and wanted.search(names[-1]):
            return names[-1]
    return ""


def _named(source: Source, func: cst.BaseExpression) -> str:
    for names in _behind_packages(source, func):
        # A module may be called so for other reasons: of it the class counts, and the function.
        own = [each for each in names[:-1] if each[:1].isupper()] + names[-1:]
        named = [each for each in own if _FSDP.search(each) and each not in _TORCHS]
        if named:
            return named[0]
    return ""


def _behind_packages(source: Source, func: cst.BaseExpression) -> Iterator[list[str]]:
    """Yield the names behind that of another package by which something is known."""
    for known in source.index.qualified(func):
        for package in source.links.foreign:
            if known.startswith(f"{package}."):
                yield known.removeprefix(f"{package}.").split(".")


def _is_timms(source: Source, call: cst.Call) -> bool:
    return any(known.startswith("timm.") for known in source.index.qualified(call.func))


def _has_gradients(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether it is a sharded model, its parameters or its optimizer."""
    values = ParameterValues(source)
    return has_model(source, given) or values.is_many(given) or has_groups(source.models.kinds(given))


def has_model(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether it is a sharded model, or a list or a dict that holds one."""
    kinds = source.models.kinds(given)
    paths = (kind.split(">") for kind in kinds)
    return any(steps[-1] == MODEL and not any(each.startswith(".") for each in steps) for steps in paths)
