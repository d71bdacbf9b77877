"""Replaces keys and values in the text of a config, and leaves every other character as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsdp_migrate.adapters.document.nodes import (
    Entry,
    Mapping,
    Node,
    Scalar,
    Sequence,
    key_text,
    merge_parts,
    plain,
    target,
    walk,
)
from fsdp_migrate.adapters.document.writing import block_lines, flow_text, key_word, scalar_text
from fsdp_migrate.errors import UnsupportedFeatureError


# A setting that is commented out: `fsdp_offload_params: true`.
_SETTING = re.compile(r"\w+_\w+:(?:\s|\Z)")
# A comment on the line that lists words: FULL_SHARD, `sharded`, "one of".
_LISTS = re.compile(r"[ \t]+#+[ \t]*(?=.*(?:\b[A-Z]+_[A-Z_]+\b|`\w+`|\b[Oo]ne of\b|\b[Oo]ptions\b))")
_LISTED = re.compile(
    r"^[ \t]*#+[ \t]*(?=[`'\"]?(?!FSDP_)[A-Z]+_[A-Z_]+\b[`'\"]?[ \t]*(?:[:=,|/(-]|or\b|$))", re.MULTILINE
)
_COMMENT = re.compile(r"(?:^|\s)#\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one entry: a new key, a new value, or nothing of it (``remove``)."""

    entry: Entry
    key: str | None = None
    value: Any = None
    has_value: bool = False
    remove: bool = False


class _Piece(NamedTuple):
    """Characters to replace. Of two insertions at one place the one with the smaller ``rank`` stands last."""

    start: int
    end: int
    rank: int
    text: str


