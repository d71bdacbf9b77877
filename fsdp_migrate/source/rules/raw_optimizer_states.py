"""An optimizer's own state, of a sharded model, holds one rank's part, keyed by numbers, as under FSDP1."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.kept_averages import (
    LOADED as LOADED_COPIES,
    SAVED as SAVED_COPIES,
    is_average,
    is_put_into_a_file,
)
from fsdp_migrate.source.python.checked_optimizers import is_of_a_plain_model
from fsdp_migrate.source.python.evidence import is_off
from fsdp_migrate.source.python.given_plain import is_given_plain
from fsdp_migrate.source.python.held import EACH, attribute, has_model, held, item, taken
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import argument_of, last_name, parameters_of, text_of, walk_for
from fsdp_migrate.source.python.optimizers import PARAMETERS, has_groups, is_optimizer
from fsdp_migrate.source.python.own_names import name_of, values_bound
from fsdp_migrate.source.python.own_states import said_of_own_state
from fsdp_migrate.source.python.parameters import model_of
from fsdp_migrate.source.python.parameters_told import gives_others
from fsdp_migrate.source.python.plain_modules import has_plain_parameters
from fsdp_migrate.source.python.read_states import is_asked_for_keys
from fsdp_migrate.source.python.told_states import bound_for_it_alone
from fsdp_migrate.source.rules.rank_files import file_of, is_made_to_load, is_of_a_rank
from fsdp_migrate.source.uses import Found
from fsdp_migrate.source.whole_states import LOADED, LOADED_ALONE, LOADED_APART, SAVED, of_wholes


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.model_kinds import Certainty
    from fsdp_migrate.source.python.own_names import Name
    from fsdp_migrate.source.python.scopes import Binding
    from fsdp_migrate.source.python.text import Source


NAME = "raw-optimizer-state"
CODES = ("FM333", "FM423", "FM425")

_MAYBE = (
    "where this optimizer has a sharded model, this is one rank's part of the state, keyed by numbers: save "
    "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime, or sharded_state_dict, "
    "asked for on every rank. The first gives rank 0 the whole, to save it, and the others {}."
)
_SAVED_BY_RANKS = (
    "each rank saves its part of the state here, keyed by numbers, now as DTensors: save the whole, "
    "full_optimizer_state_dict(model, optimizer, rank0_only=False) of fsdp_migrate.runtime, asked for on all "
    "ranks at once, so above a branch such as `if rank == i`; without rank0_only=False it gives other ranks "
    "{}; load it by "
    "optimizer.load_state_dict(optim_state_dict_to_load(model, optimizer, state))."
)
_MAY_BE_SAVED_BY_RANKS = f"where this optimizer has a sharded model, {_SAVED_BY_RANKS}"
_AMONG = (
    "where an optimizer of a sharded model is among these, this is one rank's part of its state, keyed by "
    "numbers: save full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime in its place, or "
    "sharded_state_dict, asked for on every rank."
)
_CHECKPOINTABLES = "checkpointables"
"""What fvcore's Checkpointer, and what derives from it, calls all that it was given beside the model."""
_MODELS = (
    "where this is the sharded model, its state is of DTensors, of which each rank has a part: take torch's "
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)) on every "
    "rank."
)
_BY_NUMBERS = "keyed by numbers"
_GIVE_NAMES = frozenset({"full_optim_state_dict", "optim_state_dict", "sharded_optim_state_dict"})
_DEEPEST = 2
_MODEL = re.compile(r"model|module|net", re.IGNORECASE)
_MAY_BE_LOADED = f"where this optimizer has a sharded model, {LOADED_ALONE}"


