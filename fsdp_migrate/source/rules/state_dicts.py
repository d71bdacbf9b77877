"""State dict contexts, and plain ``model.state_dict()``, become calls of torch's state dict functions.

https://docs.pytorch.org/docs/stable/distributed.checkpoint.html#torch.distributed.checkpoint.state_dict
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.asked_states import certainty_of, of_asking, of_functions
from fsdp_migrate.source.compiled_names import NOTE, had_prefix
from fsdp_migrate.source.framework_words import mixed, state
from fsdp_migrate.source.handing_on import given_to_accelerate
from fsdp_migrate.source.python.asked_elsewhere import is_asked_elsewhere
from fsdp_migrate.source.python.bound_anew import was_just_wrapped_by_ddp
from fsdp_migrate.source.python.branches import fsdp1_branch
from fsdp_migrate.source.python.contexts import (
    DEFAULT,
    Context,
    Flag,
    Settings,
    can_turn,
    names_in,
)
from fsdp_migrate.source.python.held import whole
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import (
    arguments,
    call as make_call,
    given_by_name,
    literal,
    short,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.one_rank import (
    is_inner,
    is_of_one_rank,
    runs_on_one_rank,
    saves_on_each_node,
)
from fsdp_migrate.source.python.parameter_lists import is_read_for_names
from fsdp_migrate.source.python.state_hooks import adds_keys
from fsdp_migrate.source.python.trainer_saves import is_read_once_saved
from fsdp_migrate.source.rules.rank_files import file_of, is_of_a_rank
from fsdp_migrate.source.states_by_name import states_by_name
from fsdp_migrate.source.uses import Edit, Found, Need, Remove, Replace, Unwrap


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "state-dict"
CODES = ("FM306", "FM307", "FM308", "FM333")

_TORCH = "torch.distributed.checkpoint.state_dict"
_GET = Need(_TORCH, "get_model_state_dict")
_SET = Need(_TORCH, "set_model_state_dict")
_OPTIONS = Need(_TORCH, "StateDictOptions")
_FULL = Need("fsdp_migrate.runtime", "full_state_dict")
_LOAD = Need("fsdp_migrate.runtime", "load_model_state_dict")

_HINT = "`fsdp-migrate explain FM307` says what takes its place."
_ELSEWHERE = (
    "what this gives was decided by contexts or types set in other places, and is sharded now; take "
    "torch's get_model_state_dict with the options that were meant (where none of these runs, "
    "StateDictOptions(full_state_dict=True): the full state on every rank, FSDP1's default), or "
    "fsdp_migrate.runtime's "
    f"load_model_state_dict: {_HINT}"
)
_SET_ELSEWHERE = "the state dict's type is set in another file, which names {} alone: take {} here."
_ELSE_FULL = " A model of which that file sets none gave a full state: for that one take {}."
_MEANT = {
    ("FULL_STATE_DICT", False): "full_state_dict({}).get('model', {{}}) of fsdp_migrate.runtime",
    ("FULL_STATE_DICT", True): "load_model_state_dict({}, STATE) of fsdp_migrate.runtime",
    ("SHARDED_STATE_DICT", False): "torch's get_model_state_dict({})",
    ("SHARDED_STATE_DICT", True): "torch's set_model_state_dict({}, STATE)",
}
_FILE = (
    " The file that is read here: fsdp_migrate.load_checkpoint({}, {}, optimizer) loads the "
    "model's state and the optimizer's of it, as FSDP1 saved them and as the new code saves them; leave the "
    "optimizer out if the file has none. What else it holds (a schedule, an average) is loaded as before."
)
_FOLDER = (
    " The files of all ranks that are read here: fsdp_migrate.load_checkpoint(FOLDER, {}, optimizer) "
    "loads the model's state and the optimizer's of them, with the folder where they lie; without files of "
    "the optimizer leave that out. What else they hold (a schedule, an average) is loaded as before."
)
_ENTERED = (
    "the states in the blocks that enter this are turned, by its type. Take this context away{}; see that "
    "nothing else in those blocks asks for a state."
)
_BY_YIELD = ", and keep the `yield`"
_BY_CALL = ", and the `with` that calls it"
_BY_RETURN = ", and return contextlib.nullcontext()"
_SUMMONED = "stays: the parameters are whole in this context, and so is their state"
_ONE_RANK = (
    "one rank alone comes here, and every rank must ask for the state now: FSDP1's `.module.state_dict()` "
    "gave what this rank held. Above this branch take torch's get_model_state_dict(model, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True)), and save that here."
)
_LOADED_BY_ONE = (
    "one rank alone comes here, where FSDP1 waited for the others: this would load that rank's own rows, and "
    "no others, without an error. Below this branch, on every rank, take load_full_state_dict({}, "
    "{{'model': state}}) of fsdp_migrate.runtime, which sends rank 0's state round: the others give it {{}}."
)
_HOLDS = (
    "it holds sharded models, and its state is theirs, of DTensors: where they are sharded, take torch's "
    "get_model_state_dict, given it, with options=StateDictOptions(full_state_dict=True), or "
    "load_model_state_dict of fsdp_migrate.runtime. Every rank must make this call."
)
_OF_NODES = (
    "under HYBRID_SHARD FSDP1 gave this to rank 0 of each node, under NO_SHARD to all, and each node's saves "
    "here; now rank 0 of all alone has it, and the others would save nothing: let that one save, or leave "
    "cpu_offload out."
)
_EMPTIED = (
    "the Trainer's _save takes each entry out of this state now, where the model is transformers' own, and "
    "it is read below: give it a copy, `self._save(folder, state_dict=dict(state))`."
)
_ASKED = (
    "this class asks elsewhere whether what it is bound to is FSDP1's: where it is sharded, take torch's "
    "get_model_state_dict, or load_model_state_dict of fsdp_migrate.runtime, given it, on every rank."
)
_BOTH = "stays: FSDP2's models, which this source has as well, come here too, and give their sharded state"
_HOOKED = (
    "hooks of this project put keys into the state, and torch's get_model_state_dict raises at a key that is "
    "no attribute of the model. Where the model is sharded, on every rank: {}."
)
_WHOLE = "{{k: v.full_tensor() if hasattr(v, 'full_tensor') else v for k, v in {}.state_dict().items()}}"
_SHARDS = "{{k: v.cpu() for k, v in {}.state_dict().items()}}"
_STAYS = "stays: the state of the model is sharded by itself, with what hooks put into it"
_DDPS = "stays: it is DistributedDataParallel's model, whose state is whole, with `module.` in its names"
_BY_TRAINER = (
    "no context is needed: the Trainer gathers the state itself, if `state_dict_type` of its FSDP config is "
    "FULL_STATE_DICT"
)
_ARGUMENTS = f"the default state dict is sharded now, and these arguments have no equivalent: {_HINT}"


def find(source: Source) -> Iterator[Found]:
    """Find every context and setter, the model's calls in them, and those outside of all."""
    done: set[cst.Call] = set()
    for context in source.contexts.every:
        yield from _of_context(source, context)
        if context.problem is None:
            done.update(context.calls)
    for setter in source.contexts.setters:
        yield from _of_setter(source, setter)
    for call in source.calls:
        if call not in done and not is_read_for_names(source.index, call):
            yield from _of_plain_call(source, call)
            yield from of_asking(source, call)
            yield from of_functions(source, call)
            yield from given_to_accelerate(source, call)
    yield from states_by_name(source)


