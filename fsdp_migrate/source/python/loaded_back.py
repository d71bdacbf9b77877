"""States that an optimizer gave itself, and loads again: moved or copied, and mixed with no others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import text_of, walk_for


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


# What a name is called that may hold tensors of another state, where nothing else tells of it.
_STATES: Final = re.compile(
    r"(?:^|_)(?:checkpoint|ckpt|data|dict|loaded|o?sd|other|params|payload|saved|states?|state_?dict|tensors|weights)"
    r"\d*$",
    re.IGNORECASE,
)
# The last word of what gives a place or a number, and no tensors.
_PLAIN: Final = re.compile(r"(?:^|_)(?:bool|devices?|dtype|float|gpu|id|int|len|ranks?|size|str)$")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_DEEPEST: Final = 4


def is_loaded_back(index: Index, call: cst.Call) -> bool:
    """Tell whether an optimizer's state is asked where it alone is loaded into it again."""
    owner = text_of(cst.ensure_type(call.func, cst.Attribute).value)
    above = (each for each in index.ancestors(call) if isinstance(each, cst.Call))
    loads = next((each for each in above if text_of(each.func) == f"{owner}.load_state_dict"), None)
    return loads is not None and is_its_own_state(index, loads)


def is_its_own_state(index: Index, call: cst.Call) -> bool:
    """Tell whether an optimizer loads what it gave itself, moved or copied: it is of the same kind."""
    asked = f"{text_of(cst.ensure_type(call.func, cst.Attribute).value)}.state_dict"
    return bool(call.args) and _is_own(index, asked, call.args[0].value, frozenset())


def _is_own(index: Index, asked: str, given: cst.BaseExpression, seen: frozenset[str]) -> bool:
    if isinstance(given, cst.Call):
        if text_of(given.func) == asked:
            return True
        own = [_is_own(index, asked, each.value, seen) for each in given.args]
        others = [each.value for each, is_own in zip(given.args, own, strict=True) if not is_own]
        owner = given.func.value if isinstance(given.func, cst.Attribute) else None
        is_made = owner is not None and (not isinstance(owner, cst.Name) or _STATES.search(owner.value))
        others += [owner] if owner is not None and is_made else []  # `torch.load(path).merge(state)`
        return any(own) and not any(_may_hold_tensors(index, each) for each in others)
    if not isinstance(given, cst.Name) or given not in index.scopes:
        return False
    if given.value in seen:  # `state = move(state)`
        return True
    values = [each.value for each in index.bindings_of(given)]
    is_asked = any(isinstance(each, cst.Call) and text_of(each.func) == asked for each in values)
    seen = seen | {given.value}
    return is_asked and all(v is not None and _is_own(index, asked, v, seen) for v in values)


def _may_hold_tensors(index: Index, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether a value may bring tensors of another state: `torch.load(path)`, `saved`, no `device`."""
    if isinstance(node, (cst.Call, cst.Subscript)):
        words = _WORD.findall(text_of(node.func if isinstance(node, cst.Call) else node))
        return not words or _PLAIN.search(words[-1]) is None
    if isinstance(node, cst.Attribute):
        return _STATES.search(node.attr.value) is not None
    if isinstance(node, (cst.FormattedString, cst.Lambda)):
        return False
    if not isinstance(node, cst.Name):
        parts = (part for kind in (cst.Name, cst.Call, cst.Subscript) for part in walk_for(node, kind))
        return any(_may_hold_tensors(index, each, depth) for each in parts)
    bound = index.bindings_of(node) if node in index.scopes and depth < _DEEPEST else []
    values = [each.value for each in bound if each.value is not None]
    by_value = any(_may_hold_tensors(index, each, depth + 1) for each in values)
    return by_value or (not values and _STATES.search(node.value) is not None)
