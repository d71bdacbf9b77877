"""What the adapters share: blocks of FSDP1 keys in a file, tables of keys, and drafts of a conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from fsdp_migrate import words
from fsdp_migrate.adapters.document.edits import Change, Edits
from fsdp_migrate.adapters.document.nodes import (
    Entry,
    Mapping,
    Node,
    Reference,
    Scalar,
    effective,
    key_text,
    merge_parts,
    plain,
    target,
    unknown_in,
)
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.config import FSDP2Config


@dataclass
class Block:
    """One place of a file that configures FSDP.

    ``node`` holds the FSDP keys, or is None where there is no such mapping yet; ``owner`` is the mapping
    around it (the same as ``node`` where the keys stand at the top), ``root`` the whole document.
    ``unused`` says why the framework does not read it, ``is_fsdp2`` that it is FSDP2 already, ``is_certain``
    that what stands around it is this framework's and no other's, ``is_left`` that the project's own code,
    which reads it, is to be changed in its place. ``unread`` names the keys that the framework's FSDP2 drops.
    """

    framework: str
    path: tuple[str, ...]
    node: Mapping | None
    owner: Mapping
    root: Node
    is_fsdp2: bool = False
    unused: str | None = None
    settings: Settings = field(default_factory=Settings)
    code: str | None = None
    is_certain: bool = True
    is_left: bool = False
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The path as people write it; the whole document is ``.``."""
        return ".".join(self.path) or "."

    def at(self, key: str) -> str:
        """Return the path of a key of the block."""
        return ".".join((*self.path, key))

    def settled(self, value: Any) -> Any:
        """Return a value with what its variables hold, where that is known; in a list too."""
        if isinstance(value, list):
            return [self.settled(item) for item in value]
        known = self.settings.value(str(value)) if isinstance(value, (str, Reference)) else None
        return value if known is None else known

    def beside(self, key: str) -> str:
        """Return the path of a key of the mapping around the block."""
        path = self.path if self.node is self.owner else self.path[:-1]
        return ".".join((*path, key))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of a key. ``key`` and ``value`` replace what stands there; ``remove`` takes it out."""

    code: str
    message: str
    hint: str | None = None
    key: str | None = None
    value: Any = None
    has_value: bool = False
    remove: bool = False


Handler = Callable[[Any, Block], Outcome]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of people's files: its bare name, what becomes of it in words, and how.

    ``is_read`` is false for what the framework itself has never read, which nobody means by another word.
    """

    name: str
    becomes: str
    handle: Handler
    aliases: tuple[str, ...] = ()
    is_read: bool = True


def keep(message: str = "Kept: it means the same.") -> Handler:
    """Return a handler that keeps a key as it is."""
    return lambda value, block: Outcome("FM340", message)


def keep_bool(value: Any, block: Block) -> Outcome:
    """Keep a boolean, as a boolean.

    Raises:
        ConfigError: It is none.
    """
    read = words.read_bool(value, "value") if value is not None else None
    # A flag's value is a word, and stays. HF Trainer's JSON has booleans in a command too.
    is_flag = block.settings.is_command and block.framework == "accelerate"
    if read is value or (is_flag and value == str(read).lower()):
        return Outcome("FM340", "Kept: it means the same.")
    return Outcome("FM341", f"{value!r} is written as {shown(read)}.", value=read, has_value=True)


def keep_count(value: Any, block: Block) -> Outcome:
    """Keep a number of things, as a whole number: ``1e8`` is a word for YAML.

    Raises:
        ConfigError: It is none.
    """
    del block
    if value is None:
        return Outcome("FM340", "Kept: it means the same.")
    read = words.read_count(value, "value")
    if isinstance(value, int):
        return Outcome("FM340", "Kept: it means the same.")
    return Outcome("FM341", f"{value!r} is written as {read}.", value=read, has_value=True)


def obsolete(message: str) -> Handler:
    """Return a handler that takes out a key that FSDP2 does not need."""
    return lambda value, block: Outcome("FM342", f"{shown(value)}: {message}", remove=True)


