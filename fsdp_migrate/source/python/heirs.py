"""What the classes of a project are by their bases: ``class Mine(Trainer)`` is a Trainer too."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.last_values import values_set


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Binding, Index


LIGHTNINGS: Final = re.compile(r"^(?:lightning(?:\.pytorch)?|pytorch_lightning)(?:\.\w+)*\.Trainer$")
FABRICS: Final = re.compile(
    r"^(?:lightning|pytorch_lightning|lightning_fabric|lightning_lite)(?:\.\w+)*\.(?:Fabric|LightningLite)$"
)
COMPOSERS: Final = re.compile(r"^composer(?:\.trainer){0,2}\.Trainer$")
HUGGING_FACES: Final = re.compile(r"^(?:transformers|trl|sentence_transformers)\b.*Trainer$")
STRATEGIES: Final = re.compile(
    r"^(?P<package>lightning\.pytorch|pytorch_lightning|lightning\.fabric|lightning_fabric)\..*"
    r"\b(DDPFullyShardedNativeStrategy|FSDPStrategy)$"
)
"""Lightning's and Fabric's strategies of FSDP1."""
ACCELERATES: Final = re.compile(r"^accelerate\b.*\bAccelerator$")
OF_KINDS: Final = {"Accelerator": ACCELERATES, "Fabric": FABRICS}
"""By the names of :class:`~fsdp_migrate.source.python.named_objects.NamedObjects`."""
_CONSTRUCTORS: Final = frozenset({"__init__", "__new__"})
NO_FRAMEWORKS: Final = frozenset({"abc", "torch", "typing", "typing_extensions"})
"""Packages whose classes are no Trainers."""
_DEEPEST: Final = 4
_OF_TYPE: Final = 3
"""The arguments of ``type`` that makes a class."""


def led_to(index: Index, node: cst.BaseExpression, depth: int = 0) -> set[str]:
    """Return the dotted names that a class may stand for, also those that its bases lead to."""
    if isinstance(node, cst.Subscript):
        return led_to(index, node.value, depth)  # Trainer[Batch]
    if isinstance(node, cst.IfExp):
        return {name for part in (node.body, node.orelse) for name in led_to(index, part, depth)}
    if isinstance(node, cst.Call):
        return {name for base in _bases_given(node) for name in led_to(index, base, depth + 1)}
    if not isinstance(node, (cst.Attribute, cst.Name)):
        return set()
    found = index.qualified(node)
    found = found.union(*(index.heirs.get(name, ()) for name in found))
    for binding in _bindings(index, node) if depth < _DEEPEST else ():
        if isinstance(binding.node, cst.ClassDef):
            parts = [base.value for base in binding.node.bases if not base.star]
        else:
            is_whole = binding.index is None and binding.value is not node
            parts = [binding.value] if binding.value is not None and is_whole else []
        found = found.union(*(led_to(index, part, depth + 1) for part in parts))
    return found


def _bases_given(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the bases of a class that a call makes: ``type("Mine", (Mixin, Trainer), {})``."""
    is_made = isinstance(call.func, cst.Name) and call.func.value == "type" and len(call.args) == _OF_TYPE
    bases = call.args[1].value if is_made else None
    elements = bases.elements if isinstance(bases, cst.Tuple) else ()
    return [each.value for each in elements if isinstance(each, cst.Element)]