def _of_context(source: Source, context: Context) -> Iterator[Found]:
    covers = tuple(names_in(context.call))
    if context.problem is not None or context.settings is None or context.item is None:
        is_entered = source.contexts.is_entered_here(context)
        said = f"{context.problem}; {_HINT}{_said_of_file(source, context)}"
        if is_entered:
            said = _ENTERED.format(
                _BY_YIELD if context.block is not None else _said_of_giver(source, context)
            )
        yield Found("FM307", context.call, said, "commented", covers=covers)
        return
    edit = Unwrap(context.item)
    message = _BY_TRAINER if context.is_trainers else "no context is needed"
    yield Found("FM306", context.call, message, "rewritten", (edit,), covers=covers)
    yield from _configs_no_more(source, context)
    for call in context.calls:
        model = call.func.value if isinstance(call.func, cst.Attribute) else call
        if was_just_wrapped_by_ddp(source.index, model):
            yield Found("FM308", call, _DDPS, "kept")
        else:
            yield turned(source, call, context.settings)


def _said_of_giver(source: Source, context: Context) -> str:
    """Return what goes with a context that blocks enter: what gives it, or makes it when it is called."""
    above = source.index.parents[context.call]
    if isinstance(above, cst.Return):
        return _BY_RETURN
    is_later = isinstance(above, cst.Lambda) or source.class_function(context.call) != "state_dict_type"
    return _BY_CALL if is_later else ""


