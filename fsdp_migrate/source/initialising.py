"""Methods of a model that apply a function to its modules, by their names, or by what they do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.heirs import makers
from fsdp_migrate.source.python.nodes import dotted, given_by_name, last_name, text_of, walk_for
from fsdp_migrate.source.python.object_fields import classes
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Binding, Index
    from fsdp_migrate.source.python.text import Source


# What models of transformers, and most others, call the methods that do so.
_INITIALISERS: Final = frozenset({"init_weights", "initialize_weights", "post_init"})
# What functions over modules are called, where it is not seen what they are.
_FUNCTION: Final = re.compile(r"(?:^|_)(?:init|reset|func(?:tion)?(?:_|$)|fn(?:_|$)|partial$)")
_NO_MODULES: Final = frozenset({"ABC", "Enum", "Generic", "Protocol", "object"})
_DEEPEST: Final = 4


def initialises(source: Source, func: cst.Attribute) -> bool:
    """Tell whether a method of a sharded model applies a function to its modules, also by its name."""
    name = func.attr.value
    every = [cst.ensure_type(each, cst.ClassDef) for each in source.index.by_kind.get(cst.ClassDef, ())]
    if name not in _INITIALISERS and not any(_method(each, name) for each in every):
        return False
    if source.models.certainty(func.value) is None:
        return False
    known = _classes_of(source, func.value)
    if known is None:
        known = [each for each in every if _may_be_a_module(source.index, each)]
    own = [each for owner in known for each in _inherited(source.index, owner, name)]
    return any(_applies(source.index, *each) for each in own) if own else name in _INITIALISERS


def _classes_of(source: Source, node: cst.BaseExpression, depth: int = 0) -> list[cst.ClassDef] | None:
    """Return the classes of this source that a model may be of; None where it may be of others."""
    found: list[cst.ClassDef] | None = None
    for call in makers(source.index, node) if depth < _DEEPEST else ():
        own = list(classes(source.index, call.func))
        inner = None if own else _same(source, call)
        if inner is not None:
            leads = _classes_of(source, inner, depth + 1)
        else:
            leads = own if own or _is_imported(source.index, call.func) else None
        if leads is None:
            return None
        found = [*(found or ()), *leads]
    return found


def _is_imported(index: Index, func: cst.BaseExpression) -> bool:
    """Tell whether it is a class of another file, by its name."""
    return any(name.split(".")[-1][:1].isupper() for name in index.qualified(func))


def _same(source: Source, call: cst.Call) -> cst.BaseExpression | None:
    """Return the model that a call gives back, or wraps: ``FSDP(model)``, ``model.to(device)``."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in SAME_MODEL:
        return func.value
    places = [AROUND_MODEL[name] for name in source.index.qualified(func) if name in AROUND_MODEL]
    if source.models.is_constructor(func):
        for model in given_by_name(call, "module"):
            return model
        places = [0]
    given = call.args[places[0]] if places and len(call.args) > places[0] else None
    return given.value if given is not None and given.keyword is None and not given.star else None


def _may_be_a_module(index: Index, owner: cst.ClassDef, depth: int = 0) -> bool:
    """Tell whether a class has a base that may be a module: ``nn.Module``, or what is not seen."""
    for base in owner.bases:
        above = list(classes(index, base.value))
        is_other = last_name(base.value) in _NO_MODULES
        if depth == _DEEPEST or (not above and not is_other):
            return True
        if any(_may_be_a_module(index, each, depth + 1) for each in above):
            return True
    return False


def _method(owner: cst.ClassDef, name: str) -> cst.FunctionDef | None:
    own = (each for each in owner.body.body if isinstance(each, cst.FunctionDef))
    return next((each for each in own if each.name.value == name), None)


def _inherited(
    index: Index, owner: cst.ClassDef, name: str, depth: int = 0
) -> Iterator[tuple[cst.ClassDef, cst.FunctionDef]]:
    """Yield the method of this name that objects of a class have, with its class; of a base as well."""
    method = _method(owner, name)
    if method is not None:
        yield owner, method
        return
    for base in owner.bases if depth < _DEEPEST else ():
        for above in classes(index, base.value):
            yield from _inherited(index, above, name, depth + 1)


def _applies(index: Index, owner: cst.ClassDef, method: cst.FunctionDef) -> bool:
    """Tell whether a method calls ``self.apply(fn)``, or that of a part of ``self`` with a function.

    ``self.kernel.apply(x)`` with a tensor is one of torch's autograd functions.
    """
    for call in walk_for(method.body, cst.Call):
        root, *rest = (dotted(call.func) or "").split(".")
        if root != "self" or rest[-1:] != ["apply"] or len(call.args) != 1:
            continue
        arg = call.args[0]
        is_its = len(rest) == 1 and _method(owner, "apply") is None
        if arg.keyword is None and not arg.star and (is_its or _is_a_function(index, owner, arg.value)):
            return True
    return False


def _is_a_function(index: Index, owner: cst.ClassDef, node: cst.BaseExpression) -> bool:
    """Tell whether what is given is a function, as far as is seen, or is called like one."""
    if isinstance(node, cst.Lambda) or _is_called_so(node.func if isinstance(node, cst.Call) else node):
        return True
    if isinstance(node, cst.Attribute):
        root, _, name = (dotted(node) or "").partition(".")
        return bool(index.qualified(node)) or (root == "self" and _method(owner, name) is not None)
    if not isinstance(node, cst.Name):
        return False
    bindings = index.bindings_of(node)
    return not bindings or any(_binds_a_function(each) for each in bindings)


def _is_called_so(node: cst.BaseExpression) -> bool:
    return _FUNCTION.search(last_name(node)) is not None


def _binds_a_function(binding: Binding) -> bool:
    if isinstance(binding.node, cst.Param):
        annotation = binding.node.annotation
        return annotation is not None and "Callable" in text_of(annotation.annotation)
    value = binding.value
    is_partial = isinstance(value, cst.Call) and last_name(value.func) == "partial"
    return binding.kind in {"def", "import"} or isinstance(value, cst.Lambda) or is_partial
