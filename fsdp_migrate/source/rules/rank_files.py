"""``torch.load`` of what each rank saved of a sharded state, of which FSDP2 does not take what FSDP1 wrote.

https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.ShardedStateDictConfig
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.copies_of_ranks import loaded_copies
from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.parts_of_objects import methods_of
from fsdp_migrate.source.python.last_values import last_value, seen_value
from fsdp_migrate.source.python.nodes import arguments, dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.wrapped_in_place import given_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "rank-files"
CODES = ("FM423", "FM426")

_MEANT = (
    "files that FSDP1 saved here hold ShardedTensors, which FSDP2 does not take: load these by "
    "fsdp_migrate.load_checkpoint(FOLDER, model, optimizer). What the new code saves is loaded as before."
)
_COPIES = (
    "what FSDP1 saved here of parameters has flat parts, under names with `_fsdp_wrapped_module.`: none is "
    "met by its name now, without an error, or it does not fit. Copy it into the model under FSDP1, once, "
    "and take it over as the model's full state; or begin it anew. What the new code saves is loaded as "
    "before."
)
_LOADS = frozenset(
    {
        "torch.distributed._shard.api.load_with_process_group",
        "torch.distributed._shard.load_with_process_group",
    }
)
"""What files with ShardedTensors are read in, and nothing else."""
_MAX_DEPTH = 2
_RANK = re.compile(r"rank(?!0\b|_0\b|_zero)|shard|process_index", re.IGNORECASE)
# What else has a `load_state_dict`, as it is called, or what makes it: a scheduler, a scaler, a loader.
_NO_WEIGHTS = re.compile(r"sched|scaler|loader|sampler|dataset|metric|meter|(?:^|_)lr$|LR$", re.IGNORECASE)
_MAKES = re.compile(r"^(?:torch|fsdp_migrate)\.(?!load$)")
_STATES = {
    "load_state_dict": ("state_dict", "strict"),
    "optim_state_dict_to_load": ("model", "optim", "optim_state_dict"),
    "flatten_sharded_optim_state_dict": ("sharded_optim_state_dict", "model", "optim"),
}


def find(source: Source) -> Iterator[Found]:
    """Find the ``torch.load`` whose value is loaded as the sharded state of a model or an optimizer.

    And the context of torch in which files with ShardedTensors are read, by whatever function.
    """
    done: set[cst.Call] = set()
    for call in source.calls:
        if source.index.qualified(call.func) & _LOADS:
            yield Found("FM426", call, _MEANT, "commented")
        load = file_of(source, call)
        if load is not None and load not in done and _is_sharded(source, call) and _has_weights(source, call):
            done.add(load)
            yield Found("FM426", load, _MEANT, "commented")
    yield from _of_copies(source)


def _of_copies(source: Source) -> Iterator[Found]:
    """Find the files of ranks that are loaded in the place of copies of a sharded model's parameters."""
    if not any("torch.load" in source.index.qualified(call.func) for call in source.calls):
        return

    def file(value: cst.BaseExpression) -> cst.Call | None:
        load = _loaded(source, value)
        return load if load is not None and load.args and is_of_a_rank(source, load.args[0].value) else None

    for load in dict.fromkeys(loaded_copies(ParameterValues(source), file)):
        yield Found("FM423", load, _COPIES, "commented")


def file_of(source: Source, call: cst.Call) -> cst.Call | None:
    """Return the ``torch.load`` that gives the state which a call takes, where the source shows it."""
    name = source.class_function(call)
    if not name and isinstance(call.func, cst.Attribute) and call.func.attr.value == "load_state_dict":
        name = "load_state_dict"
    given = arguments(call, _STATES[name]) if name in _STATES else None
    found = (_loaded(source, value) for value in (given or {}).values())
    return next((file for file in found if file is not None), None)


def is_made_to_load(source: Source, call: cst.Call) -> bool:
    """Tell whether a function of FSDP1's, of torch's or of ours makes a state that an optimizer can load."""
    state = call.args[0].value if call.args else None
    value = last_value(source.index, state) if isinstance(state, cst.Name) else state
    calls = list(walk_for(value, cst.Call)) if value is not None else []
    made = (name for each in calls for name in source.index.qualified(each.func))
    return any(map(source.class_function, calls)) or any(map(_MAKES.match, made))


def is_of_a_rank(source: Source, path: cst.BaseExpression) -> bool:
    """Tell whether a path names a rank or a shard, itself or by what its names hold: one of several files."""
    made, texts = [path], []
    for name in walk_for(path, cst.Name):
        value = last_value(source.index, name) if name in source.index.scopes else None
        made += [value] if value is not None else []
        texts += _given(source, name) if value is None else []
    texts += map(text_of, [*made, *(each for value in made for each in _given_back(source, value))])
    return _RANK.search(" ".join(texts)) is not None


def _given_back(source: Source, value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what functions and methods of this source make of a path: ``self._file(args)``."""
    for call in walk_for(value, cst.Call):
        functions = [*source.models.guards.functions(call.func), *methods_of(source, call.func)]
        owner = source.index.class_of(call) if (dotted(call.func) or "").startswith("self.") else None
        lines = owner.body.body if owner is not None else ()
        functions += (
            e for e in lines if isinstance(e, cst.FunctionDef) and e.name.value == last_name(call.func)
        )
        for function in functions:
            given = (each.value for each in walk_for(function.body, cst.Return))
            yield from (each for each in given if each is not None)


def _given(source: Source, name: cst.Name) -> list[str]:
    """Return what the calls of this source give to the function around, where a name is its parameter."""
    function = source.index.function(name)
    if function is None:
        return []
    calls = [*source.models.guards.calls.get(function, ())]
    if source.index.class_of(function) is not None:
        calls += source.index.calls_of_method(function.name.value)
    given = (given_for(call, function, name.value) for call in calls)
    return [text_of(each) for each in given if each is not None]


def _loaded(source: Source, value: cst.BaseExpression, depth: int = 0) -> cst.Call | None:
    """Return the ``torch.load`` that gives a value, also by a function of this source."""
    file: cst.BaseExpression | None = value
    seen: set[cst.CSTNode] = set()  # `state = state["model"]` holds itself
    while file is not None and file not in seen:
        seen.add(file)
        if type(file) is cst.Subscript:
            file = file.value
        elif type(file) is cst.Name or type(file) is cst.Attribute:
            if file not in source.index.scopes:
                return None
            file = last_value(source.index, file)
        else:
            break
    if type(file) is not cst.Call or depth > _MAX_DEPTH:
        return None
    if "torch.load" in source.index.qualified(file.func):
        return file
    for function in source.models.guards.functions(file.func):
        given = [each.value for each in walk_for(function.body, cst.Return) if each.value is not None]
        if len(given) == 1:
            return _loaded(source, given[0], depth + 1)
    return None


def _has_weights(source: Source, call: cst.Call) -> bool:
    """Tell whether what a state is loaded into may hold parameters, as a scheduler does not."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    if (
        owner is None
        or last_name(call.func) != "load_state_dict"
        or source.models.certainty(owner) is not None
    ):
        return True
    made = seen_value(source.index, owner)
    names = [last_name(owner) or "", (last_name(made.func) or "") if isinstance(made, cst.Call) else ""]
    return not any(map(_NO_WEIGHTS.search, names))


def _is_sharded(source: Source, call: cst.Call) -> bool:
    if source.class_function(call) == "flatten_sharded_optim_state_dict":
        return True
    context = source.contexts.around(call)
    if context is not None and context.problem is not None:
        return False
    settings = source.contexts.settings_at(call) if context is None else context.settings
    return settings is not None and settings.kind == "sharded"
