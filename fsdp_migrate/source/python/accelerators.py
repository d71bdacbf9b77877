"""Which names of a source are Accelerators, and what its methods are called there.

Assignments and annotations decide: ``hf = Accelerator()``. Of what a source is given the name tells.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


PREPARES: Final = frozenset({"prepare", "prepare_model"})
"""Accelerate's methods that shard."""
UNWRAPS: Final = "unwrap_model"
_KEPT: Final = PREPARES | {UNWRAPS}
_SHORT: Final = frozenset({"acc", "accel"})
# Also `make_accelerator(...)`. A call of its methods, `accelerator.prepare(...)`, makes none.
_MADE: Final = re.compile(
    r"^[ \t]*([\w.]+)[ \t]*(?::[^=\n]+)?=(?!=)[^=\n#()]*?\b\w*accelerator\(", re.MULTILINE | re.IGNORECASE
)
_ANNOTATED: Final = re.compile(
    r"\b([\w.]+)[ \t]*:[ \t]*['\"]?(?:Optional\[|None[ \t]*\|[ \t]*)?(?:\w+\.)*Accelerator\b"
)
_ANEW: Final = re.compile(r"^[ \t]*([\w.]+)[ \t]*=[ \t]*([\w.]+)[ \t]*$", re.MULTILINE)
_OTHER_NAME: Final = re.compile(r"\bimport\b[^\n#]*\bAccelerator[ \t]+as[ \t]+(\w+)")
_ASKED: Final = re.compile(r"([A-Za-z_][\w.]*)\.prepare(?:_model)?\b")


def is_accelerator(owner: str, source: str | ast.Module | Index) -> bool:
    """Tell whether an expression of a source, by its text, is an Accelerator.

    Example:
        >>> is_accelerator("self.hf", "self.hf = Accelerator()"), is_accelerator("hf", "hf = Helper()")
        (True, False)
        >>> is_accelerator("trainer.accelerator", ""), is_accelerator("acc", ""), is_accelerator("", "")
        (True, True, False)
    """
    last = _last(owner)
    return bool(last) and (_is_named(last) or last in _made_in(_text(source)))


def prepares(code: str) -> bool:
    """Tell whether a text gives an Accelerator models, as its words say.

    Example:
        >>> prepares("hf = Accelerator(); hf.prepare(net)"), prepares("data.prepare()")
        (True, False)
    """
    return ".prepare" in code and any(is_accelerator(each, code) for each in set(_ASKED.findall(code)))


def method(index: Index, func: cst.BaseExpression) -> cst.Attribute | None:
    """Return the method that a function is, by another name too: ``unwrap = accelerator.unwrap_model``."""
    if isinstance(func, cst.Attribute):
        return func
    if not isinstance(func, cst.Name) or func not in index.scopes:
        return None
    bound = [each.value for each in index.scopes[func].lookup(func.value)]
    value = bound[0] if len(bound) == 1 else None
    return value if isinstance(value, cst.Attribute) and value.attr.value in _KEPT else None


def method_in(tree: ast.Module, func: ast.expr) -> ast.Attribute | None:
    """Return what :func:`method` does, of a source that the standard library has parsed."""
    if isinstance(func, ast.Attribute):
        return func
    return _names_in(tree).get(func.id) if isinstance(func, ast.Name) else None


@functools.lru_cache(maxsize=64)
def _names_in(tree: ast.Module) -> dict[str, ast.Attribute]:
    """Return the names that a source gives an Accelerator's methods, and nothing else."""
    found: dict[str, ast.Attribute] = {}
    others: set[str] = set()
    for node in ast.walk(tree):
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


def _is_named(last: str) -> bool:
    return "accelerator" in last.lower() or last.lower().strip("_") in _SHORT


def _last(text: str) -> str:
    return text.rpartition(".")[2]


@functools.lru_cache(maxsize=64)
def _text(source: str | ast.Module | Index) -> str:
    if isinstance(source, str):
        return source
    return ast.unparse(source) if isinstance(source, ast.Module) else source.module.code


@functools.lru_cache(maxsize=64)
def _made_in(code: str) -> frozenset[str]:
    """Return the last parts of the names that a source gives Accelerators."""
    if "ccelerat" not in code:
        return frozenset()
    found = {_last(each) for pattern in (_MADE, _ANNOTATED) for each in pattern.findall(code)}
    for name in _OTHER_NAME.findall(code):
        made = re.compile(rf"^[ \t]*([\w.]+)[ \t]*(?::[^=\n]+)?=[ \t]*{name}\(", re.MULTILINE)
        found |= {_last(each) for each in made.findall(code)}
    for name, value in _ANEW.findall(code):
        if _last(value) in found or _is_named(_last(value)):
            found.add(_last(name))
    return frozenset(found)