def hands_on(index: Index, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether a class takes what the framework's does, as far as is seen: it has no constructor."""
    owners = [each.node for each in _bindings(index, node) if isinstance(each.node, cst.ClassDef)]
    if not owners or depth == _DEEPEST:
        return not any(map(index.heirs.get, index.qualified(node))) and depth < _DEEPEST
    methods = (item for owner in owners for item in owner.body.body if isinstance(item, cst.FunctionDef))
    return not any(each.name.value in _CONSTRUCTORS for each in methods) and all(
        hands_on(index, base.value, depth + 1) for owner in owners for base in owner.bases
    )


def is_of_its_own(index: Index, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether it is a class of the project that derives from no framework's, as all its bases show."""
    bound = _bindings(index, node)
    names = index.qualified(node) if isinstance(node, (cst.Attribute, cst.Name)) else set()
    if names and all(index.heirs.get(name) == frozenset() for name in names):
        return not any(isinstance(each.node, cst.ClassDef) for each in bound)
    owners = [each.node for each in bound if isinstance(each.node, cst.ClassDef)]
    if not owners or len(owners) < len(bound) or depth == _DEEPEST:
        return False
    bases = (base for owner in owners for base in owner.bases)
    return all(not base.star and _is_no_trainers(index, base.value, depth + 1) for base in bases)


def _is_no_trainers(index: Index, base: cst.BaseExpression, depth: int) -> bool:
    base = base.value if isinstance(base, cst.Subscript) else base  # Generic[T]
    if isinstance(base, cst.Name) and base.value == "object":
        return True
    roots = {name.split(".")[0] for name in index.qualified(base)}
    return (bool(roots) and roots <= NO_FRAMEWORKS) or is_of_its_own(index, base, depth)


def is_made_by(index: Index, node: cst.BaseExpression, made: re.Pattern[str], depth: int = 0) -> bool:
    """Tell whether an expression may be an object of a class, or of one that derives from it."""
    return any(_is_of(index, call.func, made) for call in makers(index, node, depth)) or any(
        _is_of(index, each, made) for each in _annotations(index, node)
    )


def is_itself(index: Index, node: cst.BaseExpression, made: re.Pattern[str]) -> bool:
    """Tell whether it is ``self``, or ``super()``, in a class whose bases lead to one."""
    is_self = isinstance(node, cst.Name) and node.value == "self"
    is_super = isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "super"
    owner = index.class_of(node) if is_self or is_super else None
    return owner is not None and any(_is_of(index, base.value, made) for base in owner.bases)


def makers(index: Index, node: cst.BaseExpression, depth: int = 0) -> Iterator[cst.Call]:
    """Yield the calls that may have made an object: through names, ``self.name`` and functions here."""
    if depth > _DEEPEST:
        return
    if isinstance(node, cst.Call):
        functions = [each.node for each in _bindings(index, node.func) if each.kind == "def"]
        if not functions:
            yield node
        for function in functions:
            for value in _returned(index, function):
                yield from makers(index, value, depth + 1)
        return
    for value in values_of(index, node):
        yield from makers(index, value, depth + 1)


def values_of(index: Index, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what a name or an attribute of ``self`` is given, also by a function that gives several."""
    if isinstance(node, cst.Attribute):
        yield from values_set(index, node)
    for binding in _bindings(index, node):
        if binding.value is None:
            continue
        if binding.index is None:
            yield binding.value
            continue
        call = binding.value
        for each in _bindings(index, call.func) if isinstance(call, cst.Call) else ():
            for value in _returned(index, each.node) if each.kind == "def" else ():
                parts = value.elements if isinstance(value, (cst.Tuple, cst.List)) else ()
                if binding.index < len(parts) and not any(
                    isinstance(part, cst.StarredElement) for part in parts
                ):
                    yield parts[binding.index].value


def _bindings(index: Index, node: cst.BaseExpression) -> list[Binding]:
    is_name = isinstance(node, cst.Name) and node in index.scopes
    return index.bindings_of(node) if is_name and isinstance(node, cst.Name) else []


def _is_of(index: Index, func: cst.BaseExpression, made: re.Pattern[str]) -> bool:
    return any(map(made.match, led_to(index, func)))


def _annotations(index: Index, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    for binding in _bindings(index, node):
        param = binding.node
        if isinstance(param, cst.Param) and param.annotation is not None:
            yield param.annotation.annotation


def _returned(index: Index, function: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    for node in index.by_kind.get(cst.Return, ()):
        value = node.value if isinstance(node, cst.Return) else None
        if value is not None and index.function(node) is function:
            yield value
