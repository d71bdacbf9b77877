"""``FSDP.optim_state_dict`` and its kin become functions of ``fsdp_migrate.runtime``, keyed by names too."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.fsdp2_models import is_fsdp2s, stays
from fsdp_migrate.source.python.last_values import last_value, was_run
from fsdp_migrate.source.python.nodes import (
    argument_of,
    arguments,
    call as make_call,
    last_name,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.told_states import bound_for_it_alone, own_state
from fsdp_migrate.source.rules.state_dicts import flag, settings_of_call
from fsdp_migrate.source.uses import Found, Need, Remove, Replace


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.python.contexts import Flag
    from fsdp_migrate.source.python.text import Source

    Given = dict[str, cst.BaseExpression]


NAME = "optim-state-dict"
CODES = ("FM309",)

_RUNTIME = "fsdp_migrate.runtime"
_FULL = Need(_RUNTIME, "full_optimizer_state_dict")
_SHARDED = Need(_RUNTIME, "sharded_state_dict")
_LOAD = Need(_RUNTIME, "optim_state_dict_to_load")

_DCP_LOADS = frozenset(
    f"torch.distributed.checkpoint.{name}"
    for name in ("load", "load_state_dict", "state_dict_loader.load", "state_dict_loader.load_state_dict")
)
_LOADERS = {
    "optim_state_dict_to_load": ("model", "optim", "optim_state_dict"),
    "shard_full_optim_state_dict": ("optim_state_dict", "model", "optim_input", "optim"),
    "scatter_full_optim_state_dict": ("optim_state_dict", "model", "optim_input", "optim"),
    "flatten_sharded_optim_state_dict": ("optim_state_dict", "model", "optim"),
}
_GETTERS = {
    "optim_state_dict": ("model", "optim", "optim_state_dict"),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only"),
    "sharded_optim_state_dict": ("model", "optim"),
}
_UNKNOWN = (
    "which state is asked for is not seen here: call full_optimizer_state_dict(model, optimizer) of "
    "fsdp_migrate.runtime, or sharded_state_dict(model, optimizer)['optimizer']."
)
_READ_INTO = (
    "this reads into the state of an optimizer, and a new one has none, so that none would be read: call "
    "fsdp_migrate.load_checkpoint(FOLDER, model, optimizer) in place of the lines that load. FSDP1's run "
    "went on without moments here, without an error: compare with one that was not stopped. If the state was "
    "made before, this is right as it is."
)
_WHICH = (
    "which argument is the model is not seen here: torch 2.0 took the state first, later ones the model. "
    "Call optim_state_dict_to_load(model, optimizer, state) of fsdp_migrate.runtime."
)
_REKEY = (
    "FSDP2's optimizer states are keyed by names, as full_optimizer_state_dict gives them; rekey nothing. "
    "Where they are loaded, keep the call that asks for PARAM_NAME: checkpoints that were saved by numbers "
    "need it, and it leaves names as they are."
)
_REKEY_UNSEEN = (
    "FSDP2's optimizer states are keyed by names, as full_optimizer_state_dict gives them: rekey nothing to "
    "numbers. To names, OptimStateKeyType.PARAM_NAME, this goes on as it is."
)
_TO_NAMES = (
    "stays: it asks a model and its optimizer alone, and FSDP2's optimizer states are keyed by names; "
    "checkpoints that were saved by numbers need it"
)
_NAMED = "stays: torch gave this state, keyed by names as FSDP2's are"
_REKEYED = ((0, "optim_state_dict"), (1, "optim_state_key_type"), (2, "model"))
_KEYS = re.compile(r"PARAM_(NAME|ID)")
_BY_TORCH = frozenset({"torch.distributed.checkpoint.state_dict.get_optimizer_state_dict"})
_SHARDED_LOAD = (
    "take this out, and the lines that hand its result to the optimizer (optim_state_dict_to_load, "
    "optimizer.load_state_dict). In their place call fsdp_migrate.load_checkpoint(PATH, model, optimizer), "
    "which reads the sharded state into both; with strict=False where PATH holds the optimizer alone."
)
_SWAPPED = (
    "functions of fsdp_migrate.runtime ask torch.distributed for this rank's number, and give a state to "
    "rank 0 of all: with another group as its world others save nothing. They need no other: take this out."
)
_INPUT = (
    "optim_input named the parameters that the optimizer was given: "
    "give the optimizer in its place, `optim=`."
)
_ODD = "these arguments have no equivalent in fsdp_migrate.runtime."


def find(source: Source) -> Iterator[Found]:
    """Find every call about an optimizer's state."""
    for call in source.calls:
        name = source.class_function(call)
        if name in _GETTERS:
            yield _getting(source, call, name)
            reading = _read_into(source, call) if name != "full_optim_state_dict" else None
            if reading is not None:
                yield Found("FM309", reading, _READ_INTO, "commented")
        elif name in _LOADERS:
            yield _loading(source, call, name)
        elif name == "rekey_optim_state_dict":
            yield _rekeying(source, call)
        elif "torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict" in (
            source.index.qualified(call.func)
        ):
            yield Found("FM309", call, _SHARDED_LOAD, "commented")
    yield from _of_swapped_worlds(source)


