"""Which names of a source are Accelerators, and what its methods are called there.

Assignments and annotations decide: ``hf = Accelerator()``. Of what a source is given the name tells.
"""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import libcst as cst

from fsdp_migrate.source.python.named_objects import NamedObjects, last_part
from fsdp_migrate.source.python.nodes import dotted, last_name, placed_parameters, walk_for
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


PREPARES: Final = frozenset({"prepare", "prepare_model"})
"""Accelerate's methods that shard."""
UNWRAPS: Final = "unwrap_model"
_KEPT: Final = PREPARES | {UNWRAPS}
ACCELERATORS: Final = NamedObjects(
    "Accelerator",
    shards=PREPARES,
    tells=frozenset(
        {
            *("accumulate", "backward", "gather_for_metrics", "get_state_dict", "is_local_main_process"),
            *("is_main_process", "main_process_first", "register_for_checkpointing", "sync_gradients"),
            *("split_between_processes", UNWRAPS, "wait_for_everyone"),
        }
    ),
    named=r"accelerator|^acc$|^accel$",
)


def is_accelerator(owner: str, source: str | ast.Module | Index) -> bool:
    """Tell whether an expression of a source, by its text, is an Accelerator.

    Example:
        >>> is_accelerator("self.hf", "self.hf = Accelerator()"), is_accelerator("hf", "hf = Helper()")
        (True, False)
        >>> is_accelerator("trainer.accelerator", ""), is_accelerator("acc", ""), is_accelerator("", "")
        (True, True, False)
    """
    return is_one(ACCELERATORS, owner, source)


def is_one(objects: NamedObjects, owner: str, source: str | ast.Module | Index) -> bool:
    """Tell whether an expression of a source, by its text, is such an object, as other files say too."""
    told = {} if isinstance(source, (str, ast.Module)) else source.objects
    return last_part(owner) in told.get(objects.kind, ()) or objects.is_one(owner, text_of_source(source))


def prepares(code: str) -> bool:
    """Tell whether a text gives an Accelerator models, as its words say.

    Example:
        >>> prepares("hf = Accelerator(); hf.prepare(net)"), prepares("data.prepare()")
        (True, False)
    """
    return ".prepare" in code and ACCELERATORS.shards_in(code)


def method(index: Index, func: cst.BaseExpression) -> cst.Attribute | None:
    """Return the method that a function is, by another name too: ``unwrap = accelerator.unwrap_model``.

    Also of a function that hands on all that it is given: ``return self.accelerator.prepare(*objects)``.
    """
    name = last_name(func)
    if isinstance(func, cst.Name) or (isinstance(func, cst.Attribute) and dotted(func.value) == "self"):
        handed = _that_hand_on(index).get(name)
        if handed is not None:
            return handed
    if isinstance(func, cst.Attribute):
        return func
    if not isinstance(func, cst.Name) or func not in index.scopes:
        return None
    bound = [each.value for each in index.scopes[func].lookup(func.value)]
    value = bound[0] if len(bound) == 1 else None
    return value if isinstance(value, cst.Attribute) and value.attr.value in _KEPT else None


@functools.lru_cache(maxsize=8)
def _that_hand_on(index: Index) -> dict[str, cst.Attribute]:
    """Return that method by the names of functions that hand it all that they are given."""
    found: dict[str, cst.Attribute] = {}
    for node in index.by_kind.get(cst.FunctionDef, ()):
        function = cst.ensure_type(node, cst.FunctionDef)
        names = [each.name.value for each in placed_parameters(function)]
        names = names[1:] if names[:1] == ["self"] else names
        if isinstance(function.params.star_arg, cst.Param):
            names.append(function.params.star_arg.name.value)
        for given in (each.value for each in walk_for(function.body, cst.Return)):
            func = given.func if isinstance(given, cst.Call) and given.args[:1] else None
            if not isinstance(func, cst.Attribute) or func.attr.value not in PREPARES:
                continue
            first = cst.ensure_type(given, cst.Call).args[0]
            if first.star == "*" and [dotted(first.value)] == names[:1]:
                found[function.name.value] = func
    return found


def method_in(tree: ast.Module, func: ast.expr) -> ast.Attribute | None:
    """Return what :func:`method` does, of a source that the standard library has parsed."""
    if isinstance(func, ast.Attribute):
        return func
    if not isinstance(func, ast.Name):
        return None
    if tree not in _NAMES_IN:
        _NAMES_IN[tree] = _names_in(tree)
    return _NAMES_IN[tree].get(func.id)


# Of all files of a project, which are gone through in turn many times; as long as one is parsed.
_NAMES_IN: WeakKeyDictionary[ast.Module, dict[str, ast.Attribute]] = WeakKeyDictionary()


def _names_in(tree: ast.Module) -> dict[str, ast.Attribute]:
    """Return the names that a source gives an Accelerator's methods, and nothing else."""
    found: dict[str, ast.Attribute] = {}
    others: set[str] = set()
    for node in walked(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            value = node.value if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Name) and isinstance(value, ast.Attribute) and value.attr in _KEPT:
                found[target.id] = value
            elif isinstance(target, ast.Name):
                others.add(target.id)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            others.add(node.name)
    return {name: value for name, value in found.items() if name not in others}


def method_that_shards(index: Index, func: cst.BaseExpression) -> str:
    """Return which of an Accelerator's methods that shard a function is, or nothing."""
    found = method(index, func)
    # By the method's name first: whose it is takes the text of the source.
    if found is None or found.attr.value not in PREPARES:
        return ""
    # `Accelerator().prepare_model(model)`
    owner = found.value.func if isinstance(found.value, cst.Call) else found.value
    return found.attr.value if is_accelerator(dotted(owner) or "", index) else ""


@functools.lru_cache(maxsize=64)
def text_of_source(source: str | ast.Module | Index) -> str:
    """Return a source as it is written, or as it is parsed."""
    if isinstance(source, str):
        return source
    if isinstance(source, ast.Module):
        return ast.unparse(source)
    return source.code or source.module.code
