"""What a dict, or an object, is given beside one item: ``bf16`` of ``kwargs = dict(bf16=True)``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import code, named_arguments
from fsdp_migrate.source.python.values import is_dict_call, when_on


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.source.python.text import Source


_SET = re.compile(r"""(?P<whole>[\w.]+)(?:\[(?P<quote>["'])(?P<item>\w+)(?P=quote)\]|\.(?P<field>\w+))\Z""")


def items_of(source: Source, node: cst.CSTNode, *, any_call: bool = False) -> dict[str, cst.BaseExpression]:
    """Return the items of a dict that is written out, or the named arguments of a call."""
    if isinstance(node, cst.Call) and (any_call or is_dict_call(source, node)):
        return {name: when_on(value) for name, value in named_arguments(node).items()}
    elements = node.elements if isinstance(node, cst.Dict) else ()
    return {
        str(each.key.evaluated_value): when_on(each.value)
        for each in elements
        if isinstance(each, cst.DictElement) and isinstance(each.key, cst.SimpleString)
    }


def items_beside(source: Source, assign: cst.Assign, text: str) -> Mapping[str, cst.BaseExpression]:
    """Return what else the same function gives what an assignment sets an item, or an attribute, of.

    A dict is written out above, or its other items are set. A call that is given it as ``**`` may have more.

    Args:
        source: The source.
        assign: The assignment.
        text: Its target.
    """
    own = _SET.match(text)
    if own is None:
        return {}
    whole, function, found = own["whole"], source.index.function(assign), dict[str, cst.BaseExpression]()
    for other in source.assignments:
        if source.index.function(other) is not function or source.index.excludes(other, assign):
            continue
        for target in map(code, (each.target for each in other.targets)):
            part = _SET.match(target)
            if target == whole and source.index.order[other] < source.index.order[assign]:
                found = items_of(source, other.value)  # the last above
            elif part is not None and part["whole"] == whole and other is not assign:
                found[part["item"] or part["field"]] = when_on(other.value)
    for call in source.calls if own["item"] else ():
        if source.index.function(call) is function and gives_items(call, whole):
            found |= items_of(source, call, any_call=True)
    return found


def gives_items(call: cst.Call, name: str) -> bool:
    """Tell whether a call is given a dict as ``**name``."""
    return any(arg.star == "**" and code(arg.value) == name for arg in call.args)