@dataclass
class Edits:
    r"""The replacements to make in one text. Each entry can be changed once; saying the same twice is fine.

    Example:
        >>> from fsdp_migrate.adapters.document.yaml_reader import read_yaml
        >>> text = "a: 1  # one\nb: 2\n"
        >>> [node] = read_yaml(text)
        >>> edits = Edits(text)
        >>> edits.change(node, Change(node.entries[0], value=3, has_value=True))
        >>> edits.add(node, "c", "x y")
        >>> edits.apply()
        'a: 3  # one\nb: 2\nc: x y\n'
    """

    text: str
    is_json: bool = False
    _changes: dict[int, tuple[Mapping, Change]] = field(default_factory=dict)
    _added: list[tuple[Mapping, str, Any]] = field(default_factory=list)
    asked: int = 0
    """How often something was to be changed: what blocks share counts for each."""

    def change(self, mapping: Mapping, change: Change) -> None:
        """Change an entry of a mapping.

        Raises:
            UnsupportedFeatureError: Two blocks share the entry and would change it in different ways.
        """
        self.asked += 1
        # By identity: blocks that merge one anchor have the very same entry.
        before = self._changes.get(id(change.entry))
        if before is not None and before[1] != change:
            msg = (
                f"Line {self._line(change.entry.key.start)}: several blocks share this entry, and it would "
                "become "
                "something else in each. Write it out in each."
            )
            raise UnsupportedFeatureError(msg, feature="shared anchors")
        self._changes[id(change.entry)] = (mapping, change)

    def change_of(self, entry: Entry) -> Change | None:
        """Return what is to become of an entry, or None where it stays."""
        found = self._changes.get(id(entry))
        return found[1] if found else None

    def replace_change(self, mapping: Mapping, change: Change) -> None:
        """Change an entry in another way than was said before."""
        self.asked += 1
        self._changes[id(change.entry)] = (mapping, change)

    def add(self, mapping: Mapping, key: str, value: Any) -> None:
        """Add an entry at the end of a mapping, once."""
        self.asked += 1
        if not any(owner is mapping and name == key for owner, name, _ in self._added):
            self._added.append((mapping, key, value))

    def expected(self, node: Node) -> Any:
        """Return the plain value that a node is to have once the changes are made."""
        node = target(node)
        if isinstance(node, Sequence):
            return [self.expected(item) for item in node.items]
        if not isinstance(node, Mapping):
            return plain(node)
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for entry in node.entries:
            name = key_text(entry)
            if name == "<<":
                # Of mappings that are merged the earliest one counts, and own keys before all of them.
                for part in merge_parts(entry):
                    merged = {**self.expected(part), **merged}
                continue
            change = self._changes.get(id(entry), (node, Change(entry)))[1]
            name = change.key or name
            if name is not None and not change.remove:
                own[name] = change.value if change.has_value else self.expected(entry.value)
        own.update({name: value for owner, name, value in self._added if owner is node})
        return {**merged, **own}

    def apply(self) -> str:
        """Return the text with all changes made.

        Raises:
            UnsupportedFeatureError: What would be taken out is anchored, and used elsewhere.
        """
        mappings: dict[int, Mapping] = {id(m): m for m, _ in self._changes.values()}
        mappings.update({id(m): m for m, _, _ in self._added})
        pieces: list[_Piece] = []
        for mapping in mappings.values():
            changes = {key: change for key, (owner, change) in self._changes.items() if owner is mapping}
            added = [(name, value) for owner, name, value in self._added if owner is mapping]
            pieces += (self._flow if mapping.flow else self._block)(mapping, changes, added)
        text = self.text
        # From the end: a change moves everything behind it, and nothing before it.
        for piece in sorted(_outermost(pieces), reverse=True):
            text = text[: piece.start] + piece.text + text[piece.end :]
        return text

    def _line(self, index: int) -> int:
        return self.text.count("\n", 0, index) + 1

    def _column(self, index: int) -> int:
        return index - (self.text.rfind("\n", 0, index) + 1)

    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _replaced(self, mapping: Mapping, change: Change) -> list[_Piece]:
        pieces = []
        key, value = target(change.entry.key), change.entry.value
        if change.key is not None and isinstance(key, Scalar):
            word = key_word(change.key, like=key, json_style=self.is_json)
            pieces.append(_Piece(change.entry.key.start, change.entry.key.end, 0, word))
        if not change.has_value:
            return pieces
        self._refuse_anchor(value)
        start, end = value.start, value.end
        if isinstance(value, Scalar) and value.text[:1] in {"|", ">"}:  # it ends where the next line begins
            end = _content_end(self.text, value, start)
        # A mapping is written in lines where the text has lines, in braces where it has braces: YAML has no
        # lines of keys within braces, and JSON knows nothing else.
        below = isinstance(change.value, dict) and change.value and not (mapping.flow or self.is_json)
        if below or start == end or (isinstance(value, (Mapping, Sequence)) and not value.flow):
            start = self.text.index(":", change.entry.key.end) + 1
            end = max(_content_end(self.text, value, start), start)
        if below:
            indent = " " * (self._column(change.entry.key.start) + 2)
            lines = [
                line for name, inner in change.value.items() for line in block_lines(name, inner, indent)
            ]
            new = "".join(self._newline() + line for line in lines)
        elif isinstance(value, Scalar) and not isinstance(change.value, (dict, list)):
            new = scalar_text(change.value, like=value, json_style=self.is_json)
        else:
            new = flow_text(change.value, json_style=self.is_json)
        touches = start != value.start or (start == end and self.text[start - 1] not in " \t")
        pieces.append(_Piece(start, end, 0, f" {new}" if touches and not below else new))
        comment = _LISTS.match(self.text, end)
        name = f"{key_text(change.entry)}: "
        if len(pieces) > 1 and comment is not None and not self.text.startswith(name, comment.end()):
            # The new key takes none of the words that the comment says of the old one.
            pieces.append(_Piece(comment.end(), comment.end(), 0, name))
        if len(pieces) > 1 and not mapping.flow:
            pieces += self._named_where_listed(change.entry)
        return pieces

    def _named_where_listed(self, entry: Entry) -> list[_Piece]:
        """Give the first comment above an entry that lists its words the name that they are of."""
        start, name = self._above(entry), key_text(entry) or ""
        above = self.text[start : self.text.rfind("\n", 0, entry.key.start) + 1]
        first = _LISTED.search(above)
        if first is None or re.search(rf"\b{re.escape(name)}\b", above, re.IGNORECASE):
            return []
        return [_Piece(start + first.end(), start + first.end(), 0, f"{name}: ")]

    def _refuse_anchor(self, node: Node) -> None:
        for _, inner in walk(node):
            anchor = getattr(inner, "anchor", None)
            if anchor and re.search(rf"\*{re.escape(anchor)}(?![\w-])", self.text):
                msg = (
                    f"Line {self._line(inner.start)}: `&{anchor}` would be taken out, and `*{anchor}` stands "
                    "elsewhere. Write its value out there first."
                )
                raise UnsupportedFeatureError(msg, feature="shared anchors")

    def _block(
        self, mapping: Mapping, changes: dict[int, Change], added: list[tuple[str, Any]]
    ) -> list[_Piece]:
        entries = mapping.entries
        column = self._column(entries[0].key.start)
        indent, newline = " " * column, self._newline()
        new = [line for name, value in added for line in block_lines(name, value, indent)]
        kept = [e for e in entries if not (id(e) in changes and changes[id(e)].remove)]
        orphans = self._orphans(entries, {id(entry) for entry in kept})
        pieces = []
        for entry in entries:
            change = changes.get(id(entry))
            if change is not None and not change.remove:
                pieces += self._replaced(mapping, change)
            elif change is not None:
                self._refuse_anchor(entry.value)
                if kept:
                    pieces.append(self._removed(mapping, entry, indent, newline, orphans))
        if not kept:
            # A key without a value is null, which many frameworks do not take: so `{}` stays.
            last = _content_end(self.text, entries[-1].value, entries[-1].key.end)
            comments = [
                line for index, e in enumerate(entries) for line in self._all_comments(e, indent, index > 0)
            ]
            body = newline.join([*comments, *new]).removeprefix(indent) or "{}"
            pieces.append(_Piece(entries[0].key.start, _end_of_line(self.text, last), 0, body))
        elif new:
            last_kept = self._last_kept(kept[-1])
            at = _end_of_line(self.text, _content_end(self.text, last_kept.value, last_kept.key.end))
            # Where blocks end in one line the inner one's new lines come first: the deepest column.
            pieces.append(_Piece(at, at, -column, "".join(newline + line for line in new)))
        return pieces

    def _last_kept(self, entry: Entry) -> Entry:
        """Return the entry with whose line the lines of another end, once what goes out of it is gone."""
        value = entry.value
        if not isinstance(value, Mapping) or value.flow or not value.entries:
            return entry
        changes = [self.change_of(each) for each in value.entries]
        stay = [
            each for each, done in zip(value.entries, changes, strict=True) if done is None or not done.remove
        ]
        return self._last_kept(stay[-1]) if stay else entry

    def _above(self, entry: Entry) -> int:
        """Return where the comments begin that stand directly above an entry, in its column; or its line."""
        start = line = self.text.rfind("\n", 0, entry.key.start) + 1
        head = f"{self.text[line : entry.key.start]}#"
        while line > 0:
            line = self.text.rfind("\n", 0, line - 1) + 1
            if head.strip(" ") != "#" or not self.text.startswith(head, line):
                break
            start = line
        return start

    def _orphans(self, entries: list[Entry], kept: set[int]) -> set[int]:
        """Return the entries with comments above them that are about nothing that stays.

        A comment is about the entries below it, down to the next comment or empty line. If it has more
        words of the first's name than of the others', it is about the first.
        """
        found: set[int] = set()
        for index, entry in enumerate(entries):
            line = self.text.rfind("\n", 0, entry.key.start) + 1
            if id(entry) in kept or self._above(entry) == line:
                continue
            group = [entry]
            for later in entries[index + 1 :]:
                last = _content_end(self.text, group[-1].value, group[-1].key.end)
                between = self.text[_end_of_line(self.text, last) : later.key.start]
                if "#" in between or between.count("\n") > 1:
                    break
                group.append(later)
            comment = self.text[self._above(entry) : line].lower()
            said = [_words_said(one, comment) for one in group]
            stays = [words for words, one in zip(said, group, strict=True) if id(one) in kept]
            if not stays or said[0] > max(stays):
                found.add(index)
        return found

    def _named_above(self, entry: Entry, indent: str, newline: str) -> str:
        """Return the comments above an entry, the first of them that says something with its name."""
        line = self.text.rfind("\n", 0, entry.key.start) + 1
        found = [
            text.strip().lstrip("#").strip() for text in self.text[self._above(entry) : line].splitlines()
        ]
        first = next((n for n, text in enumerate(found) if re.search(r"\w", text)), None)  # no rule: `# ====`
        return "".join(
            f"{indent}# {_named(entry, text) if n == first else text}{newline}"
            for n, text in enumerate(found)
        )

    def _all_comments(self, entry: Entry, indent: str, above: bool) -> list[str]:
        lines = self._named_above(entry, indent, "\n").splitlines() if above else []
        return lines + [f"{indent}# {text}" for text in self._comments(entry)]

    def _removed(
        self, mapping: Mapping, entry: Entry, indent: str, newline: str, orphans: set[int]
    ) -> _Piece:
        line = self.text.rfind("\n", 0, entry.key.start) + 1
        end = _end_of_line(self.text, _content_end(self.text, entry.value, entry.key.end))
        comments = "".join(f"{indent}# {text}{newline}" for text in self._comments(entry))
        index = mapping.entries.index(entry)
        after = self.text.find("\n", end)
        if self.text[line : entry.key.start].strip():  # a dash stands before it
            stop = mapping.entries[index + 1].key.start
            return _Piece(entry.key.start, stop, 0, comments.lstrip() + indent if comments else "")
        start = line
        if index in orphans:  # what stands above it would stand above another key: it gets its name
            start = self._above(entry)
            comments = self._named_above(entry, indent, newline) + comments
        if after < 0:  # the last line: the line end before it goes with it
            before = max(start - len(newline), 0)
            return _Piece(
                before, len(self.text), 0, newline + comments.removesuffix(newline) if comments else ""
            )
        return _Piece(start, after + 1, 0, comments)

    def _comments(self, entry: Entry) -> list[str]:
        """Return the comments in the lines of an entry, with the name of the line's key: they outlive it."""
        content = _content_end(self.text, entry.value, entry.key.end)
        text = self.text[entry.key.end : _end_of_line(self.text, content)]
        # What is in scalars is blanked out first: a `#` in a quoted text begins no comment.
        for _, node in walk(entry.value):
            if isinstance(node, Scalar) and node.end > node.start:
                low, high = node.start - entry.key.end, node.end - entry.key.end
                text = text[:low] + "".join("\n" if c == "\n" else "x" for c in text[low:high]) + text[high:]
        inner = [each for _, node in walk(entry.value) if isinstance(node, Mapping) for each in node.entries]
        # The outer ones come last, and count: `a: {b: 1}  # on a`.
        by_line = {self._line(each.key.start): each for each in (*reversed(inner), entry)}
        found = [
            (n, match[1]) for n, line in enumerate(text.splitlines()) if (match := _COMMENT.search(line))
        ]
        first = self._line(entry.key.start)
        return [_named(by_line.get(first + n, entry), said.strip()) for n, said in found if said.strip()]

    def _flow(
        self, mapping: Mapping, changes: dict[int, Change], added: list[tuple[str, Any]]
    ) -> list[_Piece]:
        entries = mapping.entries
        pieces, kept = [], []
        for entry in entries:
            change = changes.get(id(entry))
            if change is None or not change.remove:
                kept.append(entry)
                pieces += self._replaced(mapping, change) if change else []
            else:
                self._refuse_anchor(entry.value)
        # With a line's end in it each key has a line of its own, and so do those that are added.
        lead = self.text[self.text.index("{", mapping.start) + 1 : entries[0].key.start] if entries else ""
        quoted = self.is_json or any(_is_double_quoted(entry.key) for entry in entries)
        written = [
            f"{key_word(name, like=None, json_style=quoted)}: {flow_text(value, json_style=quoted)}"
            for name, value in added
        ]
        between = "," + (lead if "\n" in lead else " ")
        if not kept:
            start = entries[0].key.start if entries else self.text.index("{", mapping.start) + 1
            end = _end(entries[-1]) if entries else start
            return [*pieces, _Piece(start, end, 0, between.join(written))]
        for index, entry in enumerate(entries):
            if entry in kept:
                continue
            # With its own comma; of what stands last, the comma before it goes with all of them, below.
            if any(later in kept for later in entries[index + 1 :]):
                start, end = self._own_lines(entry) or (entry.key.start, entries[index + 1].key.start)
                pieces.append(_Piece(start, end, 0, ""))
        last = _end(kept[-1])
        text = "".join(between + word for word in written)
        # One piece for what goes behind the last one that stays, with its comma, and for what is new.
        pieces.append(_Piece(last, _end(entries[-1]), -1, text))
        return pieces

    def _own_lines(self, entry: Entry) -> tuple[int, int] | None:
        """Return the lines of an entry that shares them with nothing but its comma: empty ones stay."""
        start = self.text.rfind("\n", 0, entry.key.start) + 1
        end = self.text.find("\n", _end(entry))
        rest = self.text[_end(entry) : end]
        alone = end >= 0 and not self.text[start : entry.key.start].strip() and rest.strip() == ","
        return (start, end + 1) if alone and start else None


