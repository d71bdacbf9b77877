"""What the classes of optimizers in a source derive from, and whose step they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.parameters import is_torchs_optimizer


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_DEEPEST = 4
_EARLY = ("__init__", "add_param_group")


def classes_named(source: Source, node: cst.BaseExpression) -> Iterator[cst.ClassDef]:
    """Yield the classes of this source that a name stands for."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        for binding in source.index.scopes[node].lookup(node.value):
            if isinstance(binding.node, cst.ClassDef) and binding.kind == "class":
                yield binding.node


def is_optimizer_class(source: Source, node: cst.ClassDef, depth: int = 0) -> bool:
    """Tell whether a class derives from torch's optimizers, as far as names tell."""
    for base in node.bases:
        name = dotted(base.value) or ""
        known = source.index.qualified(base.value)
        if any(each.startswith("torch.optim.") for each in known):
            return any(map(is_torchs_optimizer, known))
        if "optim" in name.split(".")[-1].lower():
            return True
        if depth < 3 and any(
            is_optimizer_class(source, own, depth + 1) for own in classes_named(source, base.value)
        ):
            return True
    return False


def bases_of(source: Source, names: set[str]) -> set[str]:
    """Return the names of the classes here that some derive from."""
    found: set[str] = set()
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        assert isinstance(node, cst.ClassDef)
        if node.name.value in names:
            found |= {own.name.value for base in node.bases for own in classes_named(source, base.value)}
    return found


def steps_of(source: Source, node: cst.ClassDef, depth: int = 0) -> set[str]:
    """Return the imported classes whose step a class has, as imports write them; none of one of its own."""
    steps = [
        each for each in node.body.body if isinstance(each, cst.FunctionDef) and each.name.value == "step"
    ]
    if steps and not any(map(_asks_above, steps)):
        return set()
    found: set[str] = set()
    for base in node.bases:
        found |= source.index.qualified(base.value)
        for own in classes_named(source, base.value) if depth < _DEEPEST else ():
            found |= steps_of(source, own, depth + 1)
    return found


def _asks_above(step: cst.FunctionDef) -> bool:
    """Tell whether a step calls that of the class above: ``super().step(closure)``."""
    funcs = (call.func for call in walk_for(step.body, cst.Call))
    return any(
        isinstance(func, cst.Attribute)
        and func.attr.value == "step"
        and isinstance(func.value, cst.Call)
        and isinstance(func.value.func, cst.Name)
        and func.value.func.value == "super"
        for func in funcs
    )


def fills_its_state_early(owner: cst.ClassDef) -> bool:
    """Tell whether an optimizer makes its state where it is made: ``self.state[p] = {}`` in ``__init__``."""
    methods = {each.name.value: each for each in owner.body.body if isinstance(each, cst.FunctionDef)}
    left = [methods[name] for name in _EARLY if name in methods]
    for each in left:  # with what these run
        called = (text_of(call.func).removeprefix("self.") for call in walk_for(each.body, cst.Call))
        left += [methods[name] for name in called if name in methods and methods[name] not in left]
    asked = (part.value for each in left for part in walk_for(each.body, cst.Subscript))
    return any(text_of(each) == "self.state" for each in asked)
