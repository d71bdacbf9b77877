"""Tests that put something in the place of FSDP1's class by its name: ``@patch("pkg.train.FSDP")``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.by_name import replaces
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "mock"
CODES = ("FM424",)

_MEANT = (
    "the name that this replaces is gone when that module is rewritten: give "
    "prepare_fully_shard, or another name that the new module has."
)
_OF_TORCH = (
    "torch keeps this name, and the rewritten module asks for it no more: replace prepare_fully_shard, or "
    "another name that the new module has, where that looks it up."
)
_SPEC = (
    "a mock with this spec is no FSDPModule, which rewritten code asks for: give it a class of the test's "
    "that derives from nn.Module and from FSDPModule."
)
_MOCKS = re.compile(r"^(?:NonCallable)?(?:Async|Magic)?Mock$|^create_autospec$")
_SPECS = frozenset({"spec", "spec_set"})
_NAMES = re.compile(
    r"^(?:[\w.]*\.)?(FSDP|FullyShardedDataParallel|ShardedGradScaler)(\.\w+)?$"
    r"|^torch\.distributed\.fsdp\.(?!fully_shard|FSDPModule)"
)


def find(source: Source) -> Iterator[Found]:
    """Find these strings, as arguments of functions that patch."""
    for call in source.calls:
        name = dotted(call.func) or ""
        last = name.split(".")[-1]
        if _MOCKS.match(last):
            yield from (
                Found("FM424", each, _SPEC, "commented", covers=(each,)) for each in _specs(source, call)
            )
        if not replaces(name):
            continue
        for arg in call.args[:2]:
            text = str(arg.value.evaluated_value) if isinstance(arg.value, cst.SimpleString) else ""
            if _NAMES.match(text) and not _is_in_vain(source, call, text):
                said = _OF_TORCH if text.startswith("torch.") else _MEANT
                yield Found("FM424", call, said, "commented")


def _is_in_vain(source: Source, call: cst.Call, text: str) -> bool:
    """Tell whether the module that a name is replaced in is the project's, and has no such name."""
    return bool({text, f"{dotted(call.args[0].value)}.{text}"} & source.links.replaced_in_vain)


def _specs(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield FSDP1's class where a mock is given it: ``MagicMock(spec=FSDP)``, ``create_autospec(FSDP)``."""
    for place, arg in enumerate(call.args):
        is_spec = place == 0 if arg.keyword is None else arg.keyword.value in _SPECS
        if is_spec and source.references.get(arg.value) == catalog.FSDP:
            yield arg.value
