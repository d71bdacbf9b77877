"""The classes of modules of a sharded model: FSDP2 gives each unit one of its own, ``FSDPBlock``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.branches import calls_fsdp2
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "class-names"
CODES = ("FM316",)

_OWN_CLASS = (
    "FSDP2 gives each unit a class of its own, a subclass that is called FSDP and the name of its class: "
    "take isinstance, or the name with removeprefix('FSDP')."
)
_OF_MODULES = frozenset({"children", "modules", "named_children", "named_modules"})
_DDPS = re.compile(r"Parallel")


def find(source: Source) -> Iterator[Found]:
    """Find where the class of a sharded model's module, or its name, is compared: ``type(m) is Block``."""
    for test in source.index.by_kind.get(cst.Comparison, ()):
        if _asks_for_own_class(source, cst.ensure_type(test, cst.Comparison)):
            yield Found("FM316", test, _OWN_CLASS, "commented")


def _asks_for_own_class(source: Source, test: cst.Comparison) -> bool:
    """Tell whether the class of a sharded model's module is compared: ``type(m) is Block``."""
    # A part of the name, as in `"Norm" in type(m).__name__`, is in FSDP2's name too.
    others = (
        each.comparator
        for each in test.comparisons
        if not isinstance(each.operator, (cst.In, cst.NotIn)) or not _ends_in_name(each.comparator)
    )
    sides = [test.left, *others]
    if any(_DDPS.search(text_of(each)) or each in source.references for each in sides):
        return False
    if _decides_on_fsdp2(source, test):
        return False
    asked = (part for side in sides for part in (side, _value(source, side)) if part is not None)
    return any(_is_class_of_a_module(source, part) for part in asked)


def _ends_in_name(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value in {"__name__", "__qualname__"}


def _decides_on_fsdp2(source: Source, test: cst.Comparison) -> bool:
    """Tell whether a test chooses the modules that ``fully_shard`` is given, which are plain until then."""
    below: cst.CSTNode = test
    for above in source.index.ancestors(test):
        if isinstance(above, (cst.If, cst.IfExp)) and below is above.test:
            return calls_fsdp2(above.body)
        if isinstance(above, cst.BaseStatement):
            return False
        below = above
    return False


def _value(source: Source, node: cst.BaseExpression) -> cst.BaseExpression | None:
    return (
        last_value(source.index, node) if isinstance(node, cst.Name) and node in source.index.scopes else None
    )


def _is_class_of_a_module(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an expression is the class, or its name, of a sharded model or of a module in one."""
    while isinstance(node, cst.Attribute) and _ends_in_name(node):
        node = node.value
    if isinstance(node, cst.Call) and dotted(node.func) == "type" and len(node.args) == 1:
        module = node.args[0].value
    elif isinstance(node, cst.Attribute) and node.attr.value == "__class__":
        module = node.value
    else:
        return False
    return source.models.certainty(module) is not None or _is_of_a_model(source, module)


def _is_of_a_model(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a name goes through the modules of a sharded model: ``for m in model.modules()``."""
    for above in source.index.ancestors(node):
        loops: list[cst.For | cst.CompFor] = [above] if isinstance(above, cst.For) else []
        if isinstance(above, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
            loops.append(above.for_in)
        for loop in loops:
            names = {name.value for name in walk_for(loop.target, cst.Name)}
            if text_of(node) in names and any(
                isinstance(call.func, cst.Attribute)
                and call.func.attr.value in _OF_MODULES
                and source.models.certainty(call.func.value) is not None
                for call in walk_for(loop.iter, cst.Call)
            ):
                return True
        if isinstance(above, cst.FunctionDef):
            return False
    return False