def find(source: Source) -> Iterator[Found]:
    """Find what functions save beside a sharded model's state, and files of ranks that are loaded."""
    every = list(_found(source))
    is_by_name = not any(_BY_NUMBERS in each.becomes for each in every) and _saves_by_names(source)
    for found in every:
        func = found.node.func if isinstance(found.node, cst.Call) else None
        is_its = found.code == "FM425" and isinstance(func, cst.Attribute)
        if isinstance(func, cst.Attribute) and is_its and is_average(source, func.value):
            told = LOADED_COPIES if func.attr.value == "load_state_dict" else SAVED_COPIES
            # Of what goes into a file here, or is saved by Lightning, another rule speaks.
            if not is_put_into_a_file(source, found.node):
                yield replace(found, code="FM423", becomes=told)
            continue
        added = said_of_own_state(source, cst.ensure_type(func, cst.Attribute).value) if is_its else ""
        said = found.becomes.replace(", of flat parameters,", ", by names,") if is_by_name else found.becomes
        yield replace(found, becomes=f"{of_wholes(source.models, said)}{added}")


def _saves_by_names(source: Source) -> bool:
    """Tell whether FSDP1's own functions are asked here for the state, which is by names then."""
    return any(source.class_function(call) in _GIVE_NAMES for call in source.calls)


def _found(source: Source) -> Iterator[Found]:
    saved: set[Name] = set()
    for call in _of_optimizers(source, "state_dict"):
        func = cst.ensure_type(call.func, cst.Attribute)
        saves = _saves_a_model(source, call) if not call.args else None
        is_saved = _is_saved(source, call) or _is_saved_by_name(source, call)
        if not saves and not call.args and is_saved and _is_of_a_model(source, func.value):
            saves = "mixed" if _is_another_by_its_name(source, func.value) else "certain"
        if not saves and not call.args and _is_of_another_place(source, func.value):
            saves = "mixed" if is_saved or source.models.strategies.is_run_sharded(call) else None
        if saves and not _is_given_to_fsdp1(source, call):
            saved.add(name_of(source, func.value))
            yield Found("FM425", call, _said_of_saved(source, call, saves), "commented")
            beside = _models_beside(source, call) if saves == "mixed" else ()
            yield from (Found("FM333", each, _MODELS, "commented") for each in beside)
    yield from (Found("FM425", call, _AMONG, "commented") for call in _of_checkpointables(source))
    # Without any of these nothing here says that a model is sharded.
    is_about = source.uses_fsdp1 or saved or _has_a_model(source)
    is_about = is_about or any(map(has_groups, source.models.facts.values()))
    loaded: dict[Name, str] = {}
    for call in _of_optimizers(source, "load_state_dict") if is_about else ():
        func = cst.ensure_type(call.func, cst.Attribute)
        file = file_of(source, call)
        is_asked = source.models.strategies.is_run_sharded(call) or _is_of_a_checkpoint(source, call)
        if file is None and (not is_asked or is_made_to_load(source, call)):
            continue
        # A path that names a rank or a shard is one of several files, each with one rank's part.
        if source.uses_fsdp1 and file is not None and file.args and is_of_a_rank(source, file.args[0].value):
            is_joined = _is_beside_its_model(source, file)
            yield Found("FM425", call, LOADED if is_joined else LOADED_APART, "commented")
        elif name_of(source, func.value) in saved or _is_of_a_model(source, func.value):
            is_other = _is_another_by_its_name(source, func.value)
            yield Found("FM425", call, _MAY_BE_LOADED if is_other else LOADED_ALONE, "commented")
            loaded[name_of(source, func.value)] = _MAYBE if is_other else SAVED
        elif not saved and _is_of_another_place(source, func.value):
            yield Found("FM425", call, _MAY_BE_LOADED, "commented")
            loaded[name_of(source, func.value)] = _MAYBE
    yield from _of_the_loaded(source, {text: said for text, said in loaded.items() if text not in saved})


def _of_the_loaded(source: Source, loaded: dict[Name, str]) -> Iterator[Found]:
    """Find where the state of an optimizer is taken, by whatever function, that is loaded by itself."""
    for call in _of_optimizers(source, "state_dict") if loaded else ():
        optimizer = cst.ensure_type(call.func, cst.Attribute).value
        is_other = source.models.is_other_branch(optimizer) or call.args or _is_given_to_fsdp1(source, call)
        name = name_of(source, optimizer)
        if name in loaded and not is_other:
            yield Found("FM425", call, loaded[name], "commented")


