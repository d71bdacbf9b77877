"""What is asked of a weight's values or gradient that DTensors do as plain tensors did: ``w.data.zero_()``.

Tried with torch 2.13, two ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import WEIGHTS
from fsdp_migrate.source.python.last_values import last_value, values_set
from fsdp_migrate.source.python.loops import item_of
from fsdp_migrate.source.python.nodes import dotted, parameters_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.parameter_values import ParameterValues
    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.text import Source


# DTensors do each element's own: what moves or joins elements they refuse.
_EACH_ELEMENTS = frozenset(
    {
        "abs_",
        "absolute_",
        "add_",
        "atan_",
        "bernoulli_",
        "cauchy_",
        "ceil_",
        "clamp_",
        "clamp_max_",
        "clamp_min_",
        "clip_",
        "copysign_",
        "cos_",
        "detach_",
        "div_",
        "divide_",
        "erf_",
        "erfinv_",
        "exp_",
        "expm1_",
        "exponential_",
        "fill_",
        "floor_",
        "fmod_",
        "frac_",
        "geometric_",
        "log1p_",
        "log_",
        "log_normal_",
        "mul_",
        "multiply_",
        "nan_to_num_",
        "neg_",
        "negative_",
        "normal_",
        "pow_",
        "reciprocal_",
        "relu_",
        "remainder_",
        "requires_grad_",
        "round_",
        "rsqrt_",
        "sigmoid_",
        "sgn_",
        "sign_",
        "sin_",
        "sqrt_",
        "square_",
        "sub_",
        "subtract_",
        "tanh_",
        "true_divide_",
        "trunc_",
        "uniform_",
        "zero_",
    }
)
_FILLS = frozenset({"constant_", "normal_", "ones_", "trunc_normal_", "uniform_", "zeros_"})
_VALUES = frozenset({"data", "grad"})
_SAME = frozenset({"device", "dtype", "is_cuda", "is_leaf", "layout", "requires_grad"})
# Others say what a shape is now: none is refused.
_SHAPES = frozenset({"dim", "ndim", "ndimension", "shape", "size"})
_NUMBERS = frozenset({"bool", "float", "int"})
_DEEPEST = 4


def is_of_one_weight(values: ParameterValues, node: cst.Attribute) -> bool:
    """Tell whether an attribute is the gradient, or the values, of a weight: ``model.head.weight.grad``.

    Also by a name, ``w = layer.weight``, and of the modules that a loop goes through.
    """
    source = values.source
    above = source.index.parents[node]
    if node.attr.value not in _VALUES or isinstance(above, (cst.AssignTarget, cst.Del, cst.Comparison)):
        return False
    if source.contexts.is_summoned(node):
        return False
    weight = last_value(source.index, node.value) if isinstance(node.value, cst.Name) else node.value
    return weight is not None and is_a_weight(values, weight)


def is_a_weight(values: ParameterValues, weight: cst.BaseExpression) -> bool:
    """Tell whether it is a weight of a module that a sharded model gives: ``m.layers[0].weight``."""
    source = values.source
    if not isinstance(weight, cst.Attribute) or weight.attr.value not in WEIGHTS:
        return False
    if values.is_module_of_one(weight.value):
        return True
    held: cst.BaseExpression = weight
    while isinstance(held, (cst.Attribute, cst.Call, cst.Subscript)):
        if isinstance(held, cst.Attribute) and source.models.sharded_with(held) is None:
            return False
        held = held.func if isinstance(held, cst.Call) else held.value
        if isinstance(held, (cst.Attribute, cst.Name)) and source.models.certainty(held) is not None:
            return True
        if isinstance(held, cst.Name):  # `emb = model.get_input_embeddings()`, `for layer in model.layers`
            held = item_of(source.index, held) or held
    return False


def goes_on(source: Source, node: cst.BaseExpression, is_one: Callable[[cst.BaseExpression], bool]) -> bool:
    """Tell whether nothing is done with a weight's values or gradient here but what goes on as before.

    Args:
        source: Where it stands.
        node: ``layer.weight.grad``.
        is_one: Tells whether another is a DTensor as well, ``w.grad.add_(w.data, alpha=0.1)``.
    """
    above = source.index.parents[node]
    if isinstance(above, cst.Arg):
        call = source.index.parents[above]
        func = call.func if isinstance(call, cst.Call) else None
        is_its = isinstance(func, cst.Attribute) and is_one(func.value)
        is_of_dtensors = isinstance(call, cst.Call) and is_its and _is_of_dtensors(source, call, is_one)
        return is_of_dtensors or _is_filled(source, above)
    if not isinstance(above, cst.Attribute):
        return False
    if above.attr.value in _SAME | _SHAPES:
        return True
    around = source.index.parents[above]
    return isinstance(around, cst.Call) and _is_of_dtensors(source, around, is_one)


def _is_of_dtensors(source: Source, call: cst.Call, is_one: Callable[[cst.BaseExpression], bool]) -> bool:
    """Tell whether a method of a DTensor changes it in place, by numbers and by DTensors."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _EACH_ELEMENTS:
        return False
    if any(arg.star for arg in call.args):
        return False
    if not all(_is_number(source.index, arg.value) or is_one(arg.value) for arg in call.args):
        return False
    chained = source.index.parents[call]
    if isinstance(chained, cst.Attribute) and chained.value is call:
        return goes_on(source, chained.value, is_one)  # `w.data.mul_(0.5).add_(1)`
    return isinstance(chained, cst.Expr)


def _is_filled(source: Source, arg: cst.Arg) -> bool:
    """Tell whether torch fills it: ``nn.init.normal_(layer.weight.data, std=0.02)``."""
    call = source.index.parents[arg]
    if not isinstance(call, cst.Call) or not isinstance(source.index.parents[call], cst.Expr):
        return False
    known = (each.rpartition(".") for each in source.index.qualified(call.func))
    return any(module == "torch.nn.init" and name in _FILLS for module, _, name in known)


def _is_number(index: Index, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether an expression is a number, and no tensor, as far as this source shows it."""
    if isinstance(node, (cst.Float, cst.Integer)) or dotted(node) in {"False", "None", "True"}:
        return True
    if depth > _DEEPEST:
        return False
    if isinstance(node, cst.UnaryOperation):
        return _is_number(index, node.expression, depth + 1)
    if isinstance(node, cst.BinaryOperation):
        return all(_is_number(index, each, depth + 1) for each in (node.left, node.right))
    if isinstance(node, cst.Call):
        known = index.qualified(node.func)
        return dotted(node.func) in _NUMBERS or any(each.startswith("math.") for each in known)
    if isinstance(node, cst.Attribute):
        values = values_set(index, node)
        return bool(values) and all(_is_number(index, each, depth + 1) for each in values)
    if not isinstance(node, cst.Name) or node not in index.scopes:
        return False
    held = last_value(index, node)
    return _is_number(index, held, depth + 1) if held is not None else _is_numbers_argument(index, node)


def _is_numbers_argument(index: Index, name: cst.Name) -> bool:
    """Tell whether a name is a function's argument that is a number: ``rate: float``, ``std=0.02``."""
    function = index.function(name)
    if function is None or any(each.kind != "param" for each in index.scopes[name].lookup(name.value)):
        return False
    for each in parameters_of(function):
        if each.name.value == name.value:
            said = dotted(each.annotation.annotation) if each.annotation is not None else None
            return said in _NUMBERS or isinstance(each.default, (cst.Float, cst.Integer))
    return False
