"""Where a source has the weights of its models written by functions of other files, and by objects.

``average.swap()`` and ``with average:``, where the object was made with the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source.between_passes import elsewhere, given_to_deed
from fsdp_migrate.source.model_runs import Written
from fsdp_migrate.source.passes_elsewhere import Deed
from fsdp_migrate.source.python.last_values import last_value, values_set
from fsdp_migrate.source.python.nodes import last_name
from fsdp_migrate.source.writes_elsewhere import HELD, WRITTEN, may_write, writes


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_ENTERS: Final = ("__enter__", "__aenter__")


def written_elsewhere(source: Source) -> Iterator[Written]:
    """Yield the calls, and the contexts, by which weights of a model are written."""
    for call in source.calls if source.links.deeds else ():
        for deed in elsewhere(source, call, WRITTEN):
            model = given_to_deed(call, deed)
            if model is not None and not source.contexts.is_summoned(call):
                yield Written(call, model, (), is_put=False)
    methods = {deed.function: deed for deed in _held(source)}
    for node, obj, names in _asked(source) if methods else ():
        made = _made_by(source, obj)
        called = last_name(made.func) if made is not None else ""
        held = next((methods[f"{called}.{n}"] for n in names if f"{called}.{n}" in methods), None)
        model = given_to_deed(made, held) if made is not None and held is not None else None
        if model is not None and not source.contexts.is_summoned(node):
            yield Written(node, model, (), is_put=False)


def _held(source: Source) -> Iterator[Deed]:
    """Yield the methods of other files' classes, and of this one's, that write to what their objects hold."""
    yield from (Deed(*each) for each in source.links.deeds if each[1] == HELD)
    if "class " in source.code and may_write(source.code):
        try:
            tree = parse_any(source.code)
        except (SyntaxError, ValueError):
            return  # of a Python that is not known here
        yield from (each for each in writes([tree]) if each.what == HELD)


def _asked(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, tuple[str, ...]]]:
    """Yield the calls of methods, and the contexts, each with the object and the methods that run."""
    for call in source.calls:
        if isinstance(call.func, cst.Attribute):
            yield call, call.func.value, (call.func.attr.value,)
    for node in source.index.by_kind.get(cst.With, ()):
        block = cst.ensure_type(node, cst.With)
        yield from ((block, item.item, _ENTERS) for item in block.items)


def _made_by(source: Source, obj: cst.BaseExpression) -> cst.Call | None:
    """Return the call that made an object: ``average = Average(model)``."""
    values: list[cst.BaseExpression | None] = [obj]
    if isinstance(obj, cst.Name):
        values = [last_value(source.index, obj)] if obj in source.index.scopes else []
    elif isinstance(obj, cst.Attribute):
        values = [*values_set(source.index, obj)]
    made = [each for each in values if isinstance(each, cst.Call)]
    return made[0] if len(made) == len(values) == 1 else None
