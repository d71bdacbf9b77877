"""Random numbers that are drawn into a sharded model's parameters and gradients, or like them.

Torch draws them as DTensor does it. On a GPU the first of these sets every rank's random state to rank 0's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import WEIGHTS, ParameterValues, is_itself
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, short, text_of, walk_for
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fsdp_migrate.source.python.text import Source


NAME = "random-numbers"
CODES = ("FM336",)

_MEANT = (
    "random numbers for DTensors: on a GPU torch 2.13 sets the random state of every rank to rank 0's at the "
    "first of these (2.7 does not), so that ranks with seeds of their own draw the same dropout and noise "
    "from here on, without an error; FSDP1 drew for this rank's part, and no more. Draw for that part alone: "
    "{}. Or delete this comment, if all ranks have one seed."
)
_MAY_BE_PLAIN = (
    "Where this method is called before the model is sharded too, it is plain there, without to_local(): ask "
    "isinstance(..., DTensor) first."
)
_RESET = (
    "this draws weights anew, which are DTensors now: for the same seed they are others than under FSDP1, "
    "which showed each rank's part of a flat parameter; and on a GPU torch 2.13 sets the random state of "
    "every rank to rank 0's (2.7 does not), without an error. Call it before the model is sharded, or delete "
    "this comment, if other weights are as good."
)
_RESETS = frozenset({"_reset_parameters", "initialize_parameters", "reset_parameters", "reset_weights"})
# Of torch's layers, those which draw by what takes a flat part as well.
_OWN_DRAWS = frozenset({"Embedding", "EmbeddingBag"})
_DEEPEST = 4
_LIKE = frozenset({"bernoulli", "dropout", "rand_like", "randint_like", "randn_like"})
# What makes room for random numbers in the shape of what it is given, a DTensor too.
_MAKES_ROOM = frozenset({"clone", "empty_like", "full_like", "ones_like", "zeros_like"})
_IN_PLACE = frozenset({"bernoulli_", "normal_", "uniform_"})
_INIT = frozenset({"normal_", "trunc_normal_", "uniform_"})
"""What `torch.nn.init` has that takes a flat part, of one dimension, as FSDP1 showed it."""
_SHORT = 40
_TORCH, _OF_INIT, _FUNCTIONAL = "torch.", "torch.nn.init.", "torch.nn.functional."


def find(source: Source) -> Iterator[Found]:
    """Find calls that draw random numbers for what is a DTensor now."""
    values = ParameterValues(source)
    yield from (Found("FM336", call, _RESET, "commented") for call in _resets(values))
    for call in source.calls:
        # Of what a call makes, `torch.empty_like(p).normal_()`, it is the method's name.
        last = call.func.attr.value if isinstance(call.func, cst.Attribute) else last_name(call.func)
        if last not in _LIKE | _IN_PLACE | _INIT:
            continue
        given = _drawn_for(source, call, last)
        if given is None or source.contexts.is_summoned(call):
            continue
        if values.is_one(_made_like(source, given[0])):
            yield Found("FM336", call, _MEANT.format(given[1]), "commented")
        elif _is_of_itself(source, call, given[0]):
            yield Found("FM336", call, f"{_MEANT.format(given[1])} {_MAY_BE_PLAIN}", "commented")


def _resets(values: ParameterValues) -> Iterator[cst.Call]:
    """Yield the calls by which a sharded model, a part of one, or each of its modules draws its weights."""
    source = values.source
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _RESETS:
            continue
        is_its = whole_of(source, func.value) is not None or values.is_module_of_one(func.value)
        if not is_its or _is_of_other_layers(source, func):
            continue
        own = [*_methods(source, func.attr.value)]
        if not source.contexts.is_summoned(call) and (not own or any(_draws(source, each) for each in own)):
            yield call


def _is_of_other_layers(source: Source, func: cst.Attribute) -> bool:
    """Tell whether modules are asked where they were found to be layers of torch that draw nothing flat.

    Under FSDP1 those of ``nn.Linear`` raised: they draw nothing into one dimension.
    """
    model = text_of(func.value)
    for test, truth in source.models.guards.facts(func):
        asked = [each for each in walk_for(test, cst.Call) if dotted(each.func) == "isinstance"]
        for each in asked if truth else ():
            named = [*walk_for(each.args[-1].value, cst.Attribute), *walk_for(each.args[-1].value, cst.Name)]
            known = {name for node in named for name in source.index.qualified(node)}
            if text_of(each.args[0].value) == model and known and all(map(_is_other_layer, known)):
                return True
    return False


def _is_other_layer(name: str) -> bool:
    return name.startswith("torch") and name.rpartition(".")[2] not in _OWN_DRAWS


def _methods(source: Source, name: str) -> Iterator[cst.FunctionDef]:
    """Yield the methods of this name that classes of the source have."""
    for node in source.index.by_kind.get(cst.FunctionDef, ()):
        function = cst.ensure_type(node, cst.FunctionDef)
        if function.name.value == name and source.index.class_of(function) is not None:
            yield function


def _draws(source: Source, function: cst.FunctionDef, depth: int = 0) -> bool:
    """Tell whether a method draws weights, by functions and other methods of this source too."""
    for call in walk_for(function.body, cst.Call):
        last = last_name(call.func)
        if last in _LIKE | _IN_PLACE | _INIT and _drawn_for(source, call, last) is not None:
            return True
        if depth < _DEEPEST and any(_draws(source, each, depth + 1) for each in _called(source, call)):
            return True
    return False


def _called(source: Source, call: cst.Call) -> Iterator[cst.FunctionDef]:
    """Yield what a call may run: a function, a method of the same object, or one that resets a part."""
    yield from source.models.guards.functions(call.func)
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in _RESETS:
        yield from _methods(source, call.func.attr.value)


def _is_of_itself(source: Source, call: cst.Call, node: cst.BaseExpression) -> bool:
    """Tell whether it is a module's own weight, in a method that sharded models are asked for, in shards.

    ``nn.init.normal_(self.head.weight)`` in ``init_weights``, which a Trainer calls behind the sharding.
    """
    while isinstance(node, cst.Attribute) and node.attr.value in {"data", "grad"}:
        node = node.value
    root: cst.BaseExpression = node
    while isinstance(root, (cst.Attribute, cst.Subscript)):
        root = root.value
    function, owner = source.index.function(call), source.index.class_of(call)
    if function is None or owner is None or not owner.bases:
        return False
    if dotted(root) != "self" or not is_itself(source, root):
        return False
    if function.name.value in source.links.called_summoned:
        return False
    if not isinstance(node, cst.Attribute) or (node.attr.value not in WEIGHTS and not _is_made(source, node)):
        return False
    calls = source.index.calls_of_method(function.name.value)
    sharded = [
        each for each in calls if source.models.certainty(cst.ensure_type(each.func, cst.Attribute).value)
    ]
    return not sharded or not all(map(source.contexts.is_summoned, sharded))


def _is_made(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a class makes an attribute a parameter: ``self.scale = nn.Parameter(...)``."""
    assigns = (source.index.parents[each] for each in source.index.places_set(text_of(node)))
    made = (each.value for each in assigns if isinstance(each, cst.Assign))
    return any(isinstance(each, cst.Call) and last_name(each.func) == "Parameter" for each in made)


