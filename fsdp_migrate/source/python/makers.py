"""What makes FSDP1 models beside calls of the class: subclasses, partials, and parts that are wrapped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.held import COMPILED
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, kept, last_name, model_argument, walk_for
from fsdp_migrate.source.python.wrappers import MAKES, compiled


if TYPE_CHECKING:
    from collections.abc import Collection

    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Binding, Index


_WHOLE = frozenset({"ddp", "fsdp", "fsdp2", "other"})
_WRAPPING = re.compile(r"wrap|shard|fsdp|parallel")
PUTS_BY_NAME = re.compile(r"^(setattr|_?(set|replace)_(sub)?module(_by_name)?)$")
"""What functions are called that put a part into a model: ``set_module(model, "encoder.layer", part)``."""
_Parts = tuple[cst.BaseExpression | None, cst.BaseExpression | None]


def given_here(models: ModelKinds, func: cst.BaseExpression) -> set[str]:
    """Return what functions of this source give, of a model also ``shard = lambda net: FSDP(net)``."""
    found = set[str]().union(*(models.returns.get(each, ()) for each in models.guards.functions(func)))
    if not isinstance(func, cst.Name) or func not in models.index.scopes:
        return found
    value = last_value(models.index, func)
    return found | (models.kinds(value.body) & _WHOLE if isinstance(value, cst.Lambda) else set())


def is_partial_of(index: Index, func: cst.CSTNode, names: frozenset[str]) -> bool:
    """Tell whether a name is made a partial of one of some functions."""
    if not isinstance(func, cst.Name) or func not in index.scopes:
        return False
    for binding in index.scopes[func].lookup(func.value):
        value = binding.value
        if isinstance(value, cst.Call) and value.args and isinstance(value.func, (cst.Name, cst.Attribute)):
            partial = "functools.partial" in index.qualified(value.func)
            if partial and index.qualified(value.args[0].value) & names:
                return True
    return False


@kept
def is_constructor(index: Index, func: cst.CSTNode) -> bool:
    """Tell whether calling an expression makes an FSDP1 model: the class, a subclass, a partial of it."""
    if index.fsdp1(func) == catalog.FSDP:
        return True
    if type(func) is not cst.Name or func not in index.scopes:
        return False
    return any(makes_fsdp(index, each) for each in index.scopes[func].lookup(func.value))


def of_wrapping(index: Index, call: cst.Call) -> set[str]:
    """Return what a call of such a class gives: of a compiled model one whose names have that prefix."""
    found = {"fsdp", "other"} if index.is_ambiguous(call.func) else {"fsdp"}
    given = model_argument(call, 0)
    value = last_value(index, given) if isinstance(given, cst.Name) and given in index.scopes else given
    if not isinstance(value, cst.Call) or "torch.compile" not in index.qualified(value.func):
        return found
    is_before = value is given or index.order[value] < index.order[call]
    return found | {COMPILED} if is_before and not index.excludes(value, call) else found


def of_around(
    models: ModelKinds, call: cst.Call, inner: cst.BaseExpression, names: Collection[str]
) -> set[str]:
    """Return what a call gives that gives back its model: compiled, where that is sharded in this branch."""
    kinds, key = models.kinds(inner), models.key_of(inner)
    made = models.made.get(key, ()) if key is not None and key not in models.given else ()
    is_other = bool(made) and all(models.index.excludes(each, call) for each in made)
    return kinds if is_other else compiled(names, kinds)


def makes_fsdp(index: Index, binding: Binding) -> bool:
    """Tell whether a name is bound to a subclass of FSDP1's class, or to a partial of it."""
    if isinstance(binding.node, cst.ClassDef):
        return any(index.fsdp1(base.value) == catalog.FSDP for base in binding.node.bases)
    value = binding.value
    if not isinstance(value, cst.Call) or not index.qualified(value.func) & {"functools.partial"}:
        return False
    return bool(value.args) and index.fsdp1(value.args[0].value) == catalog.FSDP


def is_partial_of_fsdp(index: Index, func: cst.CSTNode) -> bool:
    """Tell whether a name is bound to a partial of FSDP1's class."""
    if not isinstance(func, cst.Name) or func not in index.scopes:
        return False
    bindings = index.scopes[func].lookup(func.value)
    return any(not isinstance(each.node, cst.ClassDef) and makes_fsdp(index, each) for each in bindings)


def is_wrapping(call: cst.Call) -> bool:
    """Tell whether a call names a function that wraps what it is given, by what else it is given.

    ``wrap_blocks(net, wrapper=FSDP)`` of a package that is not seen.
    """
    return len(call.args) > 1 and _WRAPPING.search(last_name(call.func).lower()) is not None


def chosen(parts: list[tuple[cst.BaseExpression, set[str]]]) -> set[str]:
    """Return what one of two expressions may be: also another, if one makes an object of its own."""
    found = {kind for _, kinds in parts for kind in kinds}
    if MAKES in found and not all(MAKES in kinds for _, kinds in parts):
        return found | {"other"}  # `(FSDP if sharded else DDP)(net)`
    calls = [dotted(part.func) or "" for part, kinds in parts if not kinds and isinstance(part, cst.Call)]
    is_other = "fsdp" in found and any(name.split(".")[-1][:1].isupper() for name in calls)
    return found | ({"other"} if is_other else set())


def gives_fsdp_modules(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether a call gives FSDP1's modules of a model, by the class or by a function named so."""
    if not isinstance(node, cst.Call):
        return False
    known = index.fsdp1(node.func)
    if known is not None:
        return known == f"{catalog.FSDP}.fsdp_modules"
    if any(is_named(each, catalog.FSDP) for each in index.by_kind.get(cst.ClassDef, ())):
        return False  # of the source's own class of that name
    return last_name(node.func).endswith("fsdp_modules")


def is_named(node: cst.CSTNode, name: str) -> bool:
    """Tell whether a class has a name."""
    return isinstance(node, cst.ClassDef) and node.name.value == name


def put_into(call: cst.Call) -> _Parts:
    """Return the model that a call puts a part into, and the part: ``setattr(model, name, part)``."""
    given = [arg.value for arg in call.args]
    last = last_name(call.func)
    if len(given) == 3 and isinstance(call.func, cst.Name) and PUTS_BY_NAME.search(last):
        return given[0], given[2]
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if len(given) == 2 and name in {"add_module", "register_module", "set_submodule"}:
        return cst.ensure_type(call.func, cst.Attribute).value, given[1]
    return None, None


def replaced_part(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> tuple[cst.BaseExpression | None, str]:
    """Return the model of which an assignment wraps a part, and that: ``net.head = FSDP(net.head)``.

    ``state.model = FSDP(net)`` is none: that object need not be a module.
    """
    if not isinstance(target, cst.Attribute) or dotted(target.value) in {None, "cls", "self"}:
        return None, ""
    text = dotted(target)
    is_same = any(dotted(each) == text for each in walk_for(value, cst.Attribute))
    return (target.value, target.attr.value) if is_same else (None, "")