def _of_checkpointables(source: Source) -> Iterator[cst.Call]:
    """Yield the states of all that a checkpointer was given by name, saved beside a sharded model's."""
    for node in source.index.by_kind.get(cst.For, ()):
        loop = cst.ensure_type(node, cst.For)
        # One that looks for the optimizer knows what to do with it.
        if _CHECKPOINTABLES not in text_of(loop.iter) or "optim" in text_of(loop.body).lower():
            continue
        names = {each.value for each in walk_for(loop.target, cst.Name)}
        for call in walk_for(loop.body, cst.Call):
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "state_dict" or call.args:
                continue
            is_its = isinstance(func.value, cst.Name) and func.value.value in names
            if is_its and _saves_a_model(source, call):
                yield call


def _models_beside(source: Source, call: cst.Call) -> Iterator[cst.Call]:
    """Yield the states of models that a function is given and saves in one dict with an optimizer's."""
    whole = next((each for each in source.index.ancestors(call) if isinstance(each, cst.Dict)), None)
    function = source.index.function(call)
    given = {each.name.value for each in parameters_of(function)} if function is not None else set()
    for other in walk_for(whole, cst.Call) if whole is not None else ():
        func = other.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "state_dict" or other.args:
            continue
        model = func.value
        is_given = isinstance(model, cst.Name) and model.value in given and _MODEL.search(model.value)
        is_known = source.models.certainty(model) is not None or source.models.is_other_branch(model)
        if is_given and not is_known and source.contexts.around(other) is None:
            yield other


def _is_of_another_place(source: Source, optimizer: cst.BaseExpression) -> bool:
    """Tell whether an optimizer, which others give to this source, may be that of a sharded model here.

    Where FSDP1's functions take the states of optimizers, what is not given to them is of another branch.
    """
    root: cst.BaseExpression = optimizer
    is_prepared = _is_prepared_as(source, optimizer)
    is_beside = is_prepared or _is_beside_a_model(source, optimizer)
    while isinstance(root, (cst.Attribute, cst.Subscript)):
        root = root.value
    scope = source.index.scopes.get(root)
    bindings = scope.lookup(root.value) if scope is not None and isinstance(root, cst.Name) else ()
    if not is_beside and not any(_is_from_elsewhere(source, each) for each in bindings):
        return False
    is_prepared = is_prepared or _is_prepared(source, bindings)
    if not is_prepared and not all(_are_given(source, optimizer)):
        return False
    if any("fsdp" in text_of(test).lower() for test, _ in source.models.guards.facts(optimizer)):
        return False
    if not _has_a_model(source):
        return False
    return not any("optim_state_dict" in source.class_function(call) for call in source.calls)


def _is_from_elsewhere(source: Source, binding: Binding) -> bool:
    """Tell whether a name is a parameter, or of another file, or comes together with a sharded model."""
    if binding.kind == "param" or isinstance(binding.node, cst.ImportFrom):
        return True
    value = binding.value if isinstance(binding.value, cst.BaseExpression) else None
    if value is None or binding.index is None:
        return value is not None and _is_beside_a_model(source, value)
    return has_model(source.models.kinds(value))  # `model, optimizer = build(config)`


def _is_prepared(source: Source, bindings: Iterable[Binding]) -> bool:
    """Tell whether it came back beside a sharded model: of ``accelerator.prepare(model, optimizer)``."""
    values = (each.value for each in bindings if each.index is not None)
    return any(isinstance(each, cst.Call) and has_model(source.models.kinds(each)) for each in values)


