"""What makes a module one that torch can walk: tables, names, an end. Looked at without torch's own walks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from fsdp_migrate.arguments import what_it_is
from fsdp_migrate.errors import ModelError
from fsdp_migrate.torch_compat import module_kinds


if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLES: Final = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}
_HEADROOM: Final = 50
"""Frames that torch's walks and ours take beside one for each level."""


def check_structure(model: object) -> None:
    """Check that the model is a module whose parts torch can find by their names; nothing of it is called.

    Raises:
        ModelError: It is no module, or a part of it is none, has no usable name, contains itself, or lies
            deeper than Python recurses.
    """
    fault = structure_fault(model)
    if fault is not None:
        raise fault


def check_is_module(model: object) -> None:
    """Check that what is given for a model is one.

    Raises:
        ModelError: It is something else.
    """
    if not isinstance(model, nn.Module):
        what = what_it_is(model)
        hint = " Call the class to make one." if isinstance(model, type) else ""
        msg = f"The model is {what}; expected a torch.nn.Module, and its arguments after it.{hint}"
        raise ModelError(msg)


def structure_fault(model: object) -> ModelError | None:
    """Return what :func:`check_structure` raises, or None."""
    try:
        check_is_module(model)
        levels = _levels(model)
    except ModelError as error:
        return error
    # Those who call this have taken some of the frames already.
    limit = sys.getrecursionlimit() - _frames() - _HEADROOM
    if levels > limit:
        msg = (
            f"The model's modules are nested {levels} levels deep; Python's recursion limit of "
            f"{sys.getrecursionlimit()} leaves torch {limit} of them here. Nest them less, as in one "
            f"nn.ModuleList, or call `sys.setrecursionlimit({levels + 1000})` first."
        )
        return ModelError(msg, fqn="")
    return None


def _levels(model: Any) -> int:
    """Return how deeply the modules are nested; every one of them is checked once."""
    # A loop, not a recursion: of too many levels there is to be an error with words, not a RecursionError.
    below: dict[int, int] = {}
    path: list[tuple[str, Any, Iterator[tuple[str, Any]]]] = [("", model, _checked_children("", model))]
    above = {id(model): ""}
    while path:
        fqn, module, children = path[-1]
        name, child = next(children, ("", None))
        if child is None:
            path.pop()
            del above[id(module)]
            below.setdefault(id(module), 1)
            if path:
                parent = id(path[-1][1])
                below[parent] = max(below.get(parent, 1), below[id(module)] + 1)
        elif id(child) in above:
            _refuse_cycle(_join(fqn, name), child, above[id(child)])
        elif id(child) in below:
            below[id(module)] = max(below.get(id(module), 1), below[id(child)] + 1)
        else:
            own = _join(fqn, name)
            above[id(child)] = own
            path.append((own, child, _checked_children(own, child)))
    return below[id(model)]


def _checked_children(fqn: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Check one module's tables, and return what its children are."""
    # Scripted modules have no tables, and names that torch itself has checked. What FSDP1 has wrapped is
    # refused later, in words of its own.
    if isinstance(module, torch.jit.ScriptModule) or module_kinds.is_fsdp1_module(module):
        return iter(())
    where = f"Module `{fqn}`" if fqn else "The model"
    where = f"{where} ({type(module).__name__})"
    if type(module).__hash__ is None:
        msg = (
            f"{where} cannot be hashed: its class has `__eq__` and no `__hash__`. torch keeps modules in "
            "sets. Add `__hash__ = torch.nn.Module.__hash__` to the class."
        )
        raise ModelError(msg, fqn=fqn)
    missing = [table for table in _TABLES if not isinstance(vars(module).get(table), Mapping)]
    if missing:
        msg = (
            f"{where} has no `{missing[0]}` in which torch keeps its {_TABLES[missing[0]]}s. Its `__init__` "
            "must call `super().__init__()` first, and nothing may replace what that sets."
        )
        raise ModelError(msg, fqn=fqn)
    for table, kind in _TABLES.items():
        for name, value in vars(module)[table].items():
            _check_name(fqn, where, kind, name)
            if value is not None:
                _check_value(_join(fqn, name), kind, value)
    return iter([(name, child) for name, child in vars(module)["_modules"].items() if child is not None])


def _check_name(fqn: str, where: str, kind: str, name: object) -> None:
    """Check a name as torch does where a part is registered; buffers with dots do no harm."""
    if not isinstance(name, str):
        problem = f"is of class {type(name).__name__}; expected a text"
    elif not name:
        problem = "is empty"
    elif "." in name and kind != "buffer":
        problem = "has a dot, which separates the names of modules"
    else:
        return
    register = "add_module" if kind == "module" else f"register_{kind}"
    msg = (
        f"{where} has a {kind} under the name {name!r:.100}, which {problem}. No checkpoint and no config "
        f"could name it. Register it by `{register}` under another name; old checkpoints are read with "
        "`rename`."
    )
    raise ModelError(msg, fqn=fqn)


def _check_value(fqn: str, kind: str, value: object) -> None:
    classes: dict[str, type] = {"parameter": nn.Parameter, "buffer": torch.Tensor, "module": nn.Module}
    expected = classes[kind]
    # By type: a class may answer `isinstance` as it likes. A Parameter is told by a mark, though.
    fits = isinstance(value, expected) if kind == "parameter" else issubclass(type(value), expected)
    if not fits:
        what = what_it_is(value)
        hint = (
            "Wrap the tensor in `torch.nn.Parameter`" if isinstance(value, torch.Tensor) else "Register one"
        )
        msg = (
            f"`{fqn}` is kept as a {kind} and is {what}; expected a torch.nn.{expected.__name__} or None. "
            f"{hint}, or keep it as a plain attribute."
        ).replace("torch.nn.Tensor", "torch.Tensor")
        raise ModelError(msg, fqn=fqn)


def _refuse_cycle(fqn: str, module: nn.Module, first: str) -> None:
    above = f"`{first}`" if first else "the model itself"
    msg = (
        f"`{fqn}` is {above} ({type(module).__name__}), which contains it: the modules form a "
        "circle, and torch's own `.to()` and `.train()` would not end. Keep what points back out of the "
        "submodules, for example in a tuple: `self.parent = (parent,)`."
    )
    raise ModelError(msg, fqn=fqn)


def _frames() -> int:
    count, frame = 0, inspect.currentframe()
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


def _join(fqn: str, name: str) -> str:
    return f"{fqn}.{name}" if fqn else str(name)
