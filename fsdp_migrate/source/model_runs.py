"""Where a source runs its sharded models, with gradients or without, and writes to their weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import libcst as cst

from fsdp_migrate.source.between_passes import done, elsewhere, given_to_deed
from fsdp_migrate.source.fails_at_once import is_backward
from fsdp_migrate.source.plain_models import model_of_one, root_of
from fsdp_migrate.source.python.gradient_modes import is_without_gradients
from fsdp_migrate.source.python.last_values import stands_for
from fsdp_migrate.source.python.nodes import last_name, text_of, walk_for
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.runs_elsewhere import COMPUTES, EVALUATES, RUNS


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.model_kinds import Key
    from fsdp_migrate.source.python.text import Source


WRITES: Final = frozenset(
    {
        *("add_", "addcdiv_", "addcmul_", "bernoulli_", "clamp_", "clamp_max_", "clamp_min_", "clip_"),
        *("copy_", "div_", "fill_", "lerp_", "masked_fill_", "mul_", "normal_", "sub_", "uniform_", "zero_"),
    }
)
TRAINS: Final = re.compile(r"train|fit|epoch|step")
"""What trains the model that it is given, as its name says."""
OPTIMIZERS: Final = re.compile(r"optim|sgd|ada(?:m|grad|factor)|lamb(?!da)|lion|muon|shampoo|prop$")
_FREEZES: Final = "requires_grad"
_DEEPEST: Final = 2


class Run(NamedTuple):
    """A forward of a sharded model: which one, where a function runs it, and whether it has gradients."""

    key: Key
    place: cst.CSTNode
    is_graded: bool
    is_told: bool = False
    """Whether an optimizer is made of its weights here, which tells that it is trained, and runs nothing."""
    is_whole: bool = False
    """Whether its backward has run too where this place is left: it is a call of a method that runs both."""


@dataclass(frozen=True, eq=False)
class Written:
    """A statement that writes to a model's weights in place."""

    node: cst.CSTNode
    model: cst.BaseExpression
    given: tuple[cst.BaseExpression, ...]
    """The other models whose weights it takes."""
    is_put: bool
    """Whether it gives them other memory, ``p.data = x``, which FM423 is about in a sharded model's loop."""


def places_of(
    source: Source, model: cst.BaseExpression, node: cst.CSTNode
) -> Iterator[tuple[Key, cst.CSTNode]]:
    """Yield the names of a model, each with the place at which its function comes to a node.

    Of an argument these are also those that calls give: ``update(query, key)``. Of what an object holds these
    are also the calls of its method: ``self.update()``.
    """
    yield from ((key, way[-1]) for key, way in _ways_to(source, model, node))


def _ways_to(
    source: Source, model: cst.BaseExpression, node: cst.CSTNode, depth: int = 0
) -> Iterator[tuple[Key, tuple[cst.CSTNode, ...]]]:
    """Yield the names of a model, each with the places from a node up to where its function comes to it."""
    key = source.models.key_of(model)
    if key is not None:
        yield key, (node,)
    if isinstance(model, cst.Name) and depth < _DEEPEST:
        for each in stands_for(source.index, source.models.guards, model):
            if source.index.function(each) is not source.index.function(model):
                above = _ways_to(source, each, each, depth + 1)
                yield from ((its, (node, *way)) for its, way in above)
    elif key is not None and text_of(model).startswith("self."):
        yield from ((key, (node, call)) for call in _calls_of_its_method(source, node))


def _calls_of_its_method(source: Source, node: cst.CSTNode, depth: int = 0) -> Iterator[cst.Call]:
    """Yield where an object calls the method around a node by itself, and where these calls are come to."""
    index, method = source.index, source.index.function(node)
    for call in index.calls_of_method(method.name.value) if method is not None else ():
        owner = cst.ensure_type(call.func, cst.Attribute).value
        is_own = text_of(owner) == "self" and index.class_of(call) is index.class_of(node)
        if is_own and index.function(call) is not method and depth < _DEEPEST:
            yield call
            yield from _calls_of_its_method(source, call, depth + 1)


def runs_of(source: Source) -> list[Run]:
    """Return the forwards of sharded models that a source shows."""
    frozen = {key for model in frozen_models(source) for key, _ in places_of(source, model, model)}
    found: list[Run] = []
    for call in source.calls:
        model = _run_by(source, call.func)
        if model is None:
            continue
        for key, way in _ways_to(source, model, call):
            # `loss_of(model)` has none where `evaluate(model)` calls it, which the loop calls.
            is_free = any(is_without_gradients(source.index, each) for each in way)
            is_whole = _has_its_backward(source, call, way[-1])
            found.append(Run(key, way[-1], not (is_free or key in frozen), is_whole=is_whole))
    return [*found, *_run_elsewhere(source), *_trained(source)]


