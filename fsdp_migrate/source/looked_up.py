"""Parameters as keys, or by identity, in a block: looked for in what was made outside of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import binds, loops_around
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for, word_of
from fsdp_migrate.source.python.parameters import PARAMETERS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Binding
    from fsdp_migrate.source.python.text import Source


# What a sharded parameter tells as the whole one does.
_ALIKE = frozenset(
    {
        *("device", "dim", "dtype", "is_floating_point", "ndim", "numel", "requires_grad", "requires_grad_"),
        *("shape", "size"),
    }
)
_PARAMETER = re.compile(r"(?:\w+_)?param(?:eter)?")
_WEIGHT = re.compile(r"(?:^|_)(?:weight|bias|scale|lora_[AB]|param|parameter)$")
_BY_KEY = frozenset({"get", "index", "pop"})
_FILLS = frozenset({"add", "append", "setdefault", "update"})
_ITEMS = frozenset({"items", "values"})
_ITSELF = frozenset({"hash", "id"})
# What `id()` is asked of that is a parameter, or its gradient, by its name.
_OF_ONE = re.compile(r"(?:^|[._])(?:grad|p|param(?:eter)?|tensor|w|weight|bias)$")
_DEEPEST = 3


def looked_up(
    source: Source, block: cst.CSTNode, context: cst.CSTNode | None = None
) -> Iterator[cst.CSTNode]:
    """Yield the expressions of a block that look for a parameter in what was made outside of the block.

    Args:
        source: The source.
        block: What runs where parameters are other objects than they are outside of it.
        context: From where the block is run, if it is a function's.
    """
    run_at = context or block
    for subscript in walk_for(block, cst.Subscript):
        key = subscript.slice[0].slice if len(subscript.slice) == 1 else None
        is_read = not isinstance(source.index.parents[subscript], (cst.AssignTarget, cst.Del))
        if isinstance(key, cst.Index) and is_read and _is_parameter(source, key.value, block):
            yield from _of(source, subscript, subscript.value, block, run_at)
    for call in walk_for(block, cst.Call):
        func = call.func
        is_asked = isinstance(func, cst.Attribute) and func.attr.value in _BY_KEY and bool(call.args)
        if is_asked and _is_parameter(source, call.args[0].value, block):
            yield from _of(source, call, cst.ensure_type(func, cst.Attribute).value, block, run_at)
    for comparison in walk_for(block, cst.Comparison):
        target = comparison.comparisons[0]
        is_one = len(comparison.comparisons) == 1 and _is_parameter(source, comparison.left, block)
        if is_one and isinstance(target.operator, (cst.In, cst.Is, cst.IsNot, cst.NotIn)):
            yield from _of(source, comparison, target.comparator, block, run_at)


def is_of_numbers(source: Source, node: cst.CSTNode, block: cst.CSTNode) -> bool:
    """Tell whether a place that :func:`looked_up` yields looks for what ``id()`` gave."""
    return any(_is_id(each) or _is_number(source, each, block) for each in _keys(node))


def held_from_outside(source: Source, block: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what the loops of a block go through that was taken outside: a list, an optimizer's groups.

    Args:
        source: The source.
        block: What runs where parameters are other objects than they are outside of it.
    """
    for loop in walk_for(block, cst.For):
        over = loop.iter
        if isinstance(over, cst.Call) and isinstance(over.func, cst.Attribute):
            over = over.func.value if over.func.attr.value in _ITEMS else over
        is_list = isinstance(over, (cst.Name, cst.Attribute)) and source.models.is_parameters(over)
        groups = _groups(source, over)
        if groups is not None or is_list:
            root = groups if groups is not None else over
            yield from [loop.iter] if _is_made_outside(source, root, block) else ()