def _of_swapped_worlds(source: Source) -> Iterator[Found]:
    """Find where another group is put in the place of all ranks, around a question for a state of FSDP1's."""
    if ".WORLD" not in source.code or not any(map(source.class_function, source.calls)):
        return
    for assign in source.assignments:
        for each in assign.targets:
            if text_of(each.target).endswith(
                (".GroupMember.WORLD", "dist.group.WORLD", "distributed.group.WORLD")
            ):
                yield Found("FM309", each.target, _SWAPPED, "commented")


def _getting(source: Source, call: cst.Call, name: str) -> Found:
    given, line = _without_own_state(source, _given(call, _GETTERS[name]))
    if given is None or not {"model", "optim"} <= set(given) or set(given) - {"model", "optim", "rank0_only"}:
        return Found("FM309", call, _ODD, "commented", covers=(call.func,))
    flags: dict[str, cst.BaseExpression] = {}
    sharded = name == "sharded_optim_state_dict"
    offload: Flag = True
    if name == "optim_state_dict":
        settings = settings_of_call(source, call, given["model"])
        if settings is None:
            return Found("FM309", call, _UNKNOWN, "commented", covers=(call.func,))
        sharded, offload = settings.kind == "sharded", settings.optim_offload
        if settings.optim_rank0 is not True:
            flags["rank0_only"] = flag(settings.optim_rank0)
        if settings.optim_offload is not True:
            flags["offload_to_cpu"] = flag(settings.optim_offload)
    elif "rank0_only" in given:
        flags["rank0_only"] = given["rank0_only"]

    def build(updated: cst.Call) -> cst.BaseExpression:
        new = _given(updated, _GETTERS[name]) or {}
        if sharded:
            own = {} if offload is False else {"cpu_offload": flag(offload)}
            whole = make_call(source.local_name(_SHARDED), new["model"], new["optim"], **own)
            index = cst.Index(cst.SimpleString('"optimizer"'))
            return cst.Subscript(whole, [cst.SubscriptElement(index)])
        return make_call(source.local_name(_FULL), new["model"], new["optim"], **flags)

    found = _found(source, call, _SHARDED if sharded else _FULL, build)
    return found if line is None else replace(found, edits=(*found.edits, Remove(line)))


def _rekeying(source: Source, call: cst.Call) -> Found:
    """Return what becomes of a call that gives a state other keys: one that torch gave has FSDP2's names."""
    state, kind, model = (argument_of(call, place, {name}) for place, name in _REKEYED)
    if model is not None and is_fsdp2s(source, model):
        return stays("FM309", call, (call.func,))
    given = last_value(source.index, state) if isinstance(state, cst.Name) else state
    if isinstance(given, cst.Call) and not source.index.qualified(given.func).isdisjoint(_BY_TORCH):
        return Found("FM309", call, _NAMED, "kept", covers=(call.func,))
    keys = _keys_of(source, kind)
    if keys == {"NAME"}:
        return Found("FM309", call, _TO_NAMES, "kept", covers=(call.func,))
    said = _REKEY if keys == {"ID"} else _REKEY_UNSEEN
    return Found("FM309", call, said, "commented", covers=(call.func,))


def _keys_of(source: Source, kind: cst.BaseExpression | None) -> set[str]:
    """Return what keys a call asks for, ``NAME`` or ``ID``: either of what is chosen, none if not seen."""
    if isinstance(kind, cst.Name) and kind in source.index.scopes:
        kind = last_value(source.index, kind)
    found: set[str] = set()
    for each in walk_for(kind, cst.Attribute) if kind is not None else ():
        member = _KEYS.fullmatch(each.attr.value)
        found |= {member[1]} if member is not None else set()
    return found


def _read_into(source: Source, call: cst.Call) -> cst.Call | None:
    """Return the call of torch's ``load`` of a folder, below, that is given the name which holds a state."""
    assign = next((each for each in source.index.ancestors(call) if isinstance(each, cst.Assign)), None)
    target: cst.BaseExpression | None = assign.targets[0].target if assign is not None else None
    target = target.value if isinstance(target, cst.Subscript) else target
    if not isinstance(target, cst.Name):
        return None
    order, function = source.index.order, source.index.function(call)
    below = (c for c in source.calls if order[c] > order[call] and source.index.function(c) is function)
    loads = (c for c in below if not source.index.qualified(c.func).isdisjoint(_DCP_LOADS))
    given = ((c, arg.value) for c in loads for arg in c.args if text_of(arg.value) == target.value)
    return next((c for c, name in given if _is_held_still(source, call, name)), None)


