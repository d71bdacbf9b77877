"""Plain tensors that are made here, beside a sharded model's parameters and gradients: torch refuses the two.

Under FSDP1 both were plain: ``p.grad.add_(torch.randn(p.grad.shape))``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import argument_of, dotted, text_of
from fsdp_migrate.source.python.tensor_words import (
    OF_THE_WHOLE,
    STATISTICS,
    gives_its_kind,
    gives_kind_of_given,
)
from fsdp_migrate.source.tensor_parts import parts_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.text import Source

    IsPlain = Callable[[cst.BaseExpression], bool]


_MAKERS = frozenset(
    {
        "torch.arange",
        "torch.empty",
        "torch.eye",
        "torch.from_numpy",
        "torch.full",
        "torch.linspace",
        "torch.normal",
        "torch.ones",
        "torch.rand",
        "torch.randint",
        "torch.randn",
        "torch.randperm",
        "torch.zeros",
    }
)
_BY_VALUE = frozenset(
    {
        *(
            "add",
            "addcdiv",
            "addcmul",
            "clamp",
            "copy_",
            "div",
            "fmod",
            "lerp",
            "masked_fill",
            "masked_select",
        ),
        *("maximum", "minimum", "mul", "multiply", "pow", "remainder", "sub", "subtract", "where"),
    }
)
_NUMBERS = _MAKERS | {"torch.as_tensor", "torch.scalar_tensor", "torch.tensor"}
_GIVES_ON = (cst.Arg, cst.BinaryOperation, cst.GeneratorExp, cst.ListComp, cst.UnaryOperation)
_DEEPEST = 4


def met(values: ParameterValues, is_plain: IsPlain | None = None) -> Iterator[cst.CSTNode]:
    """Yield where a plain tensor meets a parameter of a sharded model, or becomes one's.

    Args:
        values: The parameters.
        is_plain: Tells whether an expression is such a tensor; by default one that is made here.
    """
    source = values.source
    is_plain = is_plain or _is_plain_here(values)
    for call in source.calls:
        if sides := _sides_of_call(source, call):
            yield from _of_sides(values, is_plain, call, sides)
    for kind in (cst.AugAssign, cst.BinaryOperation, cst.Comparison):
        for node in source.index.by_kind.get(kind, ()):
            if isinstance(node, cst.AugAssign):
                yield from _of_sides(values, is_plain, node, [node.target, node.value])
            elif isinstance(node, (cst.BinaryOperation, cst.Comparison)):
                yield from _of_sides(values, is_plain, node, list(parts_of(source, node)))
    for assign in source.assignments:
        targets = [each.target for each in assign.targets]
        is_its = any(_is_put(each) and values.is_one(each) for each in targets)
        if is_its and is_plain(assign.value):
            yield assign


def changes_plain(source: Source, call: cst.Call) -> bool:
    """Tell whether a norm, a sum or the like goes in place into a plain tensor: ``total += p.norm()``.

    Of a DTensor it is one as well. ``total + p.norm()`` torch takes, where ``total`` is a single number.
    """
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if name not in STATISTICS and not source.index.qualified(call.func) & OF_THE_WHOLE:
        return False
    below: cst.CSTNode = call
    for above in source.index.ancestors(call):
        if isinstance(above, (cst.Assign, cst.AugAssign)):
            return below is above.value and any(_is_kept(source, each) for each in _changed(above))
        if isinstance(above, cst.Call) and below is not above.func:
            func = above.func
            if isinstance(func, cst.Attribute) and func.attr.value.endswith("_"):
                return _is_kept(source, func.value)
            is_sum = dotted(func) == "sum" or bool(source.index.qualified(func) & OF_THE_WHOLE)
            if not is_sum and not any(map(gives_kind_of_given, source.index.qualified(func))):
                return False
        elif isinstance(above, cst.Attribute):
            if not gives_its_kind(above.attr.value):
                return False  # `.item()`, `.full_tensor()`
        elif not isinstance(above, (cst.Call, *_GIVES_ON)):
            return False
        below = above
    return False


def _changed(node: cst.Assign | cst.AugAssign) -> Iterator[cst.BaseExpression]:
    """Yield what a statement changes in place: ``total += x``, ``norms[i] = x``."""
    if isinstance(node, cst.AugAssign):
        yield node.target.value if isinstance(node.target, cst.Subscript) else node.target
        return
    for each in node.targets:
        if isinstance(each.target, cst.Subscript):
            yield each.target.value


def _is_kept(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is a tensor that is made here, of one number too: ``torch.tensor(0.0).cuda()``."""
    if is_made_plain(source, node):
        return True
    is_name = isinstance(node, cst.Attribute) or (isinstance(node, cst.Name) and node in source.index.scopes)
    held = last_value(source.index, node) if is_name and isinstance(node, (cst.Attribute, cst.Name)) else node
    while isinstance(held, cst.Call) and isinstance(held.func, cst.Attribute):
        if source.index.qualified(held.func) or not gives_its_kind(held.func.attr.value):
            break
        held = held.func.value
    return isinstance(held, cst.Call) and bool(source.index.qualified(held.func) & _NUMBERS)


