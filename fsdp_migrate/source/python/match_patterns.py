"""What ``match`` binds: the names in the patterns of its cases, with what each is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.held import EACH, attribute, item, put, taken


if TYPE_CHECKING:
    from collections.abc import Iterator


_SEQUENCES = (cst.MatchList, cst.MatchTuple)
Bound = tuple[cst.Name, set[str]]


def bound_by(node: cst.Match, kinds: set[str]) -> Iterator[Bound]:
    """Yield the names that the cases of a ``match`` bind, and what each is of what is matched."""
    for case in node.cases if kinds else ():
        yield from _bound(case.pattern, kinds)


def _bound(pattern: cst.MatchPattern, kinds: set[str]) -> Iterator[Bound]:
    if isinstance(pattern, cst.MatchAs) and pattern.name is not None:
        yield pattern.name, kinds
    for element in pattern.patterns if isinstance(pattern, _SEQUENCES) else ():
        if isinstance(element, cst.MatchStar) and element.name is not None:
            yield element.name, put(EACH, taken(EACH, kinds))
    for inner, part in _parts(pattern, kinds):
        yield from _bound(inner, part)


def _parts(pattern: cst.MatchPattern, kinds: set[str]) -> Iterator[tuple[cst.MatchPattern, set[str]]]:
    """Yield the patterns in a pattern, and what each is matched with."""
    if isinstance(pattern, cst.MatchAs):
        yield from () if pattern.pattern is None else ((pattern.pattern, kinds),)
    elif isinstance(pattern, cst.MatchOr):
        yield from ((each.pattern, kinds) for each in pattern.patterns)
    elif isinstance(pattern, _SEQUENCES):
        places = enumerate(pattern.patterns)
        values = ((place, e.value) for place, e in places if isinstance(e, cst.MatchSequenceElement))
        yield from ((value, taken(str(place), kinds)) for place, value in values)
    elif isinstance(pattern, cst.MatchMapping):
        named = ((each.key, each.pattern) for each in pattern.elements)
        texts = ((key.evaluated_value, inner) for key, inner in named if isinstance(key, cst.SimpleString))
        yield from ((inner, taken(item(str(text)), kinds)) for text, inner in texts)
    elif isinstance(pattern, cst.MatchClass):
        yield from ((each.pattern, taken(attribute(each.key.value), kinds)) for each in pattern.kwds)