def one_from_outside(source: Source, block: cst.CSTNode, model: str) -> Iterator[cst.CSTNode]:
    """Yield the names of a block that stand for one parameter which was taken outside, each once.

    Args:
        source: The source.
        block: What runs where parameters are other objects than they are outside of it.
        model: What the model is called there whose parameters these are.
    """
    said: set[str] = set()
    for name in walk_for(block, cst.Name):
        if name.value in said or name not in source.index.scopes or not _is_read(source, name):
            continue
        bindings = source.index.bindings_of(name)
        is_inside = any(_is_in(source, each.node, block) for each in bindings)
        if bindings and not is_inside and all(_is_one(source, each, name, model) for each in bindings):
            said.add(name.value)
            yield name


def _is_read(source: Source, name: cst.Name) -> bool:
    """Tell whether more is asked of a name than what a sharded parameter has as well."""
    above = source.index.parents[name]
    if isinstance(above, cst.Attribute):
        return above.value is name and above.attr.value not in _ALIKE
    return not isinstance(above, (cst.AssignTarget, cst.Param)) and not (
        isinstance(above, cst.Arg) and above.keyword is name
    )


def _is_one(source: Source, binding: Binding, name: cst.Name, model: str) -> bool:
    """Tell whether a name is bound to one parameter of a model: by what is taken of it, or by its name."""
    if binding.kind == "param":
        # What is only handed on may be a tensor with which the parameter is filled.
        is_asked = isinstance(source.index.parents[name], cst.Attribute)
        return is_asked and _PARAMETER.fullmatch(name.value) is not None
    value = binding.value
    if value is None:
        loops = [each for each in source.index.ancestors(binding.node) if isinstance(each, cst.For)]
        return any(binds(each, name.value) and _takes(each.iter, model) for each in loops[:1])
    if isinstance(value, cst.Attribute):
        is_models = text_of(value.value) == model or text_of(value.value).startswith(f"{model}.")
        return is_models and _WEIGHT.search(value.attr.value) is not None
    is_item = isinstance(value, cst.Subscript) or (
        isinstance(value, cst.Call) and last_name(value.func) in {"get_parameter", "next"}
    )
    return is_item and _takes(value, model)