def _end(entry: Entry) -> int:
    return max(entry.value.end, entry.key.end)


def _is_double_quoted(key: Node) -> bool:
    key = target(key)
    return isinstance(key, Scalar) and key.text.startswith('"')


def _outermost(pieces: list[_Piece]) -> list[_Piece]:
    """Drop replacements within what is replaced or taken out as a whole."""
    unique = list(dict.fromkeys(pieces))
    return [piece for piece in unique if not any(_is_within(piece, other) for other in unique)]


def _is_within(piece: _Piece, other: _Piece) -> bool:
    if piece.start == piece.end:  # an insertion beside a replacement is not within it
        return other.start < piece.start < other.end
    inside = other.start <= piece.start and piece.end <= other.end
    return inside and other.end - other.start > piece.end - piece.start


def _content_end(text: str, value: Node, at_least: int) -> int:
    """Return where a value ends, the line ends that belong to block scalars and empty lines not counted."""
    end = max(value.end, at_least)
    while end > at_least and text[end - 1] in " \t\r\n":
        end -= 1
    if end == at_least and text[end:].lstrip(" ").startswith(":"):
        end = text.index(":", end) + 1
    return end


def _end_of_line(text: str, index: int) -> int:
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return end - 1 if end > index and text[end - 1] == "\r" else end


def _named(entry: Entry, comment: str) -> str:
    """Return a comment with the name of an entry before it, unless it begins with that, or another's."""
    if _SETTING.match(comment):
        return comment
    name = key_text(entry) or ""
    return comment if re.match(rf"{re.escape(name)}\b", comment) else f"{name}: {comment}"


def _words_said(entry: Entry, comment: str) -> int:
    """Return how many words of an entry's name a comment has."""
    words = (key_text(entry) or "").lower().removeprefix("fsdp_").split("_")
    return sum(re.search(rf"\b{re.escape(word)}\b", comment) is not None for word in words)
