"""Variables of the environment that a source sets: for Accelerate, or beside HF Trainer's arguments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, named_arguments, word_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


_OF_ACCELERATE: Final = re.compile(r"(?:ACCELERATE|FSDP)_[A-Z_]+\Z")
_NAMES: Final = re.compile(r"\bACCELERATE_[A-Z]|\bFSDP_[A-Z]")


def variables_set(source: Source) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield where a source sets a variable of the environment, with its name and what it is set to."""
    for assign in source.assignments:
        for target in assign.targets:
            held = target.target
            name = word_of(held.slice[0]) if isinstance(held, cst.Subscript) else ""
            is_its = isinstance(held, cst.Subscript) and (dotted(held.value) or "").endswith("environ")
            # `env = os.environ.copy()`, whatever that is called.
            if is_its or _OF_ACCELERATE.match(name):
                yield assign, name, assign.value
    for call in source.calls:
        func, placed = dotted(call.func) or "", [arg.value for arg in call.args if arg.keyword is None]
        if func.endswith("environ.setdefault") and len(placed) == 2:
            yield call, word_of(placed[0]), placed[1]
        elif func.endswith("environ.update"):
            named = named_arguments(call).items()
            yield from ((call, name, value) for name, value in named)
            for each in placed[0].elements if placed and isinstance(placed[0], cst.Dict) else ():
                if isinstance(each, cst.DictElement):
                    yield call, word_of(each.key), each.value
        elif func == "dict" or func.endswith("putenv"):
            yield from _handed_on(call)
    yield from _in_dicts(source)


def _handed_on(call: cst.Call) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield what ``dict(os.environ, NAME=value)`` and ``os.putenv("NAME", value)`` set of Accelerate's."""
    for arg in call.args:
        if arg.keyword is not None and _OF_ACCELERATE.match(arg.keyword.value):
            yield call, arg.keyword.value, arg.value
    name = word_of(call.args[0].value) if len(call.args) > 1 else ""
    if _OF_ACCELERATE.match(name):
        yield call, name, call.args[1].value


def _in_dicts(source: Source) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield what a dict sets of Accelerate's, which a process is started with: ``{**os.environ, ...}``."""
    for node in source.index.by_kind.get(cst.Dict, ()):
        above = source.index.parents[source.index.parents[node]]
        if isinstance(above, cst.Call) and (dotted(above.func) or "").endswith("environ.update"):
            continue
        for each in cst.ensure_type(node, cst.Dict).elements:
            name = word_of(each.key) if isinstance(each, cst.DictElement) else ""
            if _OF_ACCELERATE.match(name):
                yield node, name, each.value


def environment_of_run(source: Source) -> dict[str, str]:
    """Return what Accelerate's variables are where a source runs: as it sets them, or another file does."""
    return {**source.links.environment, **fsdp_environment(source)}


def fsdp_environment(source: Source) -> dict[str, str]:
    """Return what a source sets Accelerate's variables to; what is not one text as a variable, ``$NAME``."""
    sets = variables_set(source) if _NAMES.search(source.code) else ()
    return joined(
        (name, str(value.evaluated_value) if isinstance(value, cst.SimpleString) else None)
        for _, name, value in sets
        if name.startswith(("FSDP_", "ACCELERATE_"))
    )


def joined(sets: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Return what variables are set to, each once; as a variable, ``$NAME``, what is not one known text.

    Example:
        >>> joined([("A", "1"), ("B", "1"), ("B", "0"), ("C", None)])
        {'A': '1', 'B': '$B', 'C': '$C'}
    """
    found: dict[str, set[str]] = {}
    for name, text in sets:
        found.setdefault(name, set()).add(f"${name}" if text is None else text)
    return {name: values.pop() if len(values) == 1 else f"${name}" for name, values in found.items()}
