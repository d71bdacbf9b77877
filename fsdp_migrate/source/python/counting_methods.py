"""Methods by which a module counts its own parameters, ``get_num_params()``, and functions that do so."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


_COUNTS: Final = frozenset({"nelement", "numel"})
_LISTS: Final = frozenset({"named_parameters", "parameters"})
_OF_DTENSORS: Final = frozenset({"_local_tensor", "full_tensor", "to_local"})
OF_TRANSFORMERS: Final = frozenset({"num_parameters"})
"""How transformers calls its own."""


def may_count(text: str) -> bool:
    """Tell whether a source may have such a method; it costs no parsing.

    Example:
        >>> may_count("sum(p.numel() for p in self.parameters())"), may_count("x.numel()")
        (True, False)
    """
    return any(f".{name}" in text for name in _COUNTS) and any(f".{name}(" in text for name in _LISTS)


def counting_functions(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of functions that are given a model and give back how many parameters it has.

    Example:
        >>> counting_functions([ast.parse("def size(m): return sum(p.numel() for p in m.parameters())")])
        frozenset({'size'})
    """
    inner = (node for tree in trees for node in walked(tree) if isinstance(node, ast.FunctionDef))
    given = ((node, {each.arg for each in node.args.args} - {"cls", "self"}) for node in inner)
    return frozenset(node.name for node, names in given if names and _counts(node, names))


def counting_methods(trees: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names of such methods, and of those that give what another one of the class counts."""
    found: set[str] = set()
    for tree in trees:
        for owner in (node for node in walked(tree) if isinstance(node, ast.ClassDef)):
            found |= _of_class(owner)
    return frozenset(found)


def _of_class(owner: ast.ClassDef) -> set[str]:
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
    found = {node.name for node in methods if _counts(node, {"self"})}
    latest = found
    while latest:
        latest = {node.name for node in methods if node.name not in found and _gives(node, latest)}
        found |= latest
    return found


def _counts(method: ast.FunctionDef, owners: Collection[str]) -> bool:
    """Tell whether a method gives back something, and asks the parameters of one of these for their size."""
    own, asked = False, set()
    for node in walked(method):
        if isinstance(node, ast.Attribute):
            asked.add(node.attr)
            own = own or (
                node.attr in _LISTS and isinstance(node.value, ast.Name) and node.value.id in owners
            )
    gives = any(isinstance(node, ast.Return) and _is_number(node.value) for node in walked(method))
    return own and gives and not asked.isdisjoint(_COUNTS) and not asked & _OF_DTENSORS


def _is_number(value: ast.expr | None) -> bool:
    """Tell whether what is given back may be a count: a dict or a list of the method's is none."""
    return value is not None and not isinstance(value, (ast.Dict, ast.DictComp, ast.List, ast.ListComp))


def _gives(method: ast.FunctionDef, names: set[str]) -> bool:
    """Tell whether what a method gives back is made of what others count: ``return 2 * self.num_params``."""
    given = (node.value for node in walked(method) if isinstance(node, ast.Return) and _is_number(node.value))
    return any(
        isinstance(each, ast.Attribute)
        and each.attr in names
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
        for value in given
        if value is not None
        for each in walked(value)
    )
