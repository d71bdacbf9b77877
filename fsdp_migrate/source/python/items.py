"""Arguments of a call and items of a dict, changed one by one: every other character stays where it is.

Between two items stands a gap: the rest of a line with its comment, which is about the item before, and what
leads to the next one. Where an item goes away, its comments stay, with its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import code, keyword


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Gap = cst.BaseParenthesizableWhitespace
    Item = cst.Arg | cst.BaseDictElement


NOTHING = cst.SimpleWhitespace("")
SPACE = cst.SimpleWhitespace(" ")


@dataclass(frozen=True)
class ItemChange:
    """What becomes of an item: another name, another value, or nothing of it (``remove``)."""

    name: str | None = None
    value: cst.BaseExpression | None = None
    remove: bool = False


def changed_call(
    call: cst.Call,
    changes: Mapping[str, ItemChange],
    added: Sequence[tuple[str, cst.BaseExpression]] = (),
    behind: str | None = None,
) -> cst.Call:
    """Return a call with some of its named arguments changed.

    Args:
        call: The call.
        changes: What becomes of arguments, by their names.
        added: New arguments, by their names.
        behind: The argument behind which the new ones go; by default they go first.
    """
    end: Gap = call.whitespace_before_args
    if call.args:
        last = call.args[-1]
        end = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else last.whitespace_after_arg
    gaps = [call.whitespace_before_args, *(_behind(arg) for arg in call.args[:-1]), end]
    row = _Row(list(call.args), gaps if call.args else [end])
    _change(row, changes, [keyword(name, value) for name, value in added], behind)
    args, first, closing, has_comma = row.joined(_has_comma(call.args))
    if args and not has_comma:
        args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=closing)
    elif args:
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=closing))
    return call.with_changes(args=args, whitespace_before_args=first if args else closing)


def changed_dict(
    node: cst.Dict,
    changes: Mapping[str, ItemChange],
    added: Sequence[tuple[str, cst.BaseExpression]] = (),
) -> cst.Dict:
    """Return a dict with some of its items changed; new ones go last."""
    quote = _quote(node)
    elements = list(node.elements)
    has_comma = _has_comma(elements)
    # LibCST keeps what stands behind the last comma with the brace.
    behind = _behind(elements[-1]) if has_comma else NOTHING
    end = behind if isinstance(behind, cst.ParenthesizedWhitespace) else node.rbrace.whitespace_before
    gaps = [node.lbrace.whitespace_after, *(_behind(each) for each in elements[:-1]), end]
    row = _Row(list(elements), gaps if elements else [end])
    new = [
        cst.DictElement(cst.SimpleString(f"{quote}{name}{quote}"), _quoted(value, quote))
        for name, value in added
    ]
    last = _name(elements[-1]) if elements else None
    _change(row, changes, list(new), last, quote)
    items, first, closing, has_comma = row.joined(has_comma)
    brace = node.rbrace.with_changes(whitespace_before=closing)
    if items:
        comma = cst.Comma() if has_comma else cst.MaybeSentinel.DEFAULT
        items[-1] = items[-1].with_changes(comma=comma)
    opening = node.lbrace.with_changes(whitespace_after=first if items else NOTHING)
    return node.with_changes(elements=items, lbrace=opening, rbrace=brace)


@dataclass
class _Row:
    """Items, and the gaps before, between and behind them: one more than there are items."""

    items: list[Item]
    gaps: list[Gap]

    def remove(self, place: int) -> None:
        before, after = self.gaps[place], self.gaps[place + 1]
        is_last = place == len(self.items) - 1
        name = _name(self.items[place]) or ""
        del self.items[place]
        self.gaps[place : place + 2] = [_merged(before, after, name, is_first=place == 0, is_last=is_last)]

    def insert(self, place: int, item: Item) -> None:
        """Put an item at a place; it stands on a line of its own where its neighbour does."""
        if not self.items:
            self.items, self.gaps = [item], [self.gaps[0], NOTHING]
            return
        at_end = place == len(self.items)
        neighbour = self.gaps[place - 1] if at_end else self.gaps[place]
        if place == 0:
            neighbour = self.gaps[0]
        new: Gap = SPACE
        if isinstance(neighbour, cst.ParenthesizedWhitespace):
            new = neighbour.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
        self.items.insert(place, item)
        old = self.gaps[place]
        if at_end:
            # The comment behind what was last stays behind it.
            self.gaps[place:] = [_with_comment_of(new, old), _without_comment(old)]
        elif place == 0:
            # What stands above the first item stays above it.
            self.gaps[:1] = [_without_lines(old), _with_lines_of(new, old)]
        else:
            self.gaps[place : place + 1] = [_with_comment_of(new, old), _without_comment(old)]

    def joined(self, has_comma: bool) -> tuple[list[Item], Gap, Gap, bool]:
        """Return the items with the gaps between them, the first and the last, and if a comma is there."""
        items = [
            item.with_changes(comma=cst.Comma(whitespace_after=gap), **_no_space(item))
            for item, gap in zip(self.items, self.gaps[1:], strict=True)
        ]
        return items, self.gaps[0], self.gaps[-1], has_comma and bool(items)


def _change(
    row: _Row,
    changes: Mapping[str, ItemChange],
    new: list[Item],
    behind: str | None,
    quote: str = '"',
) -> None:
    place = next((n + 1 for n, item in enumerate(row.items) if behind and _name(item) == behind), 0)
    for offset, item in enumerate(new):
        row.insert(place + offset, item)
    fresh = set(map(id, new))
    # From behind: to remove one moves all that follow it.
    for n, item in reversed(list(enumerate(row.items))):
        change = None if id(item) in fresh else changes.get(_name(item) or "")
        if change is not None and change.remove:
            row.remove(n)
        elif change is not None:
            row.items[n] = _renewed(item, change, quote)


def _renewed(item: Item, change: ItemChange, quote: str) -> Item:
    if change.value is not None:
        item = item.with_changes(value=_quoted(change.value, quote))
    if change.name is None:
        return item
    if isinstance(item, cst.Arg):
        return item.with_changes(keyword=cst.Name(change.name))
    return item.with_changes(key=cst.SimpleString(f"{quote}{change.name}{quote}"))


def _name(item: Item) -> str | None:
    if isinstance(item, cst.Arg):
        return item.keyword.value if item.keyword is not None else None
    key = item.key if isinstance(item, cst.DictElement) else None
    return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else None


def _quote(node: cst.Dict) -> str:
    keys = [element.key for element in node.elements if isinstance(element, cst.DictElement)]
    return next((key.quote for key in keys if isinstance(key, cst.SimpleString) and len(key.quote) == 1), '"')


def _quoted(value: cst.BaseExpression, quote: str) -> cst.BaseExpression:
    """Return a new value with the quotes that its neighbours have, if it is that simple."""
    text = code(value)
    if quote == '"' or '"' not in text or quote in text or "\\" in text:
        return value
    return cst.parse_expression(text.replace('"', quote))


def _behind(item: Item) -> Gap:
    return item.comma.whitespace_after if isinstance(item.comma, cst.Comma) else NOTHING


def _has_comma(items: Sequence[Item]) -> bool:
    return bool(items) and isinstance(items[-1].comma, cst.Comma)


def _no_space(item: Item) -> dict[str, Gap]:
    return {"whitespace_after_arg": NOTHING} if isinstance(item, cst.Arg) else {}


def _merged(before: Gap, after: Gap, name: str, *, is_first: bool, is_last: bool) -> Gap:
    """Return the gap where an item was: the comments about it get its name."""
    old = before if isinstance(before, cst.ParenthesizedWhitespace) else None
    new = after if isinstance(after, cst.ParenthesizedWhitespace) else None
    if old is None and new is None:
        return after if is_last and not is_first else before
    # What stands above an item, and behind it on its line, is about it.
    own = [line.comment.value for line in (old.empty_lines if old else ()) if line.comment is not None]
    if new is not None and new.first_line.comment is not None:
        own.append(new.first_line.comment.value)
    kept = old.first_line if old is not None else cst.TrailingWhitespace()
    if not own and kept.comment is None and (old is None or new is None):
        return after if is_last and not is_first else before
    frame = new or old
    assert frame is not None
    lead = (old or frame).last_line
    texts = [text if n else f"# {name}: {text.lstrip('# ')}" for n, text in enumerate(own)]
    at = (old or frame).indent
    lines = [cst.EmptyLine(indent=at, whitespace=lead, comment=cst.Comment(text)) for text in texts]
    blank = [line for line in (old.empty_lines if old else ()) if line.comment is None][:1]
    after_lines = list(new.empty_lines) if new is not None else []
    every = [*blank, *lines, *after_lines]
    return frame.with_changes(first_line=kept, empty_lines=every)


def _without_comment(gap: Gap) -> Gap:
    if not isinstance(gap, cst.ParenthesizedWhitespace):
        return gap
    return gap.with_changes(first_line=cst.TrailingWhitespace())


def _with_comment_of(gap: Gap, other: Gap) -> Gap:
    if not isinstance(other, cst.ParenthesizedWhitespace) or other.first_line.comment is None:
        return gap
    if isinstance(gap, cst.ParenthesizedWhitespace):
        return gap.with_changes(first_line=other.first_line)
    return other.with_changes(empty_lines=[])


def _without_lines(gap: Gap) -> Gap:
    return gap.with_changes(empty_lines=[]) if isinstance(gap, cst.ParenthesizedWhitespace) else gap


def _with_lines_of(gap: Gap, other: Gap) -> Gap:
    if not isinstance(gap, cst.ParenthesizedWhitespace) or not isinstance(other, cst.ParenthesizedWhitespace):
        return gap
    return gap.with_changes(empty_lines=other.empty_lines)
