"""What an object keeps of a model's parameters from a method that runs before the model is sharded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.kept_lists import (
    Made,
    Sharding,
    holds,
    is_taken_for_parameters,
    made_by,
    readers,
    shardings,
)
from fsdp_migrate.source.python.lightning_models import MODULE, is_run_sharded
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.parameter_lists import is_only_counted
from fsdp_migrate.source.python.trainer_models import CALLBACK, MAKES_OPTIMIZER, ON_INIT, TRAINER


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


INIT: Final = "__init__"
_LIGHTNING: Final = re.compile(r"^(?:lightning|pytorch_lightning)(?:\.\w+)*\.\w*Callback$")
# By what the class is: the methods that run before its model is sharded, and what the model is called there.
_OF_A_MODULE: Final = (frozenset({INIT, "setup", "prepare_data", "configure_model"}), ("self",))
_OF_A_CALLBACK: Final = (frozenset({INIT, "setup", ON_INIT}), ("model", "net", "module", "pl_module"))
_OF_A_TRAINER: Final = (
    frozenset({INIT, MAKES_OPTIMIZER, "create_optimizer_and_scheduler", "get_train_dataloader"}),
    ("self.model", "self.model_wrapped", "model"),
)
_EARLIER: Final = re.compile(r"^(get|create|make|build|configure|init|_init|setup|_setup|prepare)(_|$)")


def kept_in_classes(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the assignments to attributes of objects, and the framework that shards the model later."""
    yield from _of_frameworks(source)
    yield from _of_other_methods(source)


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
    for assign in source.assignments:
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
    return (by == "lightning" and is_run_sharded(name)) or not _EARLIER.search(name)


def _of_other_methods(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what ``__init__`` keeps of ``self.model``, which another method of the class shards."""
    for sharding in (*shardings(source), *_by_fsdp1(source)):
        method, owner = source.index.function(sharding.call), source.index.class_of(sharding.call)
        models = [each for each in sharding.models if each.startswith("self.")]
        if method is None or owner is None or method.name.value == INIT:
            continue
        first = _run_by_init(owner)
        for made in _attributes(source):
            function = source.index.function(made.assign)
            if source.index.class_of(made.assign) is not owner or function is None:
                continue
            if function is method or function.name.value not in first:
                continue
            later = readers(source, made.assign, made.name)
            if any(holds(source, made, model, sharding.by) for model in models) and any(
                _comes_after(source, node, method, sharding.call) for node in later
            ):
                yield made.assign, sharding.by


def _run_by_init(owner: cst.ClassDef) -> set[str]:
    """Return the constructor of a class, and the methods that it runs: ``self._make_model(args)``."""
    methods = (each for each in owner.body.body if isinstance(each, cst.FunctionDef))
    made = next((each for each in methods if each.name.value == INIT), None)
    calls = (dotted(call.func) or "" for call in walk_for(made, cst.Call)) if made is not None else ()
    return {INIT, *(name.removeprefix("self.") for name in calls if name.startswith("self."))}


def _by_fsdp1(source: Source) -> Iterator[Sharding]:
    for call in source.calls:
        if call.args and not call.args[0].star and source.index.fsdp1(call.func) == catalog.FSDP:
            yield Sharding(call, "", (text_of(call.args[0].value),))


def _comes_after(source: Source, node: cst.CSTNode, method: cst.FunctionDef, call: cst.Call) -> bool:
    """Tell whether it is used below the call that shards, or taken for parameters in another method."""
    if is_only_counted(source.index, node):
        return False
    function = source.index.function(node)
    if function is method:
        return source.index.order[node] > source.index.order[call]
    name = function.name.value if function is not None else INIT
    return name != INIT and not _EARLIER.search(name) and is_taken_for_parameters(source, node)
