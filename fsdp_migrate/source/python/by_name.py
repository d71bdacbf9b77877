"""Attributes that are read and set by their names: ``getattr(self, "model", None)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from fsdp_migrate.source.python.held import has_model, whole
from fsdp_migrate.source.python.nodes import dotted, kept, last_name
from fsdp_migrate.source.python.texts_of_loops import texts_gone_through


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Index


SETS = frozenset({"object.__setattr__", "setattr"})
PROPERTIES = frozenset({"abstractproperty", "cached_property", "property"})
PATCHES: Final = re.compile(r"mock|patch")
_REPLACES: Final = frozenset({"delattr", "dict", "object", "patch", "setattr"})


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


def part_read(node: cst.BaseExpression) -> tuple[cst.BaseExpression, str] | None:
    """Return the object, and the name, of what is read: ``model.head``, ``getattr(model, "head")``."""
    if isinstance(node, cst.Attribute):
        return node.value, node.attr.value
    named = read_by_name(node) if isinstance(node, cst.Call) else None
    return (named.owner, named.name) if named is not None else None


def read_by_names(index: Index, call: cst.Call) -> list[str]:
    """Return the names of the attributes that ``getattr(self, name)`` reads in a loop over texts."""
    name = call.args[1].value if dotted(call.func) == "getattr" and 2 <= len(call.args) <= 3 else None
    return texts_gone_through(index, name) if isinstance(name, cst.Name) else []


def of_own_names(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what ``getattr(self, name)`` is in a loop over names: where they differ, perhaps another."""
    names, owner = read_by_names(models.index, call), models.index.class_of(call)
    if not names or owner is None or dotted(call.args[0].value) != "self":
        return set()
    every = [models.facts.get((owner, f"self.{each}"), set()) for each in names]
    found = {kind for kinds in every for kind in kinds}
    is_alike = all(whole(kinds) == whole(found) for kinds in every)
    return found if is_alike or not has_model(found) else found | {"other"}


def set_by_name(call: cst.Call) -> Named | None:
    """Return what ``setattr(self, "model", model)`` sets."""
    return _named(call) if dotted(call.func) in SETS and len(call.args) == 3 else None


def set_by_names(index: Index, call: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield the attributes of ``self`` that a call sets by several names, and what each is given.

    ``setattr(self, name, FSDP(...))`` in a loop over texts, and ``self.__dict__.update(model=FSDP(...))``.
    """
    func = call.func
    if dotted(func) in SETS and len(call.args) == 3 and dotted(call.args[0].value) == "self":
        name = call.args[1].value
        for text in texts_gone_through(index, name) if isinstance(name, cst.Name) else ():
            yield text, call.args[2].value
    elif isinstance(func, cst.Attribute) and func.attr.value == "update" and _is_own_dict(func.value):
        for arg in call.args:
            if arg.keyword is not None:
                yield arg.keyword.value, arg.value
            for each in arg.value.elements if isinstance(arg.value, cst.Dict) else ():
                key = each.key if isinstance(each, cst.DictElement) else None
                if isinstance(key, cst.SimpleString) and str(key.evaluated_value).isidentifier():
                    yield str(key.evaluated_value), each.value


def sets_any_name(index: Index, call: cst.Call) -> cst.BaseExpression | None:
    """Return what ``setattr(self, name, model)`` sets by a name that is known only when it runs."""
    is_one = dotted(call.func) in SETS and len(call.args) == 3 and dotted(call.args[0].value) == "self"
    if not is_one or isinstance(call.args[1].value, cst.SimpleString):
        return None
    return None if next(set_by_names(index, call), None) is not None else call.args[2].value


def _is_own_dict(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call):
        return dotted(node.func) == "vars" and len(node.args) == 1 and dotted(node.args[0].value) == "self"
    return dotted(node) == "self.__dict__"


def replaces(function: str) -> bool:
    """Tell whether a test's function, by its dotted name, replaces what stands behind a name.

    Example:
        >>> [replaces(each) for each in ("mock.patch", "monkeypatch.setattr", "setattr", "mock.Mock")]
        [True, True, False, False]
    """
    return function.rpartition(".")[2] in _REPLACES and PATCHES.search(function) is not None


def _named(call: cst.Call) -> Named | None:
    name = call.args[1].value
    text = name.evaluated_value if isinstance(name, cst.SimpleString) else None
    if not isinstance(text, str) or not text.isidentifier() or any(a.star or a.keyword for a in call.args):
        return None
    return Named(call.args[0].value, text, call.args[2].value if len(call.args) == 3 else None)


def set_in_dict(node: cst.Subscript) -> str | None:
    """Return ``self.model`` for ``self.__dict__["model"]``, by which modules hold one that is no part."""
    held, inner = node.value, node.slice[0].slice
    name = inner.value if isinstance(inner, cst.Index) else None
    text = name.evaluated_value if isinstance(name, cst.SimpleString) else None
    if isinstance(held, cst.Call):  # `vars(self)["model"]`
        start = dotted(held.args[0].value) if dotted(held.func) == "vars" and held.args else None
    else:
        start, dot, last = (dotted(held) or "").rpartition(".")
        start = start if last == "__dict__" and dot else None
    return f"{start}.{text}" if start is not None and isinstance(text, str) and text.isidentifier() else None


def dotted_or_named(node: cst.CSTNode) -> str | None:
    """Return ``self.model`` for that, and for what reads or sets it by its name.

    Example:
        >>> dotted_or_named(cst.parse_expression("getattr(self, 'model', None)"))
        'self.model'
    """
    if type(node) is cst.Name or type(node) is cst.Attribute:  # most are; other questions are slower
        return dotted(node)
    if isinstance(node, cst.Subscript):
        return set_in_dict(node)
    if not isinstance(node, cst.Call):
        return None
    named = read_by_name(node) or set_by_name(node)
    start = dotted(named.owner) if named is not None else None
    return f"{start}.{named.name}" if named is not None and start is not None else None


@kept
def bound_name(index: Index, node: cst.CSTNode) -> tuple[cst.CSTNode, str] | None:
    """Return where a name, or its object, is bound, and its text: what facts about it are kept under."""
    text = dotted_or_named(node)
    if text is None:
        return None
    root, _, rest = text.partition(".")
    if root in {"self", "cls"} and rest:
        owner = index.class_of(node)
        return None if owner is None else (owner, f"self.{rest}")
    scope = index.scopes.get(node)
    found = scope.find(root) if scope is not None else None
    if found is None:
        return None
    classes = [each.node for each in found.bindings[root] if type(each.node) is cst.ClassDef] if rest else []
    # What a class has is shared by its objects: `Shared.model`, which `cls.model = ...` sets.
    return (classes[-1], f"self.{rest}") if classes else (found.node, text)


def is_property(function: cst.FunctionDef) -> bool:
    """Tell whether a method is read as an attribute."""
    return any(last_name(e.decorator) in PROPERTIES for e in function.decorators)
