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
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)


def sets_fsdp2(document: Node) -> bool:
    """Tell whether a config sets ``FSDP_VERSION`` to 2, and to nothing else: in a mapping, or a command."""
    return set(_versions(plain(document))) == {"2"}


def _versions(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _SET.findall(_COMMENT.sub("", value))
    elif isinstance(value, list):
        for each in value:
            yield from _versions(each)
    elif isinstance(value, dict):
        if _NAME in value:
            yield str(value[_NAME])
        if _NAME in {value.get("name"), value.get("key")}:  # as Kubernetes and MosaicML list variables
            yield str(value.get("value"))
        for each in value.values():
            yield from _versions(each)
