"""Which of many texts have a word: each text is gone through once, whatever is asked for afterwards."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


KeyT = TypeVar("KeyT")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class WordIndex(Generic[KeyT]):
    """Texts by their names, and where which words stand."""

    texts: Mapping[KeyT, str]

    @functools.cached_property
    def _by_word(self) -> dict[str, list[int]]:
        """The places of the texts that have a word, in order."""
        found: dict[str, list[int]] = {}
        for place, text in enumerate(self.texts.values()):
            for word in set(_WORD.findall(text)):
                found.setdefault(word, []).append(place)
        return found

    @functools.cached_property
    def _keys(self) -> list[KeyT]:
        return list(self.texts)

    def holding(self, names: Iterable[str]) -> list[KeyT]:
        r"""Return the texts in which one of some names stands, as ``\b(?:one|other)\b`` finds them.

        Example:
            >>> index = WordIndex({1: "state.model = net", 2: "models = state"})
            >>> index.holding(["model"]), index.holding(["state.model", "models"])
            ([1], [1, 2])
        """
        places: set[int] = set()
        for name in set(names):
            places.update(self._holding(name))
        return [self._keys[place] for place in sorted(places)]

    def _holding(self, name: str) -> Iterable[int]:
        words = _WORD.findall(name)
        if words == [name]:
            return self._by_word.get(name, ())
        # Of `state.model` each word is one of the text's as well.
        pattern = re.compile(rf"\b{re.escape(name)}\b")
        likely = set(range(len(self._keys))).intersection(*(self._by_word.get(word, ()) for word in words))
        texts = ((place, self.texts[self._keys[place]]) for place in likely)
        return [place for place, text in texts if name in text and pattern.search(text)]
