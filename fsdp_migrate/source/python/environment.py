"""Variables of the environment that a source sets: for Accelerate, or beside HF Trainer's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


def variables_set(source: Source) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    """Yield where a source sets a variable of the environment, with its name and what it is set to."""
    for assign in source.assignments:
        for target in assign.targets:
            held = target.target
            if isinstance(held, cst.Subscript) and (dotted(held.value) or "").split(".")[-1] == "environ":
                yield assign, text_of(held.slice[0]).strip("'\""), assign.value
    for call in source.calls:
        func, placed = dotted(call.func) or "", [arg.value for arg in call.args if arg.keyword is None]
        if func.endswith("environ.setdefault") and len(placed) == 2:
            yield call, text_of(placed[0]).strip("'\""), placed[1]
        elif func.endswith("environ.update"):
            named = ((arg.keyword.value, arg.value) for arg in call.args if arg.keyword is not None)
            yield from ((call, name, value) for name, value in named)
            for each in placed[0].elements if placed and isinstance(placed[0], cst.Dict) else ():
                if isinstance(each, cst.DictElement):
                    yield call, text_of(each.key).strip("'\""), each.value


def fsdp_environment(source: Source) -> dict[str, str]:
    """Return what a source sets Accelerate's variables to; what is not one text as a variable, ``$NAME``."""
    found: dict[str, set[str]] = {}
    for _, name, value in variables_set(source) if "environ" in source.code else ():
        if name.startswith(("FSDP_", "ACCELERATE_")):
            text = str(value.evaluated_value) if isinstance(value, cst.SimpleString) else f"${name}"
            found.setdefault(name, set()).add(text)
    return {name: values.pop() if len(values) == 1 else f"${name}" for name, values in found.items()}