def lost(message: str, *harmless: Any, hint: str | None = None) -> Handler:
    """Return a handler that takes out a key for which the framework's FSDP2 has nothing.

    With one of the ``harmless`` values, or none, nothing differs.
    """
    off = {item for item in harmless if isinstance(item, bool)}

    def handle(value: Any, block: Block) -> Outcome:
        del block
        word = str(value).strip().lower()
        is_harmless = any(word == str(item).lower() for item in harmless)
        if words.is_nothing(value) or is_harmless or _boolean_of(value) in off:
            return Outcome("FM342", f"{shown(value)}: nothing was asked for.", remove=True)
        return Outcome("FM343", f"{shown(value)}: {message}", hint, remove=True)

    return handle


def _boolean_of(value: Any) -> bool | None:
    """Return the boolean that a value stands for, in any of its words; None for any other."""
    try:
        return words.read_bool(value, "value")
    except ConfigError:
        return None


def shown(value: Any) -> str:
    """Return a value as it stands in a config.

    Example:
        >>> shown(None), shown(True), shown("A")
        ('null', 'true', 'A')
    """
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def bare(name: str) -> str:
    """Return a key without the prefix ``fsdp_``, lower-case, with underscores.

    Example:
        >>> bare("fsdp_offload_params "), bare("FSDP-version")
        ('offload_params', 'version')
    """
    return name.strip().lower().replace("-", "_").removeprefix("fsdp_")


class Adapter(Protocol):
    """One framework: how its FSDP1 configs are recognised, read, and made FSDP2."""

    name: str
    title: str
    keys: tuple[Key, ...]
    """Every key of the framework's FSDP1 configs."""

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield the blocks of a document that this framework reads."""

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping, which the user named, for a block of this framework."""

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments, as words, that a block means; references are left out."""

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft the changes that make the block say what ``config`` says."""


def elsewhere(
    name: str, settings: Settings, subject: str, message: str, hint: str | None = None
) -> tuple[str, str, str, str | None]:
    """Return code, subject, message and hint of what is said of settings in another file."""
    if settings.is_converted(name):
        return "FM347", subject, f"{name} holds the settings, and they are FSDP2's already.", None
    why = settings.refusal(name)
    if why is not None:
        return "FM356", subject, f"{name} holds the settings, and cannot be converted: {why}", None
    return "FM356", subject, message, hint


