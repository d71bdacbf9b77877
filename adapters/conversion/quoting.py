"""Values with variables as words of a shell command: the shell expands nothing within single quotes."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# In a Makefile `$$X` is the shell's, and `$(X)` is make's, which expands it anywhere.
_VARIABLE = re.compile(r"\$?\$(?:\{[^{}\"']*\}|\([^()\"']*\)|\w+|[@*])")
_BARE = re.compile(rf"(:\s*)({_VARIABLE.pattern})(?=\s*[,}}])")
_NUMBER = re.compile(r'("(?:fsdp_)?min_num_params": )"(\$[^"]*)"')


def expanded_in(texts: Iterable[str]) -> frozenset[str]:
    """Return the variables that the shell expands in pieces of a command: not those in single quotes.

    Example:
        >>> sorted(expanded_in(["a $B '$C'", "'x'$D"]))
        ['$B', '$D']
    """
    return frozenset(found for text in texts for found in _VARIABLE.findall("".join(_open(text))))


def as_word(value: str, expanded: frozenset[str]) -> str:
    """Write a value as one word of a command, in which these variables are expanded.

    Example:
        >>> print(as_word('{"a": "$B"}', frozenset({"$B"})), as_word("$C d", frozenset({"$B"})))
        '{"a": "'"$B"'"}' '$C d'
    """
    value = _NUMBER.sub(lambda found: f"{found[1]}{found[2]}" if found[2] in expanded else found[0], value)
    found = [each for each in _VARIABLE.finditer(value) if each[0] in expanded]
    if not found:
        return shlex.quote(value)
    parts, start = [], 0
    for each in found:
        parts += [_quoted(value[start : each.start()]), f'"{each[0]}"']
        start = each.end()
    return "".join([*parts, _quoted(value[start:])])


def with_numbers_as_texts(document: str) -> str:
    """Return JSON in which variables that stand for numbers are texts.

    Example:
        >>> with_numbers_as_texts('{"a": $N, "b": "$M"}')
        '{"a": "$N", "b": "$M"}'
    """
    return _BARE.sub(r'\1"\2"', document)


def _quoted(text: str) -> str:
    inner = text.replace("'", "'\"'\"'")
    return f"'{inner}'" if text else ""


def _open(text: str) -> Iterator[str]:
    """Yield the characters of a text that do not stand in single quotes."""
    around = ""
    for char in text:
        if char in "\"'" and around in {"", char}:
            around = "" if around else char
        if around != "'":
            yield char