def _is_held_still(source: Source, call: cst.Call, name: cst.BaseExpression) -> bool:
    """Tell whether a name may still hold what was put into it above: no other branch, no new value since."""
    index = source.index
    if not isinstance(name, cst.Name) or index.excludes(call, name):
        return False
    between = (b for b in index.bindings_of(name) if index.order[call] < index.order[b.node])
    since = (b for b in between if index.order[b.node] < index.order[name] and b.value is not None)
    # `state = {**state, "epoch": 0}` holds what it held before.
    values = ((b.node, b.value) for b in since if b.value is not None)
    made_anew = (
        (at, value) for at, value in values if name.value not in map(text_of, walk_for(value, cst.Name))
    )
    return not any(
        call not in {value, *walk_for(value, cst.Call)} and was_run(index, at, name)
        for at, value in made_anew
    )


def _loading(source: Source, call: cst.Call, name: str) -> Found:
    order = _order(source, call, name)
    if order is None:
        return Found("FM309", call, _WHICH, "commented", covers=(call.func,))
    given = _given(call, order)
    known = {"model", "optim", "optim_state_dict"}
    if given is not None and "optim_input" in given:
        return Found("FM309", call, _INPUT, "commented", covers=(call.func,))
    if given is None or not {"model", "optim_state_dict"} <= set(given) or set(given) - known:
        return Found("FM309", call, _ODD, "commented", covers=(call.func,))
    flags: dict[str, cst.BaseExpression] = {}
    if name.startswith("scatter"):
        flags["from_rank0"] = cst.Name("True")
    elif name == "optim_state_dict_to_load":
        settings = settings_of_call(source, call, given["model"])
        if settings is not None and settings.kind == "full" and settings.optim_rank0 is not False:
            flags["from_rank0"] = flag(settings.optim_rank0)

    def build(updated: cst.Call) -> cst.BaseExpression:
        new = _given(updated, order) or {}
        optim = new.get("optim", cst.Name("None"))
        return make_call(source.local_name(_LOAD), new["model"], optim, new["optim_state_dict"], **flags)

    return _found(source, call, _LOAD, build)


def _without_own_state(source: Source, given: Given | None) -> tuple[Given | None, cst.Assign | None]:
    """Return arguments without ``optim_state_dict=optim.state_dict()``, which is taken anyway.

    And the line that gives it a name, if nothing else reads that.
    """
    state, optimizer = (given or {}).get("optim_state_dict"), (given or {}).get("optim")
    own = own_state(source, state, optimizer) if state is not None and optimizer is not None else None
    if given is None or own is None:
        return given, None
    others = {name: value for name, value in given.items() if name != "optim_state_dict"}
    return others, bound_for_it_alone(source, own)


def _order(source: Source, call: cst.Call, name: str) -> tuple[str, ...] | None:
    """Return the order of positional arguments, or None where it is in doubt.

    Until torch 2.0 ``optim_state_dict_to_load`` took the state first, and then the model.
    """
    order = _LOADERS[name]
    if name != "optim_state_dict_to_load" or len(call.args) < 2:
        return order
    first, second = call.args[0], call.args[1]
    if first.keyword is not None or second.keyword is not None:
        return order
    old = ("optim_state_dict", "model", "optim")
    models = [_is_model(source, arg.value) for arg in (first, second)]
    if models == [False, False]:
        models = [_is_called_model(arg.value) for arg in (first, second)]
    return {(True, False): order, (False, True): old}.get((models[0], models[1]))


def _is_model(source: Source, node: cst.BaseExpression) -> bool:
    return source.models.certainty(node) is not None or source.models.is_guarded(node)


def _is_called_model(node: cst.BaseExpression) -> bool:
    last = last_name(node).lower()
    return "model" in last or "module" in last


def _given(call: cst.Call, order: tuple[str, ...]) -> Given | None:
    """Return the arguments by the names that they have today; what is None was not given."""
    given = arguments(call, (*order, "group"))
    if given is None:
        return None
    renamed = {}
    for name, value in given.items():
        if isinstance(value, cst.Name) and value.value == "None" and name != "optim_state_dict":
            continue
        old = {"full_optim_state_dict", "sharded_optim_state_dict"}
        renamed["optim_state_dict" if name in old else name] = value
    if "optim" in renamed:
        renamed.pop("optim_input", None)  # what the optimizer has
    return renamed


def _found(
    source: Source, call: cst.Call, need: Need, build: Callable[[cst.Call], cst.BaseExpression]
) -> Found:
    becomes = f"{source.local_name(need)}(...)"
    return Found("FM309", call, becomes, "rewritten", (Replace(call, build),), (need,), (call.func,))
