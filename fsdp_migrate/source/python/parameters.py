"""Lists of a model's parameters, in whatever form: ``[p for p in model.parameters() if p.requires_grad]``."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Binding, Index


PARAMETERS = frozenset({"named_parameters", "parameters"})
# What gives back the parameters that it is given, in one form or another.
SAME_PARAMETERS = frozenset(
    {"OrderedDict", "chain", "dict", "filter", "iter", "list", "reversed", "set", "sorted", "tuple"}
)
_FILL = frozenset({"add", "append", "extend"})
_LISTS = (cst.BinaryOperation, cst.DictComp, cst.GeneratorExp, cst.ListComp, cst.SetComp)
_MAX_DEPTH = 8
_MAKES_ONE = re.compile(r"optim(?!.*state)", re.IGNORECASE)


def makes_optimizers(name: str) -> bool:
    """Tell whether a method makes an optimizer, as its name says.

    Example:
        >>> [makes_optimizers(name) for name in ("configure_optimizers", "optim_state_dict", "step")]
        [True, False, False]
    """
    return _MAKES_ONE.search(name) is not None


def is_torchs_optimizer(name: str) -> bool:
    """Tell whether a name is that of one of torch's optimizers: not of a schedule, nor of an averaged model.

    Example:
        >>> names = ("AdamW", "adam.Adam", "lr_scheduler.StepLR", "swa_utils.AveragedModel", "Optimizer")
        >>> [is_torchs_optimizer(f"torch.optim.{name}") for name in names]
        [True, True, False, False, True]
    """
    first, _, rest = name.removeprefix("torch.optim.").partition(".")
    is_class = (rest or first).split(".")[-1][:1].isupper()
    return name.startswith("torch.optim.") and is_class and first not in {"lr_scheduler", "swa_utils"}


def is_list_of(node: cst.BaseExpression) -> bool:
    """Tell whether an expression may put a list of parameters together: ``[*a, *b]``, ``a + b``."""
    if type(node) is cst.List or type(node) is cst.Tuple or type(node) is cst.Set:
        return any(isinstance(each, cst.StarredElement) for each in node.elements)
    return isinstance(node, _LISTS)


def model_of(index: Index, node: cst.BaseExpression, depth: int = 0) -> cst.BaseExpression | None:
    """Return the model whose parameters an expression is or holds: ``[p for p in model.parameters()]``."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(node, cst.Name) and node in index.scopes:
        value = last_value(index, node)
        found = None if value is None else model_of(index, value, depth + 1)
        return _filled_from(index, node, depth) if found is None else found
    if isinstance(node, cst.Call):
        return _of_call(index, node, depth)
    if isinstance(node, cst.Subscript):
        return _of_part(index, node, depth)
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return first_model(index, [node.left, node.right], depth)
    if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
        return _of_comprehension(index, node, [node.elt], depth)
    if isinstance(node, cst.DictComp):
        return _of_comprehension(index, node, [node.key, node.value], depth)
    if isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
        return first_model(index, [each.value for each in node.elements], depth)
    return None


def _of_part(index: Index, node: cst.Subscript, depth: int) -> cst.BaseExpression | None:
    """Return the model whose parameters a list holds that is held itself: ``groups["decay"]``."""
    root: cst.BaseExpression = node
    while isinstance(root, cst.Subscript):
        root = root.value
    is_name = isinstance(root, cst.Name) and root in index.scopes
    return _filled_from(index, cst.ensure_type(root, cst.Name), depth, node) if is_name else None


def _filled_from(
    index: Index, name: cst.Name, depth: int, part: cst.Subscript | None = None
) -> cst.BaseExpression | None:
    """Return the model whose parameters a loop puts into a list: ``for p in m.parameters(): x.append(p)``.

    Also into lists that it holds, as groups are, ``groups[0]["params"].append(p)``: all, or one ``part``.
    """
    if not any(map(_is_made_empty, index.scopes[name].lookup(name.value))):
        return None
    function = index.function(name)
    for call, func in _fillers(index).get(name.value, ()):
        if part is not None and not _may_be(part, func.value):
            continue
        if index.function(call) is not function or index.order[call] > index.order[name]:
            continue
        if func.attr.value == "extend" and (found := model_of(index, call.args[0].value, depth + 1)):
            return found
        put = set(put_as_it_is(call.args[0].value))
        for above in index.ancestors(call):
            if isinstance(above, cst.For) and put & parameters_of(above):
                return model_of(index, _counted(above.iter) or above.iter, depth + 1)
            if isinstance(above, cst.FunctionDef):
                break
    return None


@functools.lru_cache(maxsize=1)
def _fillers(index: Index) -> dict[str, list[tuple[cst.Call, cst.Attribute]]]:
    """Return the calls that put something into lists, by the names of these; looked for once in a source."""
    found: dict[str, list[tuple[cst.Call, cst.Attribute]]] = {}
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _FILL and call.args:
            for name in _filled(call.func.value):
                found.setdefault(name, []).append((call, call.func))
    return found