def _said_of_file(source: Source, context: Context) -> str:
    """Return what is said where a file is loaded in a context that is left to a person."""
    if context.block is None:
        return ""
    inside = (call for call in source.calls if context.block in set(source.index.ancestors(call)))
    return next(filter(None, (_of_file(source, call) for call in inside)), "")


def _of_file(source: Source, call: cst.Call) -> str:
    """Return what loads a file of ``torch.load`` into a model, where a call does; empty for others."""
    func = call.func
    is_load = isinstance(func, cst.Attribute) and func.attr.value == "load_state_dict"
    if not is_load or not isinstance(func, cst.Attribute) or is_no_model(source.index, func.value):
        return ""
    file = file_of(source, call)
    given = arguments(file, ("f",)) if file is not None else None
    if not given or "f" not in given:
        return ""
    if is_of_a_rank(source, given["f"]):
        return _FOLDER.format(short(func.value))
    return _FILE.format(short(given["f"]), short(func.value))


def _of_setter(source: Source, setter: Context) -> Iterator[Found]:
    covers = tuple(names_in(setter.call))
    statement = source.index.parents[setter.call]
    if setter.problem is not None or not isinstance(statement, cst.Expr):
        yield Found("FM307", setter.call, f"{setter.problem}; {_HINT}", "commented", covers=covers)
        return
    edit = Remove(statement)
    yield Found("FM306", setter.call, "nothing is set any more", "rewritten", (edit,), covers=covers)
    yield from _configs_no_more(source, setter)


def _configs_no_more(source: Source, context: Context) -> Iterator[Found]:
    """Find the variables that only contexts which are taken away have read."""
    contexts = [*source.contexts.every, *source.contexts.setters]
    gone = {name for c in contexts if c.problem is None for name in c.configs}
    for name in context.configs:
        readers = source.readers(name)
        # Several contexts may share one variable: the first speaks for it.
        if not all(reader in gone for reader in readers) or readers[0] is not name:
            continue
        scope = source.index.scopes[name].find(name.value)
        if scope is source.index.scope and name.value in source.links.taken:
            continue  # another file imports it
        for binding in source.index.scopes[name].lookup(name.value):
            statement = source.index.parents[source.index.parents[binding.node]]
            if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
                assert binding.value is not None
                yield Found(
                    "FM306",
                    binding.value,
                    "not needed any more",
                    "rewritten",
                    (Remove(statement),),
                    covers=tuple(names_in(statement)),  # those of the type that it says, too
                )


