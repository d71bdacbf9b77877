"""What a shell script puts into variables and arrays, read where a command has them. Nothing is run.

A command with the contents in place of the variables knows where each of its characters stands in the script,
so that a change of the command becomes a change of the line that sets the variable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from fsdp_migrate.adapters.conversion.branches import branches_of, is_sure
from fsdp_migrate.adapters.conversion.shell import commands_of


if TYPE_CHECKING:
    from collections.abc import Iterator


_ASSIGNMENT = re.compile(
    r"(?:(?:then|else|do|\{)\s+)?(?:(?:export|local|readonly|declare|typeset)\s+(?:-\w+\s+)*)?"
    r"(\w+)(\+?=)(\(.*\)|(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"'();&|])*)\Z",
    re.DOTALL,
)
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\"']+", re.DOTALL)
_TELLING = re.compile(
    r"--(?:use[-_])?fsdp|--config_file|accelerate(?:\s+|-)launch|commands\.launch|torchrun|\.py\b"
    r"|torch\.distributed\.(?:run|launch)|--(?:bf16|fp16|mixed_precision|optim)\b"
)
_COMMENT = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|(?<=\s)(#[^\n]*)", re.DOTALL)
# What hands a text to another shell, with words that may stand before it: `ssh "$host" "torchrun t.py"`.
_HANDED_ON = (
    r"(?:--wrap|\b(?:ssh|pdsh|clush|tmux\s+send(?:-keys)?|screen|su|runuser|flock|gcloud)\b"
    r"(?:[^\"'\n;&|]|\"[^\"\n]*\"|'[^'\n]*'){0,200}?)[\s=]"
    r"(?=[\"'][^\"']*(?:\btorchrun\b|\baccelerate\b|\btorch\.distributed\b|\.py\b))"
)
_RUN_HERE = re.compile(r"(?:eval|(?:ba|z|da)?sh\s+-\w*c)\s")
_TOKEN = re.compile(
    rf"(?:(?:\beval|\b(?:ba|z|da)?sh\s+-\w*c)\s+|{_HANDED_ON})"
    r"(?P<inner>(?:\"(?:\\.|[^\"\\])*\"|'[^']*')(?:\"(?:\\.|[^\"\\])*\"|'[^']*'|[^\s\"'();&|<>])*)"
    r"|\"\$\{(?P<all>\w+)\[[@*]\]\}\"|\$\{(?P<braced>\w+)(?:\[[@*]\])?\}|\$(?P<bare>[A-Za-z_]\w*)"
    r"|(?P<kept>\"(?:\\.|[^\"\\])*\"|'[^']*'|\\.)",
    re.DOTALL,
)
# A star behind a quote alone: behind a word it is the word's, and each `a*|` would be read in two ways.
_CHOICE = r"[\"']?[\w.*?\[\]=-]+(?:[\"']\*?)?"
_PATTERN = re.compile(rf"(?:case[ \t]+\S+[ \t]+in\s+)?\(?\s*(?:{_CHOICE}\s*\|\s*)*{_CHOICE}\s*\)\s*")
_UNSAFE = re.compile(r"[\"'$`\\\n]")
# What a shell takes a backslash from within double quotes, and what it expands there.
_ESCAPED = re.compile(r"\\([\"\\$`])")
_EXPANDED = re.compile(r"[$`\n]")
_EVAL = re.compile(r"(?:^|[\s;&|(])eval\s+\Z")
_FUNCTION = re.compile(r"^[ \t]*(?:function\s+[\w-]+(?:\s*\(\))?|[\w-]+\s*\(\))\s*\{", re.MULTILINE)
_FUNCTION_ENDS = re.compile(r"(?:^|;)[ \t]*\}", re.MULTILINE)
_DEEPEST = 5
_MOST_VARIANTS = 4
_MOST_PARTS = 1000


class Piece(NamedTuple):
    """A change: what stands between two places becomes another text."""

    start: int
    end: int
    new: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a script gives to a variable: where its content stands, and which part within which quotes."""

    name: str
    start: int
    end: int
    parts: tuple[tuple[int, int, str], ...]
    adds: bool

    @property
    def is_quoted(self) -> bool:
        """Whether quotes stand around any of it."""
        return any(quote for _, _, quote in self.parts)