def _takes(value: cst.CSTNode, model: str) -> bool:
    """Tell whether an expression asks a model, or a part of it, for parameters."""
    for call in walk_for(value, cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in {*PARAMETERS, "get_parameter"}:
            owner = text_of(func.value)
            if owner == model or owner.startswith(f"{model}."):
                return True
    return False


def _groups(source: Source, over: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what is gone through around ``for p in group["params"]``: ``optimizer.param_groups``."""
    if not isinstance(over, cst.Subscript) or word_of(over.slice[0]) != "params":
        return None
    around = (
        each for each in loops_around(source.index, over) if text_of(each.target) == text_of(over.value)
    )
    return next((each.iter for each in around if "param_groups" in text_of(each.iter)), None)


def _is_made_outside(source: Source, held: cst.BaseExpression, block: cst.CSTNode) -> bool:
    """Tell whether a name, or the object whose attribute it is, is given its value outside of a block."""
    root: cst.BaseExpression = held
    while isinstance(root, (cst.Attribute, cst.Subscript)):
        root = root.value
    if not isinstance(root, cst.Name) or root not in source.index.scopes:
        return False
    bindings = source.index.scopes[root].lookup(root.value)
    return bool(bindings) and not any(_is_in(source, each.node, block) for each in bindings)


def _of(
    source: Source, node: cst.CSTNode, held: cst.BaseExpression, block: cst.CSTNode, run_at: cst.CSTNode
) -> Iterator[cst.CSTNode]:
    """Yield a place, where what it asks was made outside and is not filled in the block."""
    if not _is_made_outside(source, held, block):
        return
    text, is_filled = text_of(held), False
    for assign in walk_for(block, cst.AssignTarget):
        is_item = isinstance(assign.target, cst.Subscript)
        target = assign.target.value if isinstance(assign.target, cst.Subscript) else assign.target
        if text_of(target) == text and not is_item:
            return
        is_filled = is_filled or text_of(target) == text
    filled = (call.func for call in walk_for(block, cst.Call) if isinstance(call.func, cst.Attribute))
    is_filled |= any(func.attr.value in _FILLS and text_of(func.value) == text for func in filled)
    # Numbers of objects that one context has made are given to those of the next.
    if not is_filled or (is_of_numbers(source, node, block) and _outlives_a_round(source, held, run_at)):
        yield node


def _is_id(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func) == "id"


def _keys(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what is looked for: ``key`` of ``key in seen``, ``seen[key]`` and ``seen.get(key)``."""
    if isinstance(node, cst.Comparison):
        return [node.left]
    if isinstance(node, cst.Call):
        return [arg.value for arg in node.args[:1]]
    slices = (each.slice for each in cst.ensure_type(node, cst.Subscript).slice)
    return [each.value for each in slices if isinstance(each, cst.Index)]


def _is_number(source: Source, node: cst.BaseExpression, block: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether something is made, in a block, of ``id(parameter)``: by a name or by a function too."""
    if depth > _DEEPEST:  # names may be made of one another, round after round
        return False
    if isinstance(node, cst.Name):
        made = last_value(source.index, node) if node in source.index.scopes else None
        return made is not None and _is_in(source, made, block) and _is_number(source, made, block, depth + 1)
    if isinstance(node, cst.Tuple):
        return any(_is_number(source, each.value, block, depth + 1) for each in node.elements)
    if not isinstance(node, cst.Call) or not _is_of_the_block(source, node, block):
        return False
    return _gives_number(source, node, 0)


def _is_of_the_block(source: Source, call: cst.Call, block: cst.CSTNode) -> bool:
    """Tell whether a call is given what a block binds: what was taken outside has the number that it had."""
    names = [each for arg in call.args for each in walk_for(arg.value, cst.Name)]
    known = [each for each in names if each in source.index.scopes]
    return any(_is_in(source, each.node, block) for name in known for each in source.index.bindings_of(name))


def _gives_number(source: Source, node: cst.BaseExpression, depth: int) -> bool:
    """Tell whether a call gives the number of what is a parameter by its name, by functions even."""
    if isinstance(node, cst.Tuple):
        return any(_gives_number(source, each.value, depth) for each in node.elements)
    if isinstance(node, cst.Call) and dotted(node.func) == "id":
        return len(node.args) == 1 and _OF_ONE.search(text_of(node.args[0].value)) is not None
    if not isinstance(node, cst.Call) or depth == _DEEPEST:
        return False
    functions = source.models.guards.functions(node.func)
    given = (each.value for function in functions for each in walk_for(function.body, cst.Return))
    return any(each is not None and _gives_number(source, each, depth + 1) for each in given)


def _outlives_a_round(source: Source, held: cst.BaseExpression, block: cst.CSTNode) -> bool:
    """Tell whether a block runs again and again, each time with what was made outside of the loop."""
    loops = loops_around(source.index, block)
    return any(_is_made_outside(source, held, each) for each in loops if isinstance(each, cst.For))


def _is_in(source: Source, node: cst.CSTNode, block: cst.CSTNode) -> bool:
    return any(above is block for above in source.index.ancestors(node))


def _is_parameter(source: Source, node: cst.BaseExpression, block: cst.CSTNode) -> bool:
    """Tell whether it is what a loop in the block takes of a model's parameters, or ``id()`` of that."""
    if not _is_id(node) and _is_number(source, node, block):
        return True
    if isinstance(node, cst.Call) and dotted(node.func) in _ITSELF and len(node.args) == 1:
        node = node.args[0].value
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    for loop in loops_around(source.index, node):
        if not binds(loop, node.value) or not _is_in(source, loop, block):
            continue
        called = [call.func for call in walk_for(loop.iter, cst.Call) if isinstance(call.func, cst.Attribute)]
        taken = {func.attr.value for func in called} & PARAMETERS
        names = [each.value for each in walk_for(loop.target, cst.Name)]
        # Of `for name, parameter in model.named_parameters()` the first is a text.
        return bool(taken) and (names[-1] == node.value if len(names) > 1 else "parameters" in taken)
    return False