def _of_plain_call(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find ``model.state_dict()`` outside of contexts, which was full and would be sharded."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in {"state_dict", "load_state_dict"}:
        return
    if source.contexts.around(call) is not None or is_no_model(source.index, func.value):
        return
    certainty = certainty_of(source, call, func.value)
    settings = source.contexts.settings_at(call)
    if certainty is not None and source.contexts.is_summoned(call):
        yield Found("FM308", call, _SUMMONED, "kept")
    elif certainty == "mixed":
        is_load = func.attr.value == "load_state_dict"
        take = state(source, func.value, is_load=is_load)
        message = f"{mixed(source, func.value)}take {take}."
        yield Found("FM333", call, message, "commented")
    elif certainty == "certain" and (settings is None or not can_turn(call)):
        yield _decided_elsewhere(source, call, settings)
    elif certainty == "certain" and _is_of_one_rank(source, func):
        yield Found("FM308", call, _ONE_RANK, "commented")
    elif certainty == "certain" and settings is not None:
        yield turned(source, call, settings)
    elif certainty is None and _holds_models(source, func.value):
        yield Found("FM308", call, _HOLDS, "commented")
    elif certainty is None and is_asked_elsewhere(source.models, func.value):
        yield Found("FM333", call, _ASKED, "commented")


def _decided_elsewhere(source: Source, call: cst.Call, settings: Settings | None) -> Found:
    """Return what is said of a state whose type is not known, or of arguments that have no equivalent."""
    assert isinstance(call.func, cst.Attribute)
    if settings is None and _is_of_both(source, call.func):
        return Found("FM308", call, _BOTH, "kept")
    said = _ARGUMENTS if settings is not None else _as_set_elsewhere(source, call.func)
    return Found("FM308", call, f"{said}{_of_file(source, call)}", "commented")


def _as_set_elsewhere(source: Source, func: cst.Attribute) -> str:
    """Return what to take for a state whose type another file sets, or what says that it is not seen."""
    kind, is_here = source.links.type_elsewhere, bool(source.contexts.every or source.contexts.setters)
    take = _MEANT.get((kind, func.attr.value == "load_state_dict"))
    if take is None or is_here:
        return _ELSEWHERE
    model, is_load = short(func.value, 30), func.attr.value == "load_state_dict"
    full = _ELSE_FULL.format(_MEANT["FULL_STATE_DICT", is_load].format(model))
    return _SET_ELSEWHERE.format(kind, take.format(model)) + (full if kind == "SHARDED_STATE_DICT" else "")


def _is_of_both(source: Source, func: cst.Attribute) -> bool:
    """Tell whether FSDP2's models are asked for their state here, too, in a source that has both versions.

    Each type that may decide is set in a branch for FSDP1, or the model is FSDP1's by such branches alone.
    """
    contexts, models, index = source.contexts, source.models, source.index
    if func.attr.value != "state_dict" or fsdp1_branch(index, func) is not None:
        return False
    decide: list[cst.CSTNode] = [
        each.call for each in (*contexts.setters, *(c for c in contexts.every if c.problem is not None))
    ]
    if not decide:
        key = models.key_of(func.value)
        decide = list(models.made.get(key, ())) if key is not None and key not in models.given else []
    return bool(decide) and all(fsdp1_branch(index, each) is not None for each in decide)


def _holds_models(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether something, as a ``ModuleDict``, has items that are sharded models."""
    kinds = (kind.partition(">") for kind in source.models.kinds(node))
    return not _is_before_all_wrapping(source, node) and any(
        rest == "fsdp" and not step.startswith(".") for step, _, rest in kinds
    )


def _is_before_all_wrapping(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it stands in a constructor that has sharded nothing so far: other methods run later."""
    function, order = source.index.function(node), source.index.order
    if function is None or function.name.value != "__init__":
        return False
    above = [each for each in walk_for(function.body, cst.Call) if order[each] < order[node]]
    called = [each.body for call in above for each in source.models.guards.functions(call.func)]
    calls = (*above, *(each for body in called for each in walk_for(body, cst.Call)))
    return not any("fsdp" in whole(source.models.kinds(each)) for each in calls)


def _is_of_one_rank(source: Source, func: cst.Attribute) -> bool:
    """Tell whether one rank alone calls ``model.module.state_dict()``, which FSDP1 answered by itself."""
    guards = source.models.guards
    return (
        func.attr.value == "state_dict"
        and is_of_one_rank(guards, func)
        and is_inner(source.index, guards, func.value)
    )


def turned(source: Source, call: cst.Call, settings: Settings) -> Found:
    """Return what a ``state_dict`` or ``load_state_dict`` call of the model becomes."""
    assert isinstance(call.func, cst.Attribute)
    if call.func.attr.value == "load_state_dict":
        return _loading(source, call, settings)
    found = _asking(source, call, settings)
    lost = NOTE if found.action == "rewritten" and had_prefix(source, call.func.value) else ""
    return replace(found, note=f"{found.note} {lost}".strip())


def _asking(source: Source, call: cst.Call, settings: Settings) -> Found:
    assert isinstance(call.func, cst.Attribute)
    hooked = source.links.state_hooks
    if adds_keys(source.code) if hooked is None else hooked:
        if settings.kind == "sharded" and settings.offload is False:
            return Found("FM308", call, _STAYS, "kept")
        values = _SHARDS if settings.kind == "sharded" else _WHOLE
        said = _HOOKED.format(values.format(short(call.func.value)))
        return Found("FM308", call, said, "commented")
    # torch has one option for both: with `cpu_offload` rank 0 alone gets the full state.
    plain = isinstance(settings.offload, bool) and isinstance(settings.rank0, bool)
    # Rank 0 of the model's process_group is not that of all ranks, which torch means.
    is_torchs = settings.rank0 is False or not (source.links.own_groups or _has_own_group(source))
    if settings.kind == "sharded" or (plain and settings.offload == settings.rank0 and is_torchs):
        return _getting(source, call, settings)
    needs = (_FULL,)
    name = source.local_name(_FULL)

    def build(updated: cst.Call) -> cst.BaseExpression:
        assert isinstance(updated.func, cst.Attribute)
        flags = {"rank0_only": flag(settings.rank0), "offload_to_cpu": flag(settings.offload)}
        flags = flags if is_torchs else {}
        whole = make_call(name, updated.func.value, **flags)
        if settings.rank0 is False:
            return cst.Subscript(whole, [cst.SubscriptElement(cst.Index(cst.SimpleString('"model"')))])
        default = make_call("x.get", cst.SimpleString('"model"'), cst.Dict([]))
        return default.with_changes(func=cst.Attribute(whole, cst.Name("get")))

    note = _EMPTIED if is_read_once_saved(source, call) else ""
    return Found("FM308", call, f"{name}(...)", "rewritten", (Replace(call, build),), needs, note=note)


def _getting(source: Source, call: cst.Call, settings: Settings) -> Found:
    options: dict[str, cst.BaseExpression] = {}
    if settings.kind == "full":
        options["full_state_dict"] = cst.Name("True")
    if settings.offload is not False:
        options["cpu_offload"] = flag(settings.offload)
    name = source.local_name(_GET)
    made = _make_options(source, options)

    def build(updated: cst.Call) -> cst.Call:
        assert isinstance(updated.func, cst.Attribute)
        return make_call(name, updated.func.value, **made)

    becomes = short(build(call), 110)
    needs = (_GET, _OPTIONS) if made else (_GET,)
    may_replicate = any(strategy in source.code for strategy in ("HYBRID_SHARD", "NO_SHARD"))
    is_one_ranks = settings.kind == "full" and settings.rank0 is not False and may_replicate
    note = _OF_NODES if is_one_ranks and saves_on_each_node(source.index) else ""
    note = _EMPTIED if not note and is_read_once_saved(source, call) else note
    return Found("FM308", call, becomes, "rewritten", (Replace(call, build),), needs, note=note)


def _has_own_group(source: Source) -> bool:
    """Tell whether a model of this source is sharded over another group than that of all ranks."""
    for call in source.calls:
        given = given_by_name(call, "process_group")
        is_partial = "functools.partial" in source.index.qualified(call.func) and bool(call.args)
        made = call.args[0].value if is_partial else call.func
        if source.index.fsdp1(made) == catalog.FSDP and any(text_of(each) != "None" for each in given):
            return True
    return False


def _loading(source: Source, call: cst.Call, settings: Settings) -> Found:
    """Return what loads a state: torch's function names nothing of a full one as missing, ours does."""
    if runs_on_one_rank(source.index, source.models.guards, call):
        model = call.func.value if isinstance(call.func, cst.Attribute) else call
        return Found("FM308", call, _LOADED_BY_ONE.format(short(model)), "commented")
    given = arguments(call, ("state_dict", "strict")) or {}
    is_said = "strict" in given and literal(given["strict"]) is not True
    strict = {"strict": given["strict"]} if is_said else {}
    is_full = settings.kind == "full"
    need = _LOAD if is_full else _SET
    name = source.local_name(need)
    made = strict if is_full else _make_options(source, strict)

    def build(updated: cst.Call) -> cst.Call:
        assert isinstance(updated.func, cst.Attribute)
        state = (arguments(updated, ("state_dict", "strict")) or {})["state_dict"]
        return make_call(name, updated.func.value, state, **made)

    edits: tuple[Edit, ...] = (Replace(call, build),)
    needs = (need, _OPTIONS) if made and not is_full else (need,)
    return Found("FM308", call, short(build(call), 110), "rewritten", edits, needs)


def _make_options(source: Source, options: dict[str, cst.BaseExpression]) -> dict[str, cst.BaseExpression]:
    return {"options": make_call(source.local_name(_OPTIONS), **options)} if options else {}


def flag(value: Flag) -> cst.BaseExpression:
    """Return an option as an expression."""
    return cst.Name(str(value)) if isinstance(value, bool) else value


def settings_of_call(source: Source, call: cst.Call, model: cst.BaseExpression) -> Settings | None:
    """Return what FSDP1 was told where a call about the model's optimizer stands; None if not known."""
    context = source.contexts.around(call)
    if context is not None:
        same = context.model is not None and text_of(context.model) == text_of(model)
        # What else stands in the context leaves the type what it is.
        return context.settings if same else None
    settings = source.contexts.settings_at(call)
    if settings is DEFAULT and source.models.certainty(model) is None:
        return DEFAULT if source.models.is_guarded(model) else None
    return settings