@dataclass(frozen=True, slots=True)
class _Part:
    start: int
    end: int
    source: int
    quote: str
    run: int
    """The same for parts of one text in double quotes that another shell runs; else the part's own."""
    is_run: bool = False
    is_escaped: bool = False
    """Whether a backslash stands before it in the script, which the shell takes away."""


@dataclass(slots=True)
class Expanded:
    """A command with what stands in its variables, and where each part of it stands in the script."""

    text: str = ""
    parts: list[_Part] = field(default_factory=list)
    used: list[Assignment] = field(default_factory=list)
    branch: tuple[int, ...] = ()
    unsure: list[tuple[int, int]] = field(default_factory=list)
    """What of it stands there only where a condition holds under which the command is not."""
    inner: tuple[int, int] | None = None
    """Where the text stands that another shell runs."""
    is_run: bool = False
    """Whether what is appended now is run by another shell."""

    def take(self, script: str, start: int, end: int, quote: str) -> None:
        """Append a text of the script; its comments become spaces.

        Of a text in double quotes that another shell runs it is what that shell is given.
        """
        if start >= end:
            return
        text, at = script[start:end], len(self.text)
        is_run = self.is_run and quote == '"'
        # Comments become spaces, so that each character keeps its distance from the part's start.
        self.text += without_comments(_ESCAPED.sub(r"\1", text) if is_run else text)
        source = start
        for found in _ESCAPED.finditer(text) if is_run else ():
            at = self._part(at, source, start + found.start(), _Part(0, 0, 0, quote, start, is_run=True))
            one = _Part(0, 0, 0, quote, start, is_run=True, is_escaped=True)
            at = self._part(at, start + found.start(1), start + found.end(), one)
            source = start + found.end()
        self._part(at, source, end, _Part(0, 0, 0, quote, start, is_run=is_run))

    def _part(self, at: int, start: int, end: int, like: _Part) -> int:
        """Note where a part of the script stands in the command; return where that ends."""
        if start < end:
            self.parts.append(replace(like, start=at, end=at + end - start, source=start))
        return at + end - start

    def space(self) -> None:
        """Part two texts that stand beside each other in no script."""
        self.text += " "

    def end_inner(self, begin: int, *, is_joined: bool) -> None:
        """End the text of another shell: what stands behind is no part of its command, if not run here."""
        if not is_joined:
            self.inner = (begin, len(self.text))
        self.text += " " if is_joined else " ; "

    def inner_of(self, changed: str) -> str | None:
        """Return what of a change of this command is a text for another shell; None where there is none."""
        if self.inner is None:
            return None
        begin, end = self.inner
        return changed[begin : len(changed) - len(self.text) + end].strip()

    def placed(self, piece: Piece) -> Piece | None:
        """Return a change of this command as a change of the script; None where it cannot be made there."""
        # By the last character of what changes; what is only added belongs to what stands before it.
        at = max(piece.start, piece.end - 1, 0) if piece.end > piece.start else max(piece.start - 1, 0)
        part = self._at(at)
        if part is None:
            return None
        new = _escaped(piece.new) if part.is_run else piece.new
        if new is None or (part.quote and not part.is_run and _UNSAFE.search(new)):
            return None
        start, first = piece.start, part
        if start < part.start:
            before = self._at(start)
            if before is not None and before.is_run and before.run == part.run:
                first = before
            elif self.text[start : part.start].strip():
                return None
            else:
                start = part.start
        begin = start - first.start + first.source
        is_behind_backslash = first.is_escaped and piece.end > piece.start
        return Piece(begin - is_behind_backslash, piece.end - part.start + part.source, new)

    def _at(self, at: int) -> _Part | None:
        """Return the part of the script that stands at a place of the command."""
        return next((part for part in self.parts if part.start <= at < part.end), None)


