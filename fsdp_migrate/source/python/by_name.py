"""Attributes that are read and set by their names: ``getattr(self, "model", None)``."""

from __future__ import annotations

from typing import NamedTuple

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


SETS = frozenset({"object.__setattr__", "setattr"})
PROPERTIES = frozenset({"abstractproperty", "cached_property", "property"})


class Named(NamedTuple):
    """An object, the name of its attribute, and the default, or what it is set to."""

    owner: cst.BaseExpression
    name: str
    value: cst.BaseExpression | None


def read_by_name(call: cst.Call) -> Named | None:
    """Return what ``getattr(model, "module", model)`` reads."""
    if dotted(call.func) != "getattr" or not 2 <= len(call.args) <= 3:
        return None
    return _named(call)


def set_by_name(call: cst.Call) -> Named | None:
    """Return what ``setattr(self, "model", model)`` sets."""
    return _named(call) if dotted(call.func) in SETS and len(call.args) == 3 else None


def _named(call: cst.Call) -> Named | None:
    name = call.args[1].value
    text = name.evaluated_value if isinstance(name, cst.SimpleString) else None
    if not isinstance(text, str) or not text.isidentifier() or any(a.star or a.keyword for a in call.args):
        return None
    return Named(call.args[0].value, text, call.args[2].value if len(call.args) == 3 else None)


def set_in_dict(node: cst.Subscript) -> str | None:
    """Return ``self.model`` for ``self.__dict__["model"]``, by which modules hold one that is no part."""
    start = dotted(node.value) or ""
    inner = node.slice[0].slice
    name = inner.value if isinstance(inner, cst.Index) else None
    text = name.evaluated_value if isinstance(name, cst.SimpleString) else None
    if not start.endswith(".__dict__") or not isinstance(text, str) or not text.isidentifier():
        return None
    return f"{start.removesuffix('.__dict__')}.{text}"


def dotted_or_named(node: cst.CSTNode) -> str | None:
    """Return ``self.model`` for that, and for what reads or sets it by its name.

    Example:
        >>> dotted_or_named(cst.parse_expression("getattr(self, 'model', None)"))
        'self.model'
    """
    if isinstance(node, cst.Subscript):
        return set_in_dict(node)
    if not isinstance(node, cst.Call):
        return dotted(node)
    named = read_by_name(node) or set_by_name(node)
    start = dotted(named.owner) if named is not None else None
    return f"{start}.{named.name}" if named is not None and start is not None else None


def is_property(function: cst.FunctionDef) -> bool:
    """Tell whether a method is read as an attribute."""
    return any((dotted(e.decorator) or "").split(".")[-1] in PROPERTIES for e in function.decorators)