def _filled(node: cst.BaseExpression) -> set[str]:
    """Return the names of what is filled, also by lists in it: ``x["a"]``, ``(a if test else b)``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    if isinstance(node, cst.IfExp):
        return _filled(node.body) | _filled(node.orelse)
    func = node.func if isinstance(node, cst.Call) else None
    if isinstance(func, cst.Attribute) and func.attr.value in {"get", "setdefault"}:
        return _filled(func.value)
    return {node.value} if isinstance(node, cst.Name) else set()


def put_as_it_is(node: cst.BaseExpression) -> Iterator[str]:
    """Yield the names of what is put into a list as it is: ``p``, ``{"params": [p]}``, and no ``p.shape``."""
    if isinstance(node, cst.Attribute) and node.attr.value == "data":
        node = node.value
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, (cst.Dict, cst.List, cst.Set, cst.Tuple)):
        for each in node.elements:
            yield from put_as_it_is(each.value)
    elif isinstance(node, cst.IfExp):
        yield from (*put_as_it_is(node.body), *put_as_it_is(node.orelse))


def _may_be(part: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    """Tell whether two subscripts may be of one item: by the same literals, or by names."""
    if isinstance(part, cst.Subscript) and isinstance(other, cst.Subscript):
        keys = [each.slice[0].slice for each in (part, other)]
        values = [each.value for each in keys if isinstance(each, cst.Index)]
        is_known = all(isinstance(each, (cst.Integer, cst.SimpleString)) for each in values)
        is_other = len(values) == 2 and is_known and text_of(values[0]) != text_of(values[1])
        return not is_other and _may_be(part.value, other.value)
    return not isinstance(part, cst.Subscript) and not isinstance(other, cst.Subscript)


def _is_made_empty(binding: Binding) -> bool:
    """Tell whether a name is bound to an empty list, ``decay, no_decay = [], []``, or to one of some."""
    value = binding.value
    if isinstance(value, cst.Tuple) and binding.index is not None and binding.index < len(value.elements):
        value = value.elements[binding.index].value
    return isinstance(value, cst.BaseExpression) and _is_to_fill(value)


def _is_to_fill(value: cst.BaseExpression) -> bool:
    """Tell whether it is empty, or has an empty list in it: ``[{"params": []}, dict(params=[])]``."""
    if isinstance(value, cst.Call):
        if dotted(value.func) == "dict" and value.args:
            return any(_is_to_fill(arg.value) for arg in value.args)
        is_by_key = last_name(value.func) == "defaultdict"
        return is_by_key or (not value.args and dotted(value.func) in {"dict", "list", "set"})
    if isinstance(value, (cst.Dict, cst.List, cst.Tuple)):
        return not value.elements or any(_is_to_fill(each.value) for each in value.elements)
    return False


def _of_call(index: Index, call: cst.Call, depth: int) -> cst.BaseExpression | None:
    """Return the model whose parameters a call gives, or gives back."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if isinstance(call.func, cst.Attribute) and name in PARAMETERS:
        return call.func.value
    if isinstance(call.func, cst.Attribute) and name in {"items", "values"}:
        return model_of(index, call.func.value, depth + 1)  # of a dict of parameters by their names
    if last_name(call.func) in SAME_PARAMETERS:
        return first_model(index, [arg.value for arg in call.args], depth)
    return None


def first_model(index: Index, nodes: list[cst.BaseExpression], depth: int = 0) -> cst.BaseExpression | None:
    """Return the model whose parameters one of some expressions holds."""
    found = (model_of(index, each, depth + 1) for each in nodes)
    return next((each for each in found if each is not None), None)


def _of_comprehension(
    index: Index, node: cst.BaseComp, gives: list[cst.BaseExpression], depth: int
) -> cst.BaseExpression | None:
    """Return the model, if what a comprehension gives is what it goes through, and no count or name of it."""
    names = parameters_of(node.for_in)
    given = [*gives]
    for each in gives:
        given += [part.value for part in each.elements] if isinstance(each, (cst.Tuple, cst.Dict)) else []
    if not any(isinstance(each, cst.Name) and each.value in names for each in given):
        return None
    return model_of(index, _counted(node.for_in.iter) or node.for_in.iter, depth + 1)


def _counted(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what ``enumerate(...)`` goes through."""
    is_its = isinstance(node, cst.Call) and dotted(node.func) == "enumerate" and node.args
    return cst.ensure_type(node, cst.Call).args[0].value if is_its else None


def parameters_of(loop: cst.For | cst.CompFor) -> set[str]:
    """Return the names that stand for parameters in a loop: of ``n, p in m.named_parameters()`` the last."""
    target: cst.BaseExpression = loop.target
    if _counted(loop.iter) is not None and isinstance(target, cst.Tuple) and len(target.elements) == 2:
        target = target.elements[1].value
    names = {each.value for each in walk_for(target, cst.Name)}
    asked = [each.func for each in walk_for(loop.iter, cst.Call) if isinstance(each.func, cst.Attribute)]
    if not isinstance(target, (cst.Tuple, cst.List)) or len(target.elements) != 2:
        return names
    first = target.elements[0].value
    is_named = bool(asked) and all(each.attr.value == "named_parameters" for each in asked)
    return names - {first.value} if is_named and isinstance(first, cst.Name) else names