def _run_elsewhere(source: Source) -> Iterator[Run]:
    """Yield the calls by which functions of other files run a model that they are given."""
    for call in source.calls if source.links.deeds else ():
        for deed in elsewhere(source, call, EVALUATES, RUNS):
            model = given_to_deed(call, deed)
            if not isinstance(model, (cst.Name, cst.Attribute)) or not is_fsdp1s(source, model):
                continue
            for key, way in _ways_to(source, model, call):
                is_free = any(is_without_gradients(source.index, each) for each in way)
                is_graded = deed.what == RUNS and not is_free
                # Whether the backward has run there too is not seen.
                yield Run(key, way[-1], is_graded, is_whole=True)


def _has_its_backward(source: Source, run: cst.Call, place: cst.CSTNode) -> bool:
    """Tell whether the function of a forward runs a backward below it, where it is called from a place."""
    function = source.index.function(run)
    if function is None or source.index.function(place) is function:
        return False
    backwards = filter(is_backward, walk_for(function.body, cst.Call))
    return any(done(source, each) > done(source, run) for each in backwards)


def _run_by(source: Source, func: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the sharded model that is called, or asked for a method that computes: ``vae.encode(x)``."""
    if isinstance(func, (cst.Name, cst.Attribute)) and is_fsdp1s(source, func):
        return func
    is_method = isinstance(func, cst.Attribute) and COMPUTES.search(func.attr.value) is not None
    owner = cst.ensure_type(func, cst.Attribute).value if is_method else None
    return owner if owner is not None and is_fsdp1s(source, owner) else None


def _trained(source: Source) -> Iterator[Run]:
    """Yield where models are given to what trains them, by its name, or their weights to an optimizer."""
    for call in source.calls:
        name = last_name(call.func)
        is_known = bool(source.models.guards.functions(call.func))
        for arg in call.args:
            given = arg.value
            is_told = OPTIMIZERS.search(name.lower()) is not None
            if is_told:
                model = model_of(source.index, given)
            else:
                model = given if TRAINS.search(name.lower()) and not is_known else None
            if isinstance(model, (cst.Name, cst.Attribute)) and is_fsdp1s(source, model):
                for key, place in places_of(source, model, call):
                    yield Run(key, place, is_graded=True, is_told=is_told)


def is_fsdp1s(source: Source, model: cst.BaseExpression) -> bool:
    """Tell whether a model is one that FSDP1's own class wraps, so that ``rewrite`` has it prepared."""
    return source.models.certainty(model) is not None and not source.models.sharded_by(model)


def writes_of(source: Source) -> Iterator[Written]:
    """Yield where weights of any model are written in place, each statement once."""
    said: set[cst.CSTNode] = set()
    for node, target in _targets(source):
        statement = source.index.statement(node)
        model = _model_in(source, target)
        if model is None or statement in said or source.contexts.is_summoned(node):
            continue
        said.add(statement)
        names = (each for each in walk_for(statement, cst.Name) if each in source.index.scopes)
        others = [other for each in names if (other := model_of_one(source, each)) is not None]
        own = text_of(model)
        given = tuple(each for each in others if text_of(each) != own)
        yield Written(node, model, given, is_put=isinstance(node, cst.Assign))


def _targets(source: Source) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield what writes in place, with what it writes to: ``p.data.mul_(x)``, ``p -= x``."""
    for call in source.calls:
        name = last_name(call.func)
        if name in WRITES and isinstance(call.func, cst.Attribute):
            yield call, call.func.value
        elif name.startswith("_foreach_") and name.endswith("_") and call.args:
            yield call, call.args[0].value
    for node in source.index.by_kind.get(cst.AugAssign, ()):
        yield node, cst.ensure_type(node, cst.AugAssign).target
    for assign in source.assignments:
        target = assign.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "data":
            yield assign, target


def _model_in(source: Source, target: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the model whose weights a target is, one or a list of them; not of gradients."""
    if any(each.attr.value == "grad" for each in walk_for(target, cst.Attribute)):
        return None
    return model_of_one(source, root_of(target)) or model_of(source.index, target)


def frozen_models(source: Source) -> Iterator[cst.BaseExpression]:
    """Yield the models of which a source freezes all parameters, in whatever way."""
    for call in source.calls:
        if last_name(call.func) != f"{_FREEZES}_" or not isinstance(call.func, cst.Attribute):
            continue
        if [text_of(each.value) for each in call.args] == ["False"]:
            yield model_of_one(source, call.func.value) or call.func.value
    for assign in source.assignments:
        target = assign.targets[0].target
        is_set = isinstance(target, cst.Attribute) and target.attr.value == _FREEZES
        if is_set and text_of(assign.value) == "False":
            model = model_of_one(source, cst.ensure_type(target, cst.Attribute).value)
            if model is not None:
                yield model