@dataclass
class Draft:
    """The edits and the findings of a conversion as it is made."""

    edits: Edits
    findings: list[Finding] = field(default_factory=list)

    def say(self, code: str, subject: str, message: str, hint: str | None = None) -> None:
        """Add a finding, once."""
        finding = make_finding(code, subject, message, hint)
        if finding not in self.findings:
            self.findings.append(finding)

    def say_elsewhere(
        self, name: str, settings: Settings, subject: str, message: str, hint: str | None = None
    ) -> None:
        """Say that settings stand in another file; nothing is left to do if that is FSDP2's already."""
        self.say(*elsewhere(name, settings, subject, message, hint))

    def add(self, mapping: Mapping, key: str, value: Any, subject: str, message: str) -> None:
        """Add a key, with a finding."""
        self.edits.add(mapping, key, value)
        self.say("FM344", subject, message)

    def set(self, mapping: Mapping, key: str, value: Any, subject: str, message: str) -> None:
        """Give a key a value: the one that is there, or a new one."""
        entry = effective(mapping).get(key)
        if entry is None:
            self.add(mapping, key, value, subject, message)
        # For Python 1 is True and 0 is False; in the file they are not the same.
        elif plain(entry.value) != value or isinstance(plain(entry.value), bool) != isinstance(value, bool):
            self.edits.change(owner_of(mapping, entry), Change(entry, value=value, has_value=True))
            self.say("FM341", subject, message)

    def rename_all(self, mapping: Mapping, rename: Callable[[str], str]) -> dict[str, str]:
        """Rename the keys that stay, and return them; what else becomes of them stays as drafted."""
        renamed = {}
        for owner, entry in entries_of(mapping):
            written = key_text(entry) or ""
            before = self.edits.change_of(entry)
            if (new := rename(written)) != written and not (before and (before.remove or before.key)):
                self.edits.replace_change(owner, replace(before or Change(entry), key=new))
                renamed[written] = new
        return renamed

    def settle(self, block: Block) -> None:
        """See that no two entries of a block end as one key: alike, the last stays; else they are refused."""
        ends: dict[tuple[int, str], tuple[Mapping, Entry, Any]] = {}
        for owner, entry in entries_of(block.node) if isinstance(block.node, Mapping) else ():
            change = self.edits.change_of(entry) or Change(entry)
            written = key_text(entry) or ""
            end = change.key or written
            value = change.value if change.has_value else plain(entry.value)
            before = ends.get((id(owner), end))
            if change.remove:
                continue
            ends[id(owner), end] = owner, entry, value
            first = before and key_text(before[1])
            if before is None or not first or first == written:  # one key twice is told where it is read
                continue
            both = f"It and `{written}` are one key for FSDP2, `{end}`"
            if before[2] == value:
                self.edits.replace_change(owner, Change(before[1], remove=True))
                self.say("FM349", block.at(first), f"{both}, and say the same; the last one stays.")
            else:
                hint = "Take one of them out, and convert again."
                self.say("FM348", block.at(first), f"{both}, and say different things.", hint)

    def table(
        self,
        block: Block,
        keys: tuple[Key, ...],
        *,
        rename: Callable[[str, str], str] = lambda written, new: new,
        ignore: frozenset[str] = frozenset(),
    ) -> None:
        """Handle every entry of a block, merged ones too, by a table of keys.

        ``rename`` makes the key to write from the one that stood there and the bare new one; what is in
        ``ignore`` is no key of FSDP's.
        """
        assert block.node is not None
        known = by_name(keys)
        last = {key_text(entry): entry for entry in block.node.entries}
        for owner, entry in entries_of(block.node):
            name = key_text(entry)
            if name is None or name in ignore:
                continue
            subject = block.at(name)
            key = known.get(bare(name))
            if owner is block.node and last[name] is not entry:
                self._first_of_two(owner, entry, key, block, rename)
            elif key is None:
                near = words.closest(bare(name), (key.name for key in keys if key.is_read), 0.8)
                if name.strip().lower().startswith("fsdp_"):
                    near = near.replace("`", "`fsdp_", 1)
                text = f"No key of {block.framework} that is known here; kept as it is.{near}"
                self.say("FM345", subject, text)
            elif (outcome := self._outcome(key, plain(entry.value), block, subject)) is not None:
                self.take(owner, entry, outcome, subject, rename)

    def _first_of_two(
        self, owner: Mapping, entry: Entry, key: Key | None, block: Block, rename: Callable[[str, str], str]
    ) -> None:
        """Do with an entry that a later one overrides what is done with any, and say only that."""
        name = key_text(entry) or ""
        # It is changed all the same: left as it is, a key that FSDP2 refuses would stay in the file.
        said = list(self.findings)
        if key is not None and (outcome := self._outcome(key, plain(entry.value), block, name)) is not None:
            self.take(owner, entry, outcome, name, rename)
        self.findings[:] = said
        self.say("FM349", block.at(name), "It is there twice; the last one counts, as in the framework.")

    def _outcome(self, key: Key, value: Any, block: Block, subject: str) -> Outcome | None:
        if (unknown := unknown_in(value)) is not None:
            return self._referred(key, unknown, block, subject)
        try:
            return key.handle(value, block)
        except ConfigError as error:
            text = str(error).replace("`value`", f"`{subject}`")
            self.say("FM348", subject, text, "Correct it, and convert again.")
            return None

    def _referred(self, key: Key, value: Reference, block: Block, subject: str) -> Outcome | None:
        """Handle a value that is known only elsewhere: what holds for every value is done."""
        # Asked what it does without a value: that is done whatever the value is.
        try:
            outcome = key.handle(None, block)
        except ConfigError:
            outcome = Outcome("FM346", "", has_value=True)
        if key.becomes.startswith("taken out: obsolete"):
            return Outcome("FM342", f"{value}: FSDP2 needs no such option.", remove=True)
        if outcome.remove or outcome.has_value:
            hint = f"The key is {key.becomes}. Write its value out and convert again, or change it by hand."
            self.say("FM346", subject, f"{value} is not set in this file: kept as it is.", hint)
            return None
        self._say_of_value(key, value, block, subject)
        return Outcome("FM346", f"{value} is not set in this file: kept.", key=outcome.key)

    def _say_of_value(self, key: Key, value: Reference, block: Block, subject: str) -> None:
        """Say of a variable that is kept what is otherwise with the value that it is known to hold."""
        known = block.settled(value)
        if known is value:
            return
        try:
            outcome = key.handle(known, block)
        except ConfigError:
            return
        if outcome.code == "FM343" and not (outcome.remove or outcome.has_value):
            self.say(outcome.code, subject, outcome.message, outcome.hint)

    def take(
        self,
        owner: Mapping,
        entry: Entry,
        outcome: Outcome,
        subject: str,
        rename: Callable[[str, str], str] = lambda written, new: new,
    ) -> None:
        """Do and say what becomes of one entry. Spaces around a key, which hide it from the framework, go."""
        written = key_text(entry) or ""
        new = None if outcome.key is None else rename(written, outcome.key)
        if new == written:
            new = None
        value = (
            f": {shown(outcome.value)}" if outcome.has_value and not isinstance(outcome.value, dict) else ""
        )
        named = f" It becomes `{new}{value}`." if new and not outcome.remove else ""
        self.say(outcome.code, subject, f"{outcome.message}{named}", outcome.hint)
        key = target(entry.key)
        if isinstance(key, Scalar) and key.value != written and not outcome.remove:
            text = (
                f"The key is {key.value!r}, which the framework does not know: it had no effect. The spaces "
                "are removed, and it has one."
            )
            self.say("FM343", subject, text, "Take it out if the run is to stay as it was.")
            new = new or written
        if outcome.remove or outcome.has_value or new is not None:
            change = Change(entry, new, outcome.value, outcome.has_value, outcome.remove)
            self.edits.change(owner, change)


