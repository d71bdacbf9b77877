"""What ``match`` binds and asks: the names in the patterns of its cases, and the classes that these name."""

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


def asked_by_case(node: cst.Match, case: cst.MatchCase) -> Iterator[tuple[cst.Call, bool]]:
    """Yield what is known in a case of the classes that patterns name, as calls of ``isinstance``.

    The case's own is true of what is matched, and those of the cases above are false of it.
    """
    own = _classes(case.pattern)
    if own:
        yield _asks(node.subject, own), True
    for above in node.cases[: [*node.cases].index(case)]:
        # A pattern with more in it, or a condition, may fail for another reason than the class.
        if above.guard is None and _is_bare(above.pattern):
            yield _asks(node.subject, _classes(above.pattern)), False


def _classes(pattern: cst.MatchPattern) -> list[cst.BaseExpression]:
    """Return the classes of which what a pattern takes is one; none where it may be of others too."""
    if isinstance(pattern, cst.MatchAs) and pattern.pattern is not None:
        return _classes(pattern.pattern)
    if isinstance(pattern, cst.MatchOr):
        every = [_classes(each.pattern) for each in pattern.patterns]
        return [name for names in every for name in names] if all(every) else []
    return [pattern.cls] if isinstance(pattern, cst.MatchClass) else []


def _is_bare(pattern: cst.MatchPattern) -> bool:
    if isinstance(pattern, cst.MatchAs) and pattern.pattern is not None:
        return _is_bare(pattern.pattern)
    if isinstance(pattern, cst.MatchOr):
        return all(_is_bare(each.pattern) for each in pattern.patterns)
    return isinstance(pattern, cst.MatchClass) and not (pattern.patterns or pattern.kwds)


def _asks(subject: cst.BaseExpression, classes: list[cst.BaseExpression]) -> cst.Call:
    one_of = cst.Tuple([cst.Element(each) for each in classes])
    return cst.Call(
        cst.Name("isinstance"), [cst.Arg(subject), cst.Arg(classes[0] if len(classes) == 1 else one_of)]
    )


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
