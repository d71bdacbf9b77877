"""Layers that are put into a sharded model from outside: ``model.fc = nn.Linear(512, 10)``.

FSDP1's wrapper took such a layer as a module of its own, and ran the model within, which kept its own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.heirs import led_to
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


# A loss is no layer that a forward runs, and has no parameters.
_LAYER: Final = re.compile(r"^torch\.nn\.(?:modules\.(?:\w+\.)?)?[A-Z](?!\w*(?:Loss|DataParallel)$)\w*$")
_BY_NAME: Final = frozenset({"add_module", "register_module", "register_parameter", "set_submodule"})
_SAME: Final = frozenset({"bfloat16", "cpu", "cuda", "double", "float", "half", "to", "train", "eval"})
_SET: Final = ("object", "name", "value")
_PUT: Final = ("name", "value")
"""The arguments of ``setattr``, and of these methods."""
_DEEPEST: Final = 3


def set_layers(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield where something is given a layer as an attribute, and what that is."""
    for assign in source.assignments:
        for each in assign.targets:
            if isinstance(each.target, cst.Attribute) and _is_layer(source, assign.value):
                yield each.target, each.target.value
    for call in source.calls:
        func, count = call.func, len(call.args)
        is_function = count == len(_SET) and dotted(func) == "setattr"
        is_method = isinstance(func, cst.Attribute) and func.attr.value in _BY_NAME and count == len(_PUT)
        if (is_function or is_method) and _is_layer(source, call.args[-1].value):
            yield call, func.value if isinstance(func, cst.Attribute) else call.args[0].value


def _is_layer(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an expression makes a module, or a parameter, by a class of torch's or one below it."""
    if isinstance(node, cst.Name) and node in source.index.scopes and depth < _DEEPEST:
        value = last_value(source.index, node)
        return value is not None and _is_layer(source, value, depth + 1)
    if not isinstance(node, cst.Call):
        return False
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME:
        return _is_layer(source, node.func.value, depth)
    return any(map(_LAYER.match, led_to(source.index, node.func)))
