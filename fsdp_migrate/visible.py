"""Texts of anybody's, made visible: names in checkpoints, paths and sources are not ours to trust."""

from __future__ import annotations


_KEPT = "\n\t"


def printable(text: str) -> str:
    r"""Return a text in which every character shows; the others are escaped.

    The others are control characters, those that change the direction of text, spaces of other widths and of
    none, and halves of characters that no file can hold. Line ends and tabs stay.

    Example:
        >>> printable("a\x1b[31m"), printable("b\u202etxt.exe"), printable("\ud800")
        ('a\\x1b[31m', 'b\\u202etxt.exe', '\\ud800')
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _KEPT else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