def _is_prepared_as(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether an attribute is what came back so: ``self.model, self.optimizer = prepare(...)``."""
    if not isinstance(node, cst.Attribute):
        return False
    text = text_of(node)
    return any(
        text_of(each.value) == text
        for assign in source.assignments
        if isinstance(assign.value, cst.Call)
        for target in assign.targets
        if isinstance(target.target, (cst.Tuple, cst.List)) and has_model(source.models.kinds(assign.value))
        for each in target.target.elements
    )


def _is_beside_a_model(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is held by what holds a sharded model, too: ``parts["optimizer"]``."""
    if not isinstance(node, (cst.Attribute, cst.Subscript)):
        return False
    return has_model(held(source.models.kinds(node.value)))


def _are_given(source: Source, optimizer: cst.BaseExpression) -> Iterator[bool]:
    """Yield, for each value that an optimizer has here, whether others gave that to this place."""
    for value in values_bound(source, optimizer):
        scope = source.index.scopes.get(value) if isinstance(value, cst.Name) else None
        bindings = scope.lookup(text_of(value)) if scope is not None else ()
        is_given = any(_is_from_elsewhere(source, each) for each in bindings)
        yield is_given or text_of(value) == "None" or _is_beside_a_model(source, value)


def _is_of_a_checkpoint(source: Source, call: cst.Call) -> bool:
    """Tell whether a state is an item of a checkpoint, by its name: also one that a function has changed."""
    state = call.args[0].value if call.args else None
    value = last_value(source.index, state) if isinstance(state, cst.Name) else state
    if value is None:
        return False
    items = (each.slice[0] for each in walk_for(value, cst.Subscript))
    return any("optim" in text_of(item).lower() for item in items)


def _has_a_model(source: Source) -> bool:
    """Tell whether anything in this source is known to be a sharded model, or to be given one."""
    return any(map(has_model, source.models.facts.values()))


def _is_beside_its_model(source: Source, file: cst.Call) -> bool:
    """Tell whether a sharded model loads of the same file of a rank, which is then read as one."""
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "load_state_dict"
        and source.models.certainty(call.func.value) is not None
        and file_of(source, call) is file
        for call in source.calls
    )


def _said_of_saved(source: Source, call: cst.Call, saves: str) -> str:
    """Return what is to be saved in the place of a state: the whole on each rank that saves a file."""
    if _is_saved_by_ranks(source, call):
        return _SAVED_BY_RANKS if saves == "certain" else _MAY_BE_SAVED_BY_RANKS
    return SAVED if saves == "certain" else _MAYBE


def _is_saved_by_ranks(source: Source, call: cst.Call) -> bool:
    """Tell whether a state goes to a file whose name holds the rank, so that each rank saves one."""
    saves = [*_saves_above(source, call), *_saves_by_name(source, call)]
    given = (argument_of(save, 1, {"f"}) for save in saves)
    return any(path is not None and is_of_a_rank(source, path) for path in given)


def _is_saved_by_name(source: Source, call: cst.Call) -> bool:
    """Tell whether a name, or an item of it, is given a state, and the name to ``torch.save`` below."""
    return any(True for _ in _saves_by_name(source, call))


def _saves_by_name(source: Source, call: cst.Call) -> Iterator[cst.Call]:
    """Yield the calls of ``torch.save`` below that are given a name which holds a state."""
    assign = next((a for a in source.index.ancestors(call) if isinstance(a, cst.Assign)), None)
    target: cst.BaseExpression | None = assign.targets[0].target if assign is not None else None
    target = target.value if isinstance(target, cst.Subscript) else target
    function = source.index.function(call)
    if not isinstance(target, cst.Name) or function is None:
        return
    for other in walk_for(function, cst.Call):
        if "torch.save" in source.index.qualified(other.func) and any(
            name.value == target.value for arg in other.args for name in walk_for(arg, cst.Name)
        ):
            yield other


def _is_saved(source: Source, call: cst.Call) -> bool:
    """Tell whether a call stands in what ``torch.save`` is given."""
    return any(True for _ in _saves_above(source, call))


def _saves_above(source: Source, call: cst.Call) -> Iterator[cst.Call]:
    """Yield the calls of ``torch.save`` in what is given to which a call stands."""
    above = (each for each in source.index.ancestors(call) if isinstance(each, cst.Call))
    return (each for each in above if "torch.save" in source.index.qualified(each.func))


