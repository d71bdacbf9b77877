"""Which FSDP Composer takes a block for: ``FSDP_VERSION``, where a config sets the environment too."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.document.nodes import plain


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.adapters.document.nodes import Node


_NAME = "FSDP_VERSION"
# A value that is known only when it runs is another one than 2.
_SET = re.compile(rf"\b{_NAME}=['\"]?([^\s'\";|&)]*)")
_UNSET = "not set"
_END = re.compile(r"\n|;|&&|\|\|?|&(?![\d>])")
_ASSIGNS = re.compile(r"(\w+)=(.*)", re.DOTALL)
_EXPORTS = re.compile(r"-\w*x\w*")
_DECLARES = frozenset({"declare", "local", "readonly", "typeset"})
_RUNS = re.compile(r"(?:^|[\s/\"'])composer\s")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)


def sets_fsdp2(document: Node) -> bool:
    """Tell whether a config sets ``FSDP_VERSION`` to 2, and to nothing else: in a mapping, or a command."""
    data = plain(document)
    every = {*_given(data)}
    commands = {version for text in _texts(data) for version in _of_commands(text)}
    if not every:
        return commands == {"2"}
    return every | (commands - {_UNSET}) == {"2"}


def _of_commands(text: str) -> Iterator[str]:
    """Yield what each command that exports it, or runs Composer, has; what is exported goes on."""
    shell = _Shell()
    for command in _END.split(_COMMENT.sub("", text).replace("\\\n", " ")):
        if shell.takes(_words(command)):
            if shell.was_exported:
                yield shell.exported
            continue
        given = _SET.findall(command)
        if given or _RUNS.search(command) is not None:
            yield given[-1] if given else shell.exported


@dataclass
class _Shell:
    """What a shell hands on to its commands, and what it only knows itself."""

    exported: str = _UNSET
    was_exported: bool = False
    _own: str = _UNSET
    _exports_all: bool = False

    def takes(self, words: list[str]) -> bool:
        """Take a command that sets variables for the ones below; tell whether it is one."""
        self.was_exported = False
        given = [(match[1], match[2]) for word in words if (match := _ASSIGNS.fullmatch(word))]
        if words and len(given) == len(words):
            self._set(given, exports=self._exports_all or self.exported != _UNSET)
            return True
        first, options = (words or [""])[0], [word for word in words[1:] if word.startswith(("-", "+"))]
        if first == "export" or first in _DECLARES:
            self._set(given, exports=first == "export" or any(map(_EXPORTS.fullmatch, options)))
            if first == "export" and _NAME in words and self._own != _UNSET:
                self._set([(_NAME, self._own)], exports=True)
        elif first == "set":
            self._exports_all |= "allexport" in words or any(
                re.fullmatch(r"-\w*a\w*", each) for each in options
            )
        elif first == "unset" and _NAME in words:
            self.exported = self._own = _UNSET
        else:
            return False
        return True

    def _set(self, given: list[tuple[str, str]], *, exports: bool) -> None:
        for value in (value for name, value in given if name == _NAME):
            self._own = value
            if exports:
                self.exported, self.was_exported = value, True


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


def _given(value: Any) -> Iterator[str]:
    """Yield what mappings set it to, which all commands have."""
    if isinstance(value, dict):
        if _NAME in value:
            yield str(value[_NAME])
        if _NAME in {value.get("name"), value.get("key")}:  # as Kubernetes and MosaicML list variables
            yield str(value.get("value"))
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _given(each)