def _is_put(target: cst.BaseExpression) -> bool:
    """Tell whether a target is a gradient, or what an optimizer keeps; ``.data`` is told of elsewhere."""
    if isinstance(target, cst.Attribute):
        return target.attr.value == "grad"
    return isinstance(target, cst.Subscript)


def _is_arithmetic(name: str) -> bool:
    return name in _BY_VALUE or name.removesuffix("_") in _BY_VALUE


def _sides_of_call(source: Source, call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a method or a function joins value by value: ``p.mul_(x)``, ``torch.mul(p, x)``."""
    given = [arg.value for arg in call.args if not arg.star]
    known = source.index.qualified(call.func)
    if known:
        is_its = any(each.startswith("torch.") and _is_arithmetic(each[6:]) for each in known)
        return given if is_its else []
    func = call.func
    return [func.value, *given] if isinstance(func, cst.Attribute) and _is_arithmetic(func.attr.value) else []


def _of_sides(
    values: ParameterValues, is_plain: IsPlain, node: cst.CSTNode, sides: list[cst.BaseExpression]
) -> Iterator[cst.CSTNode]:
    if any(map(is_plain, sides)) and any(map(values.is_one, sides)):
        yield node


def _is_plain_here(values: ParameterValues) -> IsPlain:
    """Return what tells tensors that this source makes, and buffers, from others."""
    buffers = _buffers(values)

    def is_plain(node: cst.BaseExpression) -> bool:
        is_buffer = isinstance(node, cst.Attribute) and node.attr.value in buffers
        return is_made_plain(values.source, node) or (is_buffer and not values.is_one(node))

    return is_plain


def _buffers(values: ParameterValues) -> set[str]:
    """Return the names of buffers, which FSDP2 leaves plain: ``register_buffer("mask", mask)``."""
    found: dict[str, bool] = {}
    for call in values.source.calls if "register_buffer" in values.source.code else ():
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "register_buffer":
            name, tensor = argument_of(call, 0, {"name"}), argument_of(call, 1, {"tensor"})
            # One that is made of a sharded parameter is a DTensor.
            is_plain = tensor is not None and not values.is_one(tensor)
            if isinstance(name, cst.SimpleString):
                text = str(name.evaluated_value)
                found[text] = is_plain and found.get(text, True)
    return {name for name, is_plain in found.items() if is_plain}


def is_made_plain(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an expression is a plain tensor of this source: ``torch.randn(p.shape) * 0.1``."""
    if depth > _DEEPEST:
        return False
    if isinstance(node, cst.BinaryOperation):
        sides = (node.left, node.right)
        is_plain = any(is_made_plain(source, each, depth + 1) for each in sides)
        return is_plain and any(isinstance(each, (cst.Float, cst.Integer, cst.Name)) for each in sides)
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        return is_made_plain(source, node.left, depth + 1) or is_made_plain(
            source, node.comparisons[0].comparator, depth + 1
        )
    if isinstance(node, cst.Call):
        known = source.index.qualified(node.func)
        # One number without a dimension may stand beside a DTensor.
        first = node.args[0].value if node.args else None
        is_list = isinstance(first, (cst.List, cst.Tuple))
        if isinstance(first, (cst.List, cst.Tuple)) and not first.elements:
            return False  # `torch.zeros(())`
        if known & _MAKERS or (is_list and "torch.tensor" in known):
            return True
        func = node.func
        is_method = isinstance(func, cst.Attribute) and gives_its_kind(func.attr.value)
        return is_method and is_made_plain(source, cst.ensure_type(func, cst.Attribute).value, depth + 1)
    if isinstance(node, cst.Name) and node in source.index.scopes:
        loops = [loop for loop in loops_around(source.index, node) if binds(loop, node.value)]
        if loops:
            return any(_is_of_plain(source, loop, node.value, depth) for loop in loops)
        held = last_value(source.index, node)
        return held is not None and is_made_plain(source, held, depth + 1)
    if isinstance(node, cst.Subscript):
        return _holds_plain(source, node.value, depth)
    return False


def _is_of_plain(source: Source, loop: cst.For | cst.CompFor, name: str, depth: int) -> bool:
    """Tell whether a loop goes through tensors that are made here: ``for a, p in zip(sums, params)``."""
    over = loop.iter
    if not isinstance(over, cst.Call) or dotted(over.func) != "zip" or not isinstance(loop.target, cst.Tuple):
        return _holds_plain(source, over, depth)
    names = [text_of(each.value) for each in loop.target.elements]
    if name not in names or names.index(name) >= len(over.args):
        return False
    return _holds_plain(source, over.args[names.index(name)].value, depth)


def _holds_plain(source: Source, node: cst.BaseExpression, depth: int) -> bool:
    """Tell whether a name holds a list or a dict of tensors that are made here, in one piece."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        held = last_value(source.index, node)
        return held is not None and depth <= _DEEPEST and _holds_plain(source, held, depth + 1)
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        return is_made_plain(source, node.elt, depth + 1)
    return isinstance(node, cst.DictComp) and is_made_plain(source, node.value, depth + 1)
