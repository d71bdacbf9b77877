"""What ``fabric.setup(model)`` gives where Fabric has FSDP1's strategy: the model, in a module of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.held import put
from fsdp_migrate.source.python.nodes import text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


FABRIC = "by:fabric"
_CLASS = re.compile(r"Fabric$")
_STRATEGY = re.compile(r"^(lightning|lightning_fabric)\b.*\bFSDPStrategy$")
_WORD = re.compile(r"^['\"]fsdp(_cpu_offload)?['\"]$")
_FABRIC = re.compile(r"(^|[._])fabric$")
_SETS_UP = frozenset({"setup", "setup_module"})


def shards_by_fabric(index: Index) -> bool:
    """Tell whether a source makes a Fabric, and FSDP1's strategy for it."""
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    made = [call for call in calls if _CLASS.search(text_of(call.func))]
    if not made:
        return False
    # A project may have a class of its own around Fabric.
    if any(_STRATEGY.match(name) for call in calls for name in index.qualified(call.func)):
        return True
    given = (arg for call in made for arg in call.args if arg.keyword is not None)
    return any(
        arg.keyword.value == "strategy" and _WORD.match(text_of(arg.value)) for arg in given if arg.keyword
    )


def set_up(call: cst.Call) -> set[str]:
    """Return what a call of Fabric's ``setup`` gives."""
    func = call.func
    if not isinstance(func, cst.Attribute) or not call.args or call.args[0].star:
        return set()
    others = [arg for arg in call.args[1:] if arg.keyword is None]
    return set_up_by(text_of(func.value), func.attr.value, has_optimizers=bool(others))


def set_up_by(owner: str, method: str, *, has_optimizers: bool) -> set[str]:
    """Return what a method gives, if it is Fabric's ``setup``: the model, or the model and its optimizers.

    Example:
        >>> set_up_by("self.fabric", "setup", has_optimizers=False) == {"fsdp", "other", "by:fabric"}
        True
    """
    if method not in _SETS_UP or not _FABRIC.search(owner.lower()):
        return set()
    kinds = {"fsdp", "other", FABRIC}
    return put("0", kinds) if has_optimizers and method == "setup" else kinds