def _of_optimizers(source: Source, name: str) -> Iterator[cst.Call]:
    """Yield the calls of a method of optimizers, as far as names tell."""
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != name or source.models.never.holds(call):
            continue
        is_one = _is_optimizer(func.value) or _steps_a_model(source, func.value)
        if not is_one or _is_adapter(source, func.value):
            continue
        if is_of_a_plain_model(source.models.guards, func.value):
            continue
        if not _is_of_plain_models(source, func.value) and not is_asked_for_keys(source.index, call):
            yield call


def _is_adapter(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is what a class makes that is given the model beside an optimizer, and asks FSDP1."""
    for value in values_bound(source, node):
        if not isinstance(value, cst.Call):
            continue
        is_class = last_name(value.func)[:1].isupper()
        models = [arg.value for arg in value.args if source.models.certainty(arg.value) is not None]
        if is_class and models and any(_is_optimizer(arg.value) for arg in value.args):
            return True
    return False


def _is_of_a_model(source: Source, optimizer: cst.BaseExpression) -> bool:
    """Tell whether an optimizer is made of a sharded model's parameters, here or by another file."""
    plain = list(_are_plain(source, optimizer))
    return not all(plain) if plain else _steps_a_model(source, optimizer)


def _is_of_plain_models(source: Source, optimizer: cst.BaseExpression) -> bool:
    """Tell whether an optimizer is that of models that are plain here, by the switch that decides on them.

    Or of a module that no sharded model has.
    """
    plain = list(_are_plain(source, optimizer))
    is_plain = (bool(plain) and all(plain)) or is_given_plain(source.models, optimizer)
    return is_plain or _is_of_a_module_apart(source, optimizer)


def _is_of_a_module_apart(source: Source, optimizer: cst.BaseExpression) -> bool:
    """Tell whether an optimizer is always made of the parameters of a module that is plain in any case."""
    text = text_of(optimizer)
    made = list(values_bound(source, optimizer))
    is_added_to = any(text_of(call.func) == f"{text}.add_param_group" for call in source.calls)
    if not isinstance(optimizer, cst.Name) or is_added_to:
        return False
    given = [each.args[0].value if isinstance(each, cst.Call) and each.args else None for each in made]
    return bool(given) and all(
        each is not None and has_plain_parameters(source.models, each) for each in given
    )


def _is_another_by_its_name(source: Source, optimizer: cst.BaseExpression) -> bool:
    """Tell whether a function is given it, and its name alone says that it is the one that another makes."""
    scope = source.index.scopes.get(optimizer) if isinstance(optimizer, cst.Name) else None
    bound = scope.lookup(text_of(optimizer)) if scope is not None else ()
    is_given = bool(bound) and all(each.kind == "param" for each in bound)
    return is_given and not has_groups(source.models.kinds(optimizer))


def _are_plain(source: Source, optimizer: cst.BaseExpression) -> Iterator[bool]:
    """Yield, for each model that an optimizer is made of here, whether it is plain where that stands."""
    for value in _makers(source, optimizer):
        for arg in value.args:
            if source.models.is_parameters(arg.value) or _are_groups(source, arg.value):
                model = model_of(source.index, arg.value)
                yield model is not None and source.models.is_plain_at(model, optimizer)
            elif _is_maker(value) and source.models.certainty(arg.value) is not None:
                yield source.models.is_plain_at(arg.value, optimizer)


def _is_maker(made: cst.Call) -> bool:
    """Tell whether it is a function that makes an optimizer, as its name says: ``get_optimizer(model)``."""
    name = last_name(made.func)
    return "optim" in name and not name[:1].isupper()


def _are_groups(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether it is a list of groups of a sharded model's parameters: ``[{"params": [...]}, ...]``."""
    return PARAMETERS in taken(item("params"), taken(EACH, source.models.kinds(given)))


def _makers(source: Source, optimizer: cst.BaseExpression, depth: int = 0) -> Iterator[cst.Call]:
    """Yield the calls that make an optimizer here, also by another name: ``self.optimizer = optimizer``."""
    values = list(values_bound(source, optimizer))
    if not values and isinstance(optimizer, cst.Name):
        values = [each for each in (last_value(source.index, optimizer),) if each is not None]
    if isinstance(optimizer, cst.Name):  # `optimizer, schedule = get_optimizer(model)`
        bound = (each.value for each in source.index.bindings_of(optimizer) if each.index is not None)
        values += [each for each in bound if isinstance(each, cst.Call) and _is_maker(each)]
    for value in values:
        if isinstance(value, cst.Call) and not gives_others(source.models, value):
            yield value
            yield from _makers_within(source, value, depth)
        elif isinstance(value, (cst.Name, cst.Attribute)) and depth < _DEEPEST:
            yield from _makers(source, value, depth + 1)


def _makers_within(source: Source, made: cst.Call, depth: int) -> Iterator[cst.Call]:
    """Yield the calls that make what a function of this source gives: ``self.optimizer = self.make()``."""
    functions = source.models.guards.functions(made.func) if depth < _DEEPEST else ()
    for function in functions:
        for node in walk_for(function.body, cst.Return):
            value = node.value
            if isinstance(value, cst.Call):
                yield value
            elif isinstance(value, (cst.Name, cst.Attribute)):
                yield from _makers(source, value, depth + 1)


def _steps_a_model(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is seen to be an optimizer of a sharded model, by any name: ``o`` of a list of them."""
    return any(kind.startswith(attribute("param_groups")) for kind in source.models.kinds(node))


def _is_optimizer(node: cst.BaseExpression) -> bool:
    return is_optimizer(text_of(node).lower().split(".")[-1])


def _is_given_to_fsdp1(source: Source, call: cst.Call) -> bool:
    """Tell whether a state is given to a function of FSDP1's, which says itself what becomes of it."""
    if bound_for_it_alone(source, call) is not None:
        return True
    above = source.index.parents[source.index.parents[call]]
    return isinstance(above, cst.Call) and bool(source.class_function(above))


def _saves_a_model(source: Source, call: cst.Call) -> Certainty | None:
    """Tell whether the same function takes the state of a model that is sharded, and how sure that is."""
    around = source.index.function(call) or source.module
    found: Certainty | None = None
    for other in walk_for(around, cst.Call):
        func = other.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "state_dict":
            continue
        if source.index.excludes(other, call) or source.index.function(other) is not source.index.function(
            call
        ):
            continue
        if source.models.is_other_branch(func.value):
            continue
        certainty = source.models.certainty(func.value)
        models = source.models
        # What FSDP1's functions show of a branch is asked about below, by that branch.
        is_shown = models.shown_here.is_shown(func.value)
        if certainty == "certain" or (models.is_guarded(func.value) and not is_shown):
            return "certain"
        # Below a check that says FSDP by its name alone, its functions say that the model may be sharded.
        found = certainty or found or ("mixed" if _is_told_fsdp1s_type(source, other, call) else None)
    return found


def _is_told_fsdp1s_type(source: Source, saved: cst.Call, call: cst.Call) -> bool:
    """Tell whether FSDP1's functions decide on a state that is taken, and a call runs where they do.

    In ``with FSDP.state_dict_type(model, ...):``, or below ``FSDP.set_state_dict_type(model, ...)``.
    """
    context = source.contexts.around(saved)
    if context is not None:
        return not is_off(source.models.guards, context.call, call)
    model = text_of(cst.ensure_type(saved.func, cst.Attribute).value)
    return any(
        setter.call.args
        and text_of(setter.call.args[0].value) == model
        and source.index.function(setter.call) is source.index.function(saved)
        and not source.index.excludes(setter.call, saved)
        and not is_off(source.models.guards, setter.call, call)
        for setter in source.contexts.setters
    )