def _escaped(text: str) -> str | None:
    """Return a text as it stands in double quotes; None where the shell around would expand it."""
    return None if _EXPANDED.search(text) else re.sub(r'(["\\])', r"\\\1", text)


class Script:
    r"""A shell script, and what it puts into which variable.

    Example:
        >>> script = Script("A='--use_fsdp'\naccelerate launch $A t.py\n")
        >>> [script.variants(start, end)[0].text for start, end in script.others()]
        ['accelerate launch --use_fsdp t.py']
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.used: set[Assignment] = set()
        self._commands = list(_without_patterns(text))
        self._functions = [found.end() for found in _FUNCTION.finditer(text)]
        self._branches = branches_of(text, commands_of(text))
        self._assignments: dict[int, Assignment] = {}
        self._branches_at: dict[Assignment, tuple[int, ...]] = {}
        self._groups: dict[str, list[list[Assignment]]] = {}
        for start, end in self._commands:
            match = _ASSIGNMENT.match(text[start:end])
            if match is not None:
                self._add(start, _assignment(match, start))
                self._branches_at[self._assignments[start]] = self._branches[end]

    def _add(self, at: int, given: Assignment) -> None:
        self._assignments[at] = given
        groups = self._groups.setdefault(given.name, [])
        content = self.text[given.start : given.end]
        adds = given.adds or re.search(rf"\$\{{?{given.name}\b", content) is not None
        if adds and groups:
            groups[-1].append(given)
        else:
            groups.append([given])

    def others(self) -> list[tuple[int, int]]:
        """Return where the commands stand that do more than to set a variable."""
        return [(start, end) for start, end in self._commands if start not in self._assignments]

    def unused(self) -> list[tuple[int, int, Assignment]]:
        """Return the commands that set a variable which no command has had, with what they set."""
        ends = dict(self._commands)
        return [(at, ends[at], given) for at, given in self._assignments.items() if given not in self.used]

    def variants(self, start: int, end: int) -> list[Expanded]:
        """Return a command with what its variables may hold: one for each place that sets them anew."""
        found: list[Expanded] = []
        for number in range(_MOST_VARIANTS):
            one = Expanded(branch=self._branches[end])
            most = self._expand(one, (start, end, ""), number, 0)
            found.append(one)
            if number + 1 >= most:
                break
        for one in found:
            self.used.update(one.used)
        return found

    def whole(self, start: int, end: int) -> Expanded:
        """Return a command as it stands."""
        one = Expanded()
        one.take(self.text, start, end, "")
        return one

    def content(self, given: Assignment) -> Expanded:
        """Return what a variable holds as a command of its own."""
        one = Expanded()
        for part in given.parts:
            self._expand(one, part, 0, 0)
        return one

    def _expand(
        self,
        to: Expanded,
        place: tuple[int, int, str],
        number: int,
        depth: int,
        adding: str | None = None,
    ) -> int:
        """Append a text of the script with its variables; return how many variants there are."""
        start, end, quote = place
        at, most = start, 1
        for match in _TOKEN.finditer(self.text, start, end):
            inner = match.start("inner")
            name = match["all"] or match["braced"] or match["bare"]
            if inner >= 0 and not quote:
                to.take(self.text, at, inner, quote)
                to.space()
                # Quotes are closed within the text where a variable of the script itself stands in it.
                begin, was_run, to.is_run = len(to.text), to.is_run, True
                for part in _parts_of(match["inner"], inner):
                    most = max(most, self._expand(to, part, number, depth))
                to.is_run = was_run
                to.end_inner(begin, is_joined=_RUN_HERE.match(match[0]) is not None)
            elif name and name == adding:  # what it held before stands there already
                to.take(self.text, at, match.start(), quote)
            elif name and (group := self._told(name, start, number)) and _may_go_on(to, depth):
                to.take(self.text, at, match.start(), quote)
                most = max(most, len(self._fresh(name, start)))
                was_run, to.is_run = to.is_run, to.is_run or self._is_evaluated(start, match.start())
                for index, given in enumerate(group):
                    if index:
                        to.space()
                    to.used.append(given)
                    adds, before = name if index else None, len(to.text)
                    for part in given.parts:
                        most = max(most, self._expand(to, part, number, depth + 1, adding=adds))
                    if not self._is_sure(given, group[0], to.branch):
                        to.unsure.append((before, len(to.text)))
                to.is_run = was_run
            else:
                continue
            at = match.end()
        to.take(self.text, at, end, quote)
        return most

    def _is_evaluated(self, start: int, at: int) -> bool:
        """Tell whether a variable stands behind ``eval``."""
        return _EVAL.search(self.text[start:at]) is not None

    def _told(self, name: str, at: int, number: int) -> list[Assignment]:
        groups = self._fresh(name, at)
        group = groups[min(number, len(groups) - 1)] if groups else []
        # A variable that adds to itself is taken once; of what is added below, a function's command has all.
        last = len(self.text) if self._is_in_function(at) else at
        return [given for given in group if not given.start <= at <= given.end and given.start <= last]

    def _is_in_function(self, at: int) -> bool:
        """Tell whether a command stands in a function, which may be called below what is set behind it."""
        opened = next((each for each in reversed(self._functions) if each < at), None)
        return opened is not None and _FUNCTION_ENDS.search(self.text, opened, at) is None

    def _is_sure(self, given: Assignment, first: Assignment, within: tuple[int, ...]) -> bool:
        """Tell whether a command has what a variable is given: of several that set it anew, it has one."""
        if given is first and len(self._telling(given.name)) > 1:
            return True
        own, of_first = self._branches_at[given], self._branches_at[first]
        return is_sure(own, within) or (given is not first and is_sure(own, of_first))

    def _telling(self, name: str) -> list[list[Assignment]]:
        return [group for group in self._groups.get(name, []) if any(map(self._is_telling, group))]

    def _fresh(self, name: str, at: int) -> list[list[Assignment]]:
        """Return what a variable may hold at a place, as far as it tells anything about a command."""
        before = [group for group in self._telling(name) if group[0].start < at]
        fresh = [group for group in before if not self.used.issuperset(group)]
        return fresh or before[-1:]

    def _is_telling(self, given: Assignment) -> bool:
        content = self.text[given.start : given.end]
        return _TELLING.search(content) is not None or any(
            self._is_telling_name(name) for name in re.findall(r"\$\{?(\w+)", content) if name != given.name
        )

    def _is_telling_name(self, name: str) -> bool:
        return any(
            _TELLING.search(self.text, given.start, given.end)
            for group in self._groups.get(name, [])
            for given in group
        )


def _without_patterns(text: str) -> Iterator[tuple[int, int]]:
    """Yield where commands begin and end; a pattern of ``case`` before one is no part of it."""
    for start, end in commands_of(text):
        pattern = _PATTERN.match(text, start)
        begin = pattern.end() if pattern else start
        if begin < end:
            yield begin, end


def _may_go_on(to: Expanded, depth: int) -> bool:
    """Tell whether variables are still looked into: a script can have them in each other without end."""
    return depth < _DEEPEST and len(to.parts) < _MOST_PARTS


def _assignment(match: re.Match[str], at: int) -> Assignment:
    name, sign, value = match.groups()
    start, end = at + match.start(3), at + match.end(3)
    if value.startswith("("):
        start, end = start + 1, end - 1
        return Assignment(name, start, end, ((start, end, ""),), sign == "+=")
    return Assignment(name, start, end, tuple(_parts_of(value, start)), sign == "+=")


def _parts_of(word: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield where the parts of a shell word stand, and within which quotes."""
    for part in _QUOTED.finditer(word):
        quote = part[0][0] if part[0][0] in "\"'" else ""
        yield start + part.start() + len(quote), start + part.end() - len(quote), quote


def without_comments(text: str) -> str:
    """Return a text with spaces in place of its comments, as an array of the shell may have them.

    Example:
        >>> without_comments("--a 1 # one")
        '--a 1      '
    """
    return _COMMENT.sub(lambda match: " " * len(match[0]) if match[1] else match[0], text)
