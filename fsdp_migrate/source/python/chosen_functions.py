"""Functions that a switch chooses: called in its branches alone, or handed on by a name that is set there.

``prepare = self._prepare_ddp`` in the ``else`` of a test: what was tested there holds in the function.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, walk_for


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.scopes import Index


_LIBRARIES: Final = frozenset(
    {"accelerate", "diffusers", "lightning", "math", "numpy", "peft", "pytorch_lightning", "timm", "torch"}
    | {"torchaudio", "torchvision", "transformers"}
)
"""They have none of the objects of a project among what they hold."""


def is_chosen_there(
    index: Index,
    function: cst.FunctionDef,
    is_there: Callable[[cst.CSTNode], bool],
    places_of: Callable[[cst.FunctionDef], list[cst.BaseExpression]],
) -> bool:
    """Tell whether a function is called, or handed on, at places of a kind alone.

    By way of others too that are called so. Those that call each other have to be come to from such a place.
    """
    asked, met, is_come_to = [function], {function}, False
    while asked:
        places = places_of(asked.pop())
        if not places:
            return False
        for place in places:
            above = index.function(place)
            if is_there(place):
                is_come_to = True
            elif above is None:
                return False
            elif above not in met:
                met.add(above)
                asked.append(above)
    return is_come_to


def places_chosen(index: Index, function: cst.FunctionDef) -> list[cst.BaseExpression]:
    """Return the places that call a private method, or hand it on; none where it may be run by others.

    What it calls of itself is no such place. A text with its name may be used to look it up, and a function
    outside of a class may be imported.
    """
    name = function.name.value
    if index.class_of(function) is None:
        return []
    is_private = name.startswith("_") and not name.endswith("__")
    if not is_private or function.decorators or _is_named(index, name):
        return []
    attributes = [cst.ensure_type(node, cst.Attribute) for node in index.by_kind.get(cst.Attribute, ())]
    names = [cst.ensure_type(node, cst.Name) for node in index.by_kind.get(cst.Name, ())]
    parts = {each.attr for each in attributes}
    found: list[cst.BaseExpression] = [each for each in attributes if each.attr.value == name]
    found += [each for each in names if each.value == name and each not in parts and each in index.scopes]
    others = (node for node in index.by_kind.get(cst.FunctionDef, ()) if node is not function)
    if any(cst.ensure_type(node, cst.FunctionDef).name.value == name for node in others):
        return []
    own = {function.name, *walk_for(function, cst.Name), *walk_for(function, cst.Attribute)}
    return [each for each in found if each not in own]


def _is_named(index: Index, name: str) -> bool:
    """Tell whether a text holds a name by which a function may be looked up, or may be put together so."""
    texts = (cst.ensure_type(node, cst.SimpleString) for node in index.by_kind.get(cst.SimpleString, ()))
    return any(node.value.strip("'\"") == name for node in texts) or any(
        re.fullmatch(pattern, name) for pattern in _put_together(index)
    )


def _put_together(index: Index) -> Iterator[str]:
    """Yield what the names match that ``getattr(self, f"_save_{kind}")`` looks up.

    Of another name than ``self`` too: it may be an object of the class. A library is none.
    """
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        is_looked_up = dotted(call.func) == "getattr" and len(call.args) > 1
        if is_looked_up and not _is_a_librarys(index, call.args[0].value):
            yield _pattern(call.args[1].value)


def _is_a_librarys(index: Index, node: cst.BaseExpression) -> bool:
    """Tell whether it is a library, or a part of one, whatever runs: ``torch.optim``."""
    root = node
    while isinstance(root, cst.Attribute):
        root = root.value
    if not isinstance(root, cst.Name) or root not in index.scopes:
        return False
    names = [each.qualified for each in index.bindings_of(root)]
    return bool(names) and all(name is not None and name.partition(".")[0] in _LIBRARIES for name in names)


def _pattern(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.FormattedString):
        parts = (p.value if isinstance(p, cst.FormattedStringText) else None for p in node.parts)
        return "".join(r"\w*" if part is None else re.escape(part) for part in parts)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _pattern(node.left) + _pattern(node.right)
    return re.escape(str(node.evaluated_value)) if isinstance(node, cst.SimpleString) else r"\w*"
