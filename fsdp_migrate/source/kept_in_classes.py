"""What an object keeps of a model's parameters from a method that runs before the model is sharded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.assigned_names import Made, assigned, made_by
from fsdp_migrate.source.ignored_states import ignored_names
from fsdp_migrate.source.kept_lists import (
    EARLIER,
    Sharding,
    filled_with,
    holds,
    is_about,
    is_made_anew,
    is_taken_for_parameters,
    models_held,
    readers,
    shardings,
)
from fsdp_migrate.source.python.class_order import INIT, runs_first
from fsdp_migrate.source.python.lightning_models import MODULE, is_run_sharded
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.parameter_lists import is_only_counted
from fsdp_migrate.source.python.returned_parameters import root_of
from fsdp_migrate.source.python.trainer_models import CALLBACK, MAKES_OPTIMIZER, ON_INIT, TRAINER
from fsdp_migrate.source.python.wrapped_in_place import given_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    import libcst as cst

    from fsdp_migrate.source.python.text import Source


_LIGHTNING: Final = re.compile(r"^(?:lightning|pytorch_lightning)(?:\.\w+)*\.\w*Callback$")
# By what the class is: the methods that run before its model is sharded, and what the model is called there.
_RUNS_LATER: Final = re.compile(
    r"(^|_)(after|backward|clip|epoch|eval|evaluate|fit|forward|log|loop|run|save|step|test|train|update)(_|$)"
)
_OF_A_MODULE: Final = (frozenset({INIT, "setup", "prepare_data", "configure_model"}), ("self",))
_OF_A_CALLBACK: Final = (frozenset({INIT, "setup", ON_INIT}), ("model", "net", "module", "pl_module"))
_OF_A_TRAINER: Final = (
    frozenset({INIT, MAKES_OPTIMIZER, "create_optimizer_and_scheduler", "get_train_dataloader"}),
    ("self.model", "self.model_wrapped", "model"),
)


def kept_in_classes(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the assignments to attributes of objects, and the framework that shards the model later."""
    yield from _of_frameworks(source)
    yield from _of_other_methods(source)
    yield from _of_other_classes(source)


