"""Which FSDP Composer takes a block for: ``FSDP_VERSION``, where a config sets the environment too."""

from __future__ import annotations

import re
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
_ALONE = re.compile(rf"(?:export\s+)?(?:\w+=\S*\s+)*{_NAME}=\S+(?:\s+\w+=\S*)*")
_TAKEN_BACK = re.compile(rf"\s*unset\s(?:\S+\s+)*{_NAME}\b")
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
    """Yield what each command that sets it, or runs Composer, has; what is set alone counts from there on."""
    exported = _UNSET
    for command in _END.split(_COMMENT.sub("", text).replace("\\\n", " ")):
        given = _SET.findall(command)
        if given and _ALONE.fullmatch(command.strip()):
            exported = given[-1]
        elif _TAKEN_BACK.match(command):
            exported = _UNSET
        runs = _RUNS.search(command) is not None
        if given or runs:
            yield given[-1] if given else exported


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