def entries_of(mapping: Mapping) -> Iterator[tuple[Mapping, Entry]]:
    """Yield the entries of a mapping with the mapping that each stands in: merged ones stand elsewhere."""
    waiting = [mapping]
    done: set[int] = set()
    while waiting:
        owner = waiting.pop()
        if id(owner) in done:
            continue
        done.add(id(owner))  # one that is merged in twice is one place in the text
        for entry in owner.entries:
            if key_text(entry) == "<<":
                waiting += merge_parts(entry)
            else:
                yield owner, entry


def owner_of(mapping: Mapping, entry: Entry) -> Mapping:
    """Return the mapping that an entry stands in: the one given, or one that is merged into it."""
    return next(owner for owner, other in entries_of(mapping) if other is entry)


def by_name(keys: tuple[Key, ...]) -> dict[str, Key]:
    """Return a table of keys by each of their spellings."""
    return {name: key for key in keys for name in (key.name, *key.aliases)}


def bare_values(mapping: Mapping | None, keys: tuple[Key, ...]) -> dict[str, Any]:
    """Return plain values by the names of the table; unknown keys keep their own."""
    if mapping is None:
        return {}
    known = by_name(keys)
    values = {}
    for written, entry in effective(mapping).items():
        name = bare(written)
        values[known[name].name if name in known else name] = plain(entry.value)
    return values


def plain_values(mapping: Mapping) -> dict[str, Any]:
    """Return the plain values of a mapping by the keys as they are written."""
    return {name: plain(entry.value) for name, entry in effective(mapping).items()}


def written_key(mapping: Mapping, *names: str) -> str | None:
    """Return the key, as it is written, that has one of these bare names."""
    return next((name for name in effective(mapping) if bare(name) in names), None)


def is_known(value: Any) -> bool:
    """Tell whether a value was given, and here."""
    return not isinstance(value, Reference) and not words.is_nothing(value)


def mapping_at(mapping: Mapping, name: str) -> Mapping | None:
    """Return the mapping that stands at a key, or None."""
    entry = effective(mapping).get(name)
    node = target(entry.value) if entry else None
    return node if isinstance(node, Mapping) else None


def mappings_of(document: Node) -> Iterator[tuple[tuple[str, ...], Mapping]]:
    """Yield every mapping of a document with its path; merge keys and aliases are not followed."""
    waiting: list[tuple[tuple[str, ...], Node]] = [((), document)]
    while waiting:
        path, node = waiting.pop(0)
        if isinstance(node, Mapping):
            yield path, node
            inner = [((*path, key_text(e) or "?"), e.value) for e in node.entries if key_text(e) != "<<"]
        elif not isinstance(node, Scalar) and hasattr(node, "items"):
            inner = [((*path, str(index)), item) for index, item in enumerate(node.items)]
        else:
            inner = []
        waiting = inner + waiting


def read_number(value: Any) -> int | None:
    """Return a whole number, or None for anything else.

    Example:
        >>> read_number("8"), read_number(True), read_number("auto")
        (8, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return int(value) if str(value).strip().isdigit() else None
