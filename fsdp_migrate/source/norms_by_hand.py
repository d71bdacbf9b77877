"""Norms of gradients that a function makes by hand: squares of each rank's part, summed over the ranks.

Each of its lines is another number now. One advice is for all of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Found


SUMMED: Final = (
    "the norm is that of the whole gradient now, the same on each rank: do not sum it over the ranks that "
    "share the gradient."
)
"""What is said of a sum over ranks of a norm, or of what was made of gradients."""
_BY_HAND: Final = (
    "this sums the squares of each rank's part over the ranks, and of DTensors these are of the whole "
    "already: in place of the lines that make this norm call clip_grad_norm_(model, float('inf')) of "
    "fsdp_migrate.runtime, on every rank. It gives the norm of all, a plain tensor, and changes no gradient."
)
_OF_NORMS: Final = (
    "this sums norms of each rank's part over the ranks, and no squares of them: a number that depended on "
    "how FSDP1 cut its flat parts, and of DTensors each norm is of the whole already. Take .to_local() of "
    "each gradient, p.grad.to_local().norm(), and keep the sum over the ranks: that gives a number near "
    "FSDP1's. clip_grad_norm_ of fsdp_migrate.runtime gives the norm of all, another number, for which a "
    "limit has to be chosen anew."
)
_OVER_MORE: Final = (
    "this sums the squares of each rank's part over the ranks, also over those of model parallelism, and of "
    "DTensors these are of the whole that the ranks of one shard group hold. Take .to_local() of each "
    "gradient, p.grad.to_local().norm(), and keep the sums over the ranks: that gives FSDP1's number. "
    "clip_grad_norm_ of fsdp_migrate.runtime gives the norm over one shard group alone: another number on "
    "each model-parallel rank."
)
_PARALLEL: Final = re.compile(
    r"(?:model|tensor|pipeline|expert)_?parallel|(?:^|[\W_])(?:mp|tp|pp)_(?:group|mesh|norm|rank|size|world)",
    re.IGNORECASE,
)
# No root, `** 0.5`, and no `**kwargs`.
_POWERS: Final = re.compile(
    r"(?<=[\w)\]])\s*\*\*(?!\s*(?:0?\.5|\(\s*1))|\bpow\((?![^\n]*\.5)|\bsquare\("
    r"|\b((?:\w+\.)*\w+)\s*\*\s*\1\b"
)
_NORMS: Final = re.compile(r"norm\(")
_ROOTS: Final = re.compile(r"\bsqrt\(|\*\*\s*(?:0?\.5|\(\s*1)|\bpow\(.*\b0?\.5")
_DEEPEST: Final = 2


def said_once(source: Source, found: Iterable[Found]) -> Iterator[Found]:
    """Yield what is found, of a norm that is made by hand one advice alone, where it is summed over ranks."""
    every = list(found)
    norms = {each.node: _made_by(source, each.node) for each in every if each.becomes == SUMMED}
    lines = {line for made in norms.values() for line in made}
    for each in every:
        if norms.get(each.node):
            yield replace(each, becomes=_said_of(source, each.node))
        elif source.index.statement(each.node) not in lines:
            yield each


def _said_of(source: Source, summed: cst.CSTNode) -> str:
    home = source.index.function(summed)
    code = source.module.code_for_node(home) if home is not None else ""
    if _POWERS.search(code) is None:
        return _OF_NORMS
    return _OVER_MORE if _PARALLEL.search(code) else _BY_HAND


def _made_by(source: Source, summed: cst.CSTNode) -> set[cst.CSTNode]:
    """Return the lines that make what is summed, where they make a norm of gradients; or none."""
    given = summed.args[0].value if isinstance(summed, cst.Call) and summed.args else None
    home = source.index.function(summed)
    if (
        not isinstance(given, cst.Name)
        or home is None
        or not _ROOTS.search(source.module.code_for_node(home))
    ):
        return set()
    lines = set(_lines_of(source, given))
    code = " ".join(map(source.module.code_for_node, lines))
    return lines if ".grad" in code and (_NORMS.search(code) or _POWERS.search(code)) else set()


def _lines_of(source: Source, name: cst.Name, depth: int = 0) -> Iterator[cst.CSTNode]:
    """Yield the lines that give a name its value, and those of the names in it, in its own function."""
    home = source.index.function(name)
    for binding in source.index.scopes[name].lookup(name.value) if name in source.index.scopes else ():
        above = source.index.parents.get(binding.node)
        value = above.value if isinstance(above, cst.AugAssign) else binding.value
        if value is None or source.index.function(binding.node) is not home:
            continue
        if any(each.attr.value == "grad" for each in walk_for(value, cst.Attribute)):
            yield source.index.statement(binding.node)
        inner = [each for each in walk_for(value, cst.Name) if text_of(each) != name.value]
        for each in inner if depth < _DEEPEST else ():
            found = list(_lines_of(source, each, depth + 1))
            yield from found
            if found:
                yield source.index.statement(binding.node)