def _of_frameworks(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what the classes keep that a framework runs: its Trainers, modules and callbacks."""
    if not source.models.frameworks.are_used:
        return
    for made in _attributes(source):
        assign = made.assign
        by, methods, models = _kind_of(source, assign)
        function = source.index.function(assign)
        if function is None or function.name.value not in methods:
            continue
        if any(holds(source, made, model, by) for model in models):
            later = readers(source, assign, made.name)
            if any(_is_later(source, node, by, methods) for node in later):
                yield assign, by


def _attributes(source: Source) -> Iterator[Made]:
    for assign in assigned(source):
        yield from (made for made in made_by(assign) if made.name.startswith("self."))


def _kind_of(source: Source, node: cst.CSTNode) -> tuple[str, frozenset[str], tuple[str, ...]]:
    """Return the framework that runs the class around, its methods before sharding, and names of models."""
    frameworks, owner = source.models.frameworks, source.index.class_of(node)
    kind = frameworks.trainers.kind_around(node)
    if kind:
        return ("transformers", *{TRAINER: _OF_A_TRAINER, CALLBACK: _OF_A_CALLBACK}[kind])
    bases = {name for base in owner.bases for name in source.index.qualified(base.value)} if owner else set()
    if frameworks.trains_by_lightning and any(map(MODULE.match, bases)):
        return ("lightning", *_OF_A_MODULE)
    if frameworks.trains_by_lightning and any(map(_LIGHTNING.match, bases)):
        return ("lightning", *_OF_A_CALLBACK)
    return "", frozenset(), ()


def _is_later(source: Source, node: cst.CSTNode, by: str, methods: frozenset[str]) -> bool:
    """Tell whether it is read in a method that runs once the model is sharded, as the names tell."""
    function = source.index.function(node)
    name = function.name.value if function is not None else INIT
    if name in methods or is_only_counted(source.index, node):
        return False
    # Lightning makes optimizers when it has sharded.
    return (by == "lightning" and is_run_sharded(name)) or not EARLIER.search(name)


def _of_other_classes(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what the project shows to be kept here before a class of another file shards the model."""
    told = dict(source.links.keeps_old)
    for assign in assigned(source) if told else ():
        line = source.position(assign)[0]
        if line in told and any(made.name.startswith("self.") for made in made_by(assign)):
            yield assign, told[line]


def kept_in_doubt(source: Source) -> Iterator[cst.CSTNode]:
    """Yield what a method keeps of a model that another one shards, where nothing shows which runs first."""
    for node, _ in _of_other_methods(source, is_first=None):
        function = source.index.function(node)
        if function is not None and not _RUNS_LATER.search(function.name.value):
            yield node


def _of_other_methods(source: Source, *, is_first: bool | None = True) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what a method keeps of a model's parameters before another method of the class shards it.

    ``is_first``: what is known of the order of the two; None for those where nothing is.
    """
    for sharding in (*shardings(source), *_by_fsdp1(source)):
        method, owner = source.index.function(sharding.call), source.index.class_of(sharding.call)
        if method is None or owner is None:
            continue
        # What a framework shards is told to ignore by its settings.
        ignored = set() if sharding.by else {*ignored_names(source, sharding.call)}
        for made in (each for each in _attributes(source) if each.name not in ignored):
            if source.index.function(made.assign) is method:
                continue  # what stands in one function is looked at there
            if source.index.class_of(made.assign) is not owner or not _is_of_sharded(source, made, sharding):
                continue
            order = (made.assign, sharding.call)
            known = runs_first(source.index, *order)
            if known is not is_first or (known is None and runs_first(source.index, *reversed(order))):
                continue
            later = readers(source, made.assign, made.name)
            if not is_made_anew(source, made.name, sharding.call) and any(
                _comes_after(source, node, made, method, sharding.call) for node in later
            ):
                yield made.assign, sharding.by


def _is_of_sharded(source: Source, made: Made, sharding: Sharding) -> bool:
    """Tell whether an attribute holds parameters of what a call shards, by what a method is given too."""
    held = [*models_held(source, made, sharding.by), *filled_with(source, made)]
    names = [name for each in held for name in _names_there(source, each, sharding.call)]
    return any(is_about(source, each, model) for each in names for model in sharding.models)


def _names_there(source: Source, model: cst.BaseExpression, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what the method that shards calls a model: what it gives where it runs the one that has it."""
    yield from [model] if text_of(model).startswith("self.") else ()
    function, method = source.index.function(model), source.index.function(call)
    yield from _kept_as(source, model)
    root = root_of(source, model)
    for place in source.index.calls_of_method(function.name.value) if function is not None and root else ():
        if method is not None and function is not None and source.index.function(place) is method:
            given = given_for(place, function, root)
            yield from () if given is None else (given,)
        elif function is not None and (given := given_for(place, function, root)) is not None:
            yield from [given] if text_of(given).startswith("self.") else ()


def _kept_as(source: Source, model: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the attributes that the same method gives a model: ``self.net = net``."""
    for assign in source.assignments:
        is_its = text_of(assign.value) == text_of(model)
        if is_its and source.index.function(assign) is source.index.function(model):
            targets = (each.target for each in assign.targets)
            yield from (each for each in targets if text_of(each).startswith("self."))


def _by_fsdp1(source: Source) -> Iterator[Sharding]:
    for call in source.calls:
        if call.args and not call.args[0].star and source.index.fsdp1(call.func) == catalog.FSDP:
            yield Sharding(call, "", (text_of(call.args[0].value),))


def _comes_after(
    source: Source, node: cst.CSTNode, made: Made, method: cst.FunctionDef, call: cst.Call
) -> bool:
    """Tell whether it is used below the call that shards, or taken for parameters in another method."""
    function = source.index.function(node)
    if is_only_counted(source.index, node) or function is source.index.function(made.assign):
        return False
    if function is method:
        return source.index.order[node] > source.index.order[call]
    name = function.name.value if function is not None else INIT
    if runs_first(source.index, call, node):
        return True
    if name == INIT or EARLIER.search(name) or runs_first(source.index, node, call):
        return False
    return is_taken_for_parameters(source, node)
