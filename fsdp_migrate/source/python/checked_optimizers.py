"""Optimizers that go with a check of their model: where that is found to be none of FSDP1's, or made so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.asked_classes import is_fsdp1_among
from fsdp_migrate.source.python.asked_words import is_switch
from fsdp_migrate.source.python.last_values import was_run
from fsdp_migrate.source.python.nodes import argument_of, dotted, text_of, walk_for
from fsdp_migrate.source.python.optimizers import is_optimizer


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.guards import Guards


_WORDS = re.compile(r"optimi[sz]ers?|optim|opt|model|module|network|net|wrapped|fsdp|[_\d]")
_MODEL = re.compile(r"model|module|net|wrapped|fsdp")


def is_of_a_plain_model(guards: Guards, optimizer: cst.BaseExpression) -> bool:
    """Tell whether an optimizer stands where its model was found to be none of FSDP1's.

    Its model is what a call here is given beside it, ``FSDP.optim_state_dict(model, optimizer)``, or what
    has its name: ``model`` of ``optimizer``, and ``self.actor`` of ``self.actor_optimizer``.
    """
    facts = list(guards.facts(optimizer))
    # Where `isinstance(model, FSDP) and rank == 0` is not true the model may be FSDP1's all the same.
    if not facts or any(_is_one_of_several(test, truth=truth) for test, truth in facts):
        return False
    is_class = is_fsdp1_among(guards.index)
    return any(guards.is_excluded(optimizer, text, is_class) for text in _models_of(guards, optimizer))


def is_made_for_fsdp1(guards: Guards, state: cst.Name, makers: Collection[str]) -> bool:
    """Tell whether what an optimizer loads goes through one of some functions where its model is sharded.

    ``if isinstance(model, FSDP): state = optim_state_dict_to_load(model, optimizer, state)``, and a line
    below that runs in any case; or ``if args.fsdp:``.
    """
    index, order = guards.index, guards.index.order
    function = index.function(state)
    bindings = index.scopes[state].lookup(state.value) if state in index.scopes else ()
    above = [
        each
        for each in bindings
        if index.function(each.node) is function and order[each.node] < order[state] and each.kind != "param"
    ]
    last = max(above, key=lambda each: order[each.node], default=None)
    made = last.value if last is not None and last.index is None else None
    if last is None or not isinstance(made, cst.Call) or _last(made.func) not in makers:
        return False
    if was_run(index, last.node, state):
        return True
    known = {test for test, _ in guards.facts(state)}
    more = [(test, truth) for test, truth in guards.facts(made) if test not in known]
    if len(more) != 1 or isinstance(more[0][0], cst.BooleanOperation):
        return False
    is_class = is_fsdp1_among(index)
    model = argument_of(made, 0, {"model"})
    is_on = more[0][1] and is_switch(more[0][0])
    return is_on or (model is not None and guards.holds(model, is_class))


def _is_one_of_several(test: cst.BaseExpression, *, truth: bool) -> bool:
    return isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And) and not truth


def _models_of(guards: Guards, optimizer: cst.BaseExpression) -> Iterator[str]:
    """Yield the texts of what may be an optimizer's model: of nothing that has another optimizer."""
    text = text_of(optimizer)
    function = guards.index.function(optimizer)
    around: cst.CSTNode = function.body if function is not None else guards.index.module
    beside: set[str] = set()
    for call in walk_for(around, cst.Call):
        given = [text_of(arg.value) for arg in call.args]
        if text in given and "optim_state_dict" in _last(call.func):
            model = argument_of(call, 0, {"model"})
            beside |= {text_of(model)} if model is not None else set()
            continue
        optimizers = {each for each in given if is_optimizer(each.split(".")[-1].lower())}
        models = {each for each in given if _MODEL.search(each.split(".")[-1].lower())} - optimizers
        if optimizers == {text} and len(models) == 1:
            beside |= models
    if len(beside) == 1:
        yield from beside
    elif not beside:
        yield from _of_its_name(text, around)


def _of_its_name(text: str, around: cst.CSTNode) -> Iterator[str]:
    asked = {
        text_of(call.args[0].value)
        for test in _tests(around)
        for call in walk_for(test, cst.Call)
        if call.args
    }
    yield from (each for each in asked if _key(each) == _key(text))


def _tests(around: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what is asked in a function, also by a name: ``is_fsdp = isinstance(model, FSDP)``."""
    yield from (each.test for each in walk_for(around, cst.If))
    yield from (each.test for each in walk_for(around, cst.IfExp))
    yield from (each.test for each in walk_for(around, cst.Assert))
    yield from (each.value for each in walk_for(around, cst.Assign))


def _key(text: str) -> tuple[str, str]:
    """Return the owner of a name, and what is left of it without the words for models and optimizers."""
    owner, _, last = text.rpartition(".")
    return owner, _WORDS.sub("", last.lower())


def _last(func: cst.BaseExpression) -> str:
    return func.attr.value if isinstance(func, cst.Attribute) else (dotted(func) or "")