def _made_like(source: Source, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what random numbers are drawn like: the parameter of ``torch.empty_like(p).normal_()``."""
    value = last_value(source.index, node) if isinstance(node, cst.Name) else node
    if isinstance(value, cst.Call) and value.args and last_name(value.func) in _MAKES_ROOM:
        return value.args[0].value
    return node


def _drawn_for(source: Source, call: cst.Call, last: str) -> tuple[cst.BaseExpression, str] | None:
    """Return what a call draws random numbers for, and how it is written for this rank's part."""
    named = source.index.qualified(call.func)
    first = call.args[0].value if call.args and not call.args[0].star else None
    if first is not None and last in _INIT and f"{_OF_INIT}{last}" in named:
        return first, f"nn.init.{last}({_part(first)}{_further(call)})"
    if first is not None and last in _LIKE and named & {f"{_TORCH}{last}", f"{_FUNCTIONAL}{last}"}:
        drawn = f"{dotted(call.func)}({_part(first)}{_further(call)})"
        return first, f"{drawn}, and put it into .to_local() too"
    is_made = isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Call)
    if last in _IN_PLACE and isinstance(call.func, cst.Attribute) and (is_made or not named):
        return call.func.value, f"{_part(call.func.value)}.{last}({_written(call.args)})"
    return None


def _part(node: cst.BaseExpression) -> str:
    """Return how this rank's part of an expression is written."""
    text = short(node, _SHORT)
    return f"{'p' if text.endswith('...') else text}.to_local()"


def _further(call: cst.Call) -> str:
    """Return the arguments of a call behind the first, as they are given further on."""
    given = _written(call.args[1:])
    return f", {given}" if given else ""


def _written(args: Sequence[cst.Arg]) -> str:
    named = (
        (f"{each.keyword.value}=" if each.keyword is not None else each.star, each.value) for each in args
    )
    given = ", ".join(f"{name}{short(value)}" for name, value in named)
    return given if len(given) <= _SHORT else "..."
