"""What ``match`` binds: the names in the patterns of its cases, with what each is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.held import EACH, attribute, item, put, taken


if TYPE_CHECKING:
    from collections.abc import Iterator


Bound = tuple[cst.Name, set[str]]


def bound_by(node: cst.Match, kinds: set[str]) -> Iterator[Bound]:
    """Yield the names that the cases of a ``match`` bind, and what each is of what is matched."""
    for case in node.cases if kinds else ():
        yield from _bound(case.pattern, kinds)


def _bound(pattern: cst.MatchPattern, kinds: set[str]) -> Iterator[Bound]:
    if isinstance(pattern, cst.MatchAs):
        if pattern.pattern is not None:
            yield from _bound(pattern.pattern, kinds)
        if pattern.name is not None:
            yield pattern.name, kinds
    elif isinstance(pattern, cst.MatchOr):
        for each in pattern.patterns:
            yield from _bound(each.pattern, kinds)
    elif isinstance(pattern, (cst.MatchList, cst.MatchTuple)):
        for place, element in enumerate(pattern.patterns):
            if isinstance(element, cst.MatchStar):
                if element.name is not None:
                    yield element.name, put(EACH, taken(EACH, kinds))
            else:
                yield from _bound(element.value, taken(str(place), kinds))
    elif isinstance(pattern, cst.MatchMapping):
        for each_item in pattern.elements:
            key = each_item.key
            name = str(key.evaluated_value) if isinstance(key, cst.SimpleString) else None
            if name is not None:
                yield from _bound(each_item.pattern, taken(item(name), kinds))
    elif isinstance(pattern, cst.MatchClass):
        for keyword in pattern.kwds:
            yield from _bound(keyword.pattern, taken(attribute(keyword.key.value), kinds))
