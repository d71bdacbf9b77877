"""What annotations say of parameters and fields, and parameters that are named as FSDP1's models are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.object_fields import classes
from fsdp_migrate.source.python.wrappers import FSDP2


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Binding, Index, Scope

    Key = tuple[cst.CSTNode, str]


# What parameters of functions are called that FSDP1's models are given to.
_NAMED = frozenset({"fsdp_model", "fsdp_module"})


def annotated(index: Index) -> Iterator[tuple[Key, str]]:
    """Yield the parameters and the fields of classes that are models in a wrapper, with its kind."""
    has_the_class = _has_the_class(index)
    for scope, name, binding in _parameters(index):
        annotation = binding.node.annotation if isinstance(binding.node, cst.Param) else None
        kind = _kind_of(index, annotation)
        if kind:
            yield (scope.node, name), kind
        elif annotation is None and name in _NAMED and has_the_class:
            yield (scope.node, name), "fsdp"
    for node in index.by_kind.get(cst.AnnAssign, ()):
        assert isinstance(node, cst.AnnAssign)
        owner = index.scopes[node].node
        if isinstance(owner, cst.ClassDef) and isinstance(node.target, cst.Name):
            kind = _kind_of(index, node.annotation)
            if kind:
                yield (owner, f"self.{node.target.value}"), kind


def objects(index: Index) -> list[tuple[Key, cst.ClassDef]]:
    """Return the parameters that are objects of a class of this source, with the class."""
    found: list[tuple[Key, cst.ClassDef]] = []
    for scope, name, binding in _parameters(index):
        annotation = binding.node.annotation if isinstance(binding.node, cst.Param) else None
        if annotation is not None:
            found += [((scope.node, name), node) for node in classes(index, annotation.annotation)]
    return found


def _parameters(index: Index) -> Iterator[tuple[Scope, str, Binding]]:
    for scope in set(index.scopes.values()):
        for name, bindings in scope.bindings.items():
            yield from ((scope, name, binding) for binding in bindings if binding.kind == "param")


def _kind_of(index: Index, annotation: cst.Annotation | None) -> str:
    if annotation is None:
        return ""
    if index.fsdp1(annotation.annotation) == catalog.FSDP:
        return "fsdp"
    return "fsdp2" if index.qualified(annotation.annotation) & FSDP2 else ""


def _has_the_class(index: Index) -> bool:
    """Tell whether the source imports FSDP1's class, and nothing of FSDP2's."""
    every = (each for bindings in index.scope.bindings.values() for each in bindings)
    names = {each.qualified for each in every if each.qualified is not None}
    return not names & FSDP2 and any(catalog.fsdp1_name(name) == catalog.FSDP for name in names)
