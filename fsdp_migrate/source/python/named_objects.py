"""Which names of a text are objects of one class of a framework: by assignments, annotations and uses."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Iterator


_ANEW: Final = re.compile(r"^[ \t]*([\w.]+)[ \t]*=[ \t]*([\w.]+)[ \t]*$", re.MULTILINE)
_TUPLE: Final = re.compile(r"^[ \t]*([\w.]+(?:[ \t]*,[ \t]*[\w.]+)+)[ \t]*=(?!=)[ \t]*(.+)$", re.MULTILINE)
_OF_A_CLASS: Final = re.compile(
    r"^[ \t]*([\w.]+)[ \t]*(?::[^=\n]+)?=[ \t]*(?:\w+\.)*([A-Z]\w*)\(", re.MULTILINE
)
_ASKED: Final = re.compile(r"([A-Za-z_][\w.]*)\.([A-Za-z]\w*)\b")
# What a class of the project asks itself, or a Trainer of its own, is no framework's.
_OWN: Final = frozenset({"self", "cls", "super", "trainer", "model"})
_ARGUMENTS: Final = re.compile(r"\((?:[^()]|\([^()]*\))*\)")
_CLASS: Final = re.compile(r"class (\w+)\(([^()]*)\)")
_MAX_PARTS: Final = 4


@dataclass(frozen=True)
class NamedObjects:
    """One class of a framework."""

    kind: str
    """The class."""
    shards: frozenset[str]
    """Its methods that shard."""
    tells: frozenset[str]
    """What its objects alone are asked for, beside those."""
    named: str
    """What their names have in small letters, as an expression."""
    _made: re.Pattern[str] = field(init=False, repr=False)
    _annotated: re.Pattern[str] = field(init=False, repr=False)
    _other_name: re.Pattern[str] = field(init=False, repr=False)
    _at_once: re.Pattern[str] = field(init=False, repr=False)
    _heir: re.Pattern[str] = field(init=False, repr=False)
    _by_itself: re.Pattern[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Also `make_accelerator(...)`. A call of its methods, `accelerator.prepare(...)`, makes none.
        made = rf"^[ \t]*([\w.]+)[ \t]*(?::[^=\n]+)?=(?!=)[^=\n#()]*?\b\w*{self.kind}\("
        annotated = rf"\b([\w.]+)[ \t]*:[ \t]*['\"]?(?:Optional\[|None[ \t]*\|[ \t]*)?(?:\w+\.)*{self.kind}\b"
        other_name = rf"\bimport\b[^\n#]*\b{self.kind}[ \t]+as[ \t]+(\w+)"
        at_once = rf"\b{self.kind}\((?:[^()]|\([^()]*\))*\)\s*\.(?:{'|'.join(sorted(self.shards))})\("
        by_itself = rf"\b(?:self|super\(\))\.(?:{'|'.join(sorted(self.shards))})\("
        object.__setattr__(self, "_at_once", re.compile(at_once))
        object.__setattr__(self, "_heir", re.compile(rf"class (\w+)\([^()]*\b{self.kind}\b[^()]*\)"))
        object.__setattr__(self, "_by_itself", re.compile(by_itself))
        object.__setattr__(self, "_made", re.compile(made, re.MULTILINE | re.IGNORECASE))
        object.__setattr__(self, "_annotated", re.compile(annotated))
        object.__setattr__(self, "_other_name", re.compile(other_name))

    def is_named(self, last: str) -> bool:
        """Tell whether a name alone says so, by its last part."""
        return re.search(self.named, last.lower().strip("_")) is not None

    def is_one(self, owner: str, code: str) -> bool:
        """Tell whether an expression of a source, by its text, is such an object."""
        last = last_part(_ARGUMENTS.sub("", owner))  # `Fabric(devices=2).setup(net)`, too
        return bool(last) and (self.is_named(last) or last in names_in(self, code))

    def shards_in(self, code: str) -> bool:
        """Tell whether a text has such an object shard anything, also one without a name."""
        is_by_name = any(self.is_one(owner, code) for owner in self._sharding(code))
        is_in_heir = bool(self.heirs(code)) and self._by_itself.search(code) is not None
        return is_by_name or is_in_heir or self._at_once.search(code) is not None

    def heirs(self, code: str) -> set[str]:
        """Return the classes of a text that derive from the framework's.

        Example:
            >>> NamedObjects("Fabric", frozenset(), frozenset(), "fabric").heirs("class Mine(L.Fabric): pass")
            {'Mine'}
        """
        found = set(self._heir.findall(code)) if self.kind in code else set()
        others = _CLASS.findall(code) if found else ()
        for _ in range(_MAX_PARTS if others else 0):
            wanted = re.compile(rf"\b(?:{'|'.join(sorted(found))})\b")
            found |= {name for name, bases in others if wanted.search(bases)}
        return found

    def unknown_in(self, code: str) -> frozenset[str]:
        """Return the last parts of what is asked to shard, and is not known for such an object."""
        unknown = (each for each in self._sharding(code) if each not in _OWN)
        found = frozenset(last_part(each) for each in unknown if not self.is_one(each, code))
        return found - self._of_others(code)

    def _of_others(self, code: str) -> set[str]:
        """Return the names that are given what another class makes."""
        made = ((last_part(name), by) for name, by in _OF_A_CLASS.findall(code))
        heirs = self.heirs(code)
        return {name for name, by in made if self.kind not in by and by not in heirs}

    def _sharding(self, code: str) -> set[str]:
        return {owner for owner, method in _ASKED.findall(code) if method in self.shards}

    def find(self, code: str) -> Iterator[str]:
        """Yield names that a text gives such objects, or asks for what they alone have."""
        if self.kind.lower() in code.lower():
            for pattern in (self._made, self._annotated):
                yield from pattern.findall(code)
            for name in (*self._other_name.findall(code), *self.heirs(code)):
                made = re.compile(
                    rf"^[ \t]*([\w.]+)[ \t]*(?::[^=\n]+)?=[ \t]*(?:\w+\.)*{name}\(", re.MULTILINE
                )
                yield from made.findall(code)
            yield from self._in_tuples(code)
        yield from self._by_use(code)

    def _in_tuples(self, code: str) -> Iterator[str]:
        """Yield names of ``hf, config = Accelerator(), load()``."""
        for targets, values in _TUPLE.findall(code):
            names, parts = [each.strip() for each in targets.split(",")], _split(values)
            for name, value in zip(names, parts, strict=False) if len(names) == len(parts) else ():
                if re.match(rf"[\w.]*\b\w*{self.kind}\(", value, re.IGNORECASE):
                    yield name

    def _by_use(self, code: str) -> Iterator[str]:
        others = self._of_others(code)
        asked: dict[str, set[str]] = {}
        for owner, method in _ASKED.findall(code):
            asked.setdefault(owner, set()).add(method)
        for owner, methods in asked.items():
            is_own = last_part(owner) in _OWN | others or owner.count(".") >= _MAX_PARTS
            if not is_own and methods & self.shards and methods & self.tells:
                yield owner


def _split(values: str) -> list[str]:
    """Return the parts of a text between its outer commas."""
    parts, depth = [""], 0
    for char in values:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [each.strip() for each in parts]


def last_part(text: str) -> str:
    """Return what stands behind the last dot.

    Example:
        >>> last_part("self.hf"), last_part("hf")
        ('hf', 'hf')
    """
    return text.rpartition(".")[2]


@functools.lru_cache(maxsize=128)
def names_in(objects: NamedObjects, code: str) -> frozenset[str]:
    """Return the last parts of the names that a source has for such objects."""
    found = set(map(last_part, objects.find(code)))
    if not found and objects.kind.lower() not in code.lower():
        return frozenset()
    for name, value in _ANEW.findall(code):
        if last_part(value) in found or objects.is_named(last_part(value)):
            found.add(last_part(name))
    return frozenset(found)
