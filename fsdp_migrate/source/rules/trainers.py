"""FSDP1 as Composer's Trainer is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "trainers"
CODES = ("FM328",)

_COMPOSER = (
    "Composer: add fsdp_migrate.adapters.composer_callback's callback to the Trainer, or give it an "
    "fsdp2_config under parallelism_config."
)


def find(source: Source) -> Iterator[Found]:
    """Find the arguments of the Trainer that ask for FSDP1."""
    for call in source.calls:
        known = sorted(source.index.qualified(call.func)) or [dotted(call.func) or ""]
        if known[0].split(".")[-1] != "Trainer" or not _imports(source, "composer"):
            continue
        for arg in call.args:
            name = arg.keyword.value if arg.keyword is not None else ""
            if name in {"fsdp_config", "parallelism_config"} and not _is_nothing(arg.value):
                yield Found("FM328", arg, _COMPOSER, "commented")


def _is_nothing(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value in {"None", "False"}


def _imports(source: Source, package: str) -> bool:
    bindings = (b for every in source.index.scope.bindings.values() for b in every)
    return any(b.qualified is not None and b.qualified.split(".")[0] == package for b in bindings)
