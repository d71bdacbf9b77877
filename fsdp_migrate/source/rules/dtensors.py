"""Parameters and gradients are DTensors, where FSDP1 showed plain tensors with one rank's part.

A norm is that of the whole on each rank, so that what was summed over ranks is summed twice; a collective on
a DTensor, or a plain tensor beside one, raises.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.as_before import goes_on, is_of_one_weight
from fsdp_migrate.source.between_passes import CHANGED, EMPTIED, unreached
from fsdp_migrate.source.collective_words import COLLECTIVE, COLLECTIVES, INTO, said_of_collective
from fsdp_migrate.source.counts_of_gradients import UNCOUNTED, counts_of_gradients
from fsdp_migrate.source.counts_of_models import ELEMENTS, counts_about_ranks, counts_of_elements
from fsdp_migrate.source.cut_by_sizes import CUT, cut_by_sizes
from fsdp_migrate.source.dtensor_hints import NORM_OVER_PARTS, OVER_PARTS, where_whole, with_hints
from fsdp_migrate.source.fails_at_once import refused
from fsdp_migrate.source.framework_words import is_norm_gathered, is_norm_used
from fsdp_migrate.source.indexed_rows import PLAIN_ALONE, found_rows
from fsdp_migrate.source.local_numbers import (
    asks_whether_empty,
    said_of_kept_number,
    said_of_local_number,
    takes_of_some,
)
from fsdp_migrate.source.made_of_gradients import PLAIN, is_of_gradients
from fsdp_migrate.source.no_dimensions import is_for_none
from fsdp_migrate.source.norms_by_hand import SUMMED, said_once
from fsdp_migrate.source.parameter_values import WEIGHTS, ParameterValues
from fsdp_migrate.source.plain_copies import COPIES, met_copies
from fsdp_migrate.source.plain_models import MEANT, met_models
from fsdp_migrate.source.plain_tensors import changes_plain, met
from fsdp_migrate.source.python.averages import is_averaged, is_over_parts, takes_one
from fsdp_migrate.source.python.counted import is_about_ranks
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import (
    argument_of,
    given_by_name,
    last_name,
    named_arguments,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.optimizers import STATE
from fsdp_migrate.source.python.read_states import is_summed_state
from fsdp_migrate.source.python.shown_alone import is_shown_alone
from fsdp_migrate.source.python.strategies import are_whole
from fsdp_migrate.source.python.tensor_words import OF_THE_WHOLE, STATISTICS
from fsdp_migrate.source.rules.after_evaluation import is_after_evaluation
from fsdp_migrate.source.uses import Found
from fsdp_migrate.source.values_of_wholes import (
    REFUSED_VALUES,
    STATISTIC,
    STATISTIC_OR_WHOLE,
    said_of_values,
)
from fsdp_migrate.source.waiting_gradients import ALWAYS, AT_TIMES, waiting


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "dtensor"
CODES = ("FM334", "FM336", "FM423")

_GATHERED = COLLECTIVES | {"gather_for_metrics", "pad_across_processes"}
_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm"})
_MEMORY = frozenset({"data_ptr", "numpy", "tolist"})
# What DTensors refuse, though torch's tensors have it.
_REFUSED = frozenset(
    {
        *("index_add_", "index_copy_", "index_fill_", "index_put_", "masked_scatter_", "pin_memory"),
        *("resize_", "scatter_", "scatter_add_", "set_", "share_memory_"),
    }
)
_ARRAYS = frozenset({"numpy.array", "numpy.asarray"})

_COUNT = (
    "numel() counts the whole parameter now, on each rank: take .to_local().numel() for this rank's part or "
    "its bytes, and do not multiply by the number of ranks."
)
_EMPTY = (
    "numel() counts the whole parameter now, where this rank's part may be empty, of which max() and min() "
    "raise, on that rank alone: ask .to_local().numel()."
)
_COUNTED = (
    "this counts whole parameters now, on each rank, where under FSDP1 it counted this rank's part: leave "
    "the number of ranks out of what is made of this count."
)
_SHAPED = (
    "this was one rank's part of a flat parameter, and is the whole in its own shape now, as a DTensor: take "
    ".to_local(), which is this rank's rows of it, before it is given the shape of a part."
)
_SHAPES = frozenset({"reshape", "resize", "unflatten", "view"})
_PARTS = re.compile(r"shard|world_size|per_rank|num_ranks|local_size")
_BESIDE = (
    "a plain tensor meets a DTensor here, which torch refuses: make it like the parameter, such as "
    "torch.zeros_like(p), or give .to_local() of the parameter and take this rank's rows of the other."
)
_COPIED = (
    "torch._foreach_copy_ takes no DTensors: copy each, a.copy_(b), or give it .to_local() of each, where "
    "both lists are sharded alike."
)
_HOOKED = (
    "FSDP1 called no such hook where use_orig_params=True, and else one for each flat parameter, before its "
    "gradient was reduced. FSDP2 calls it for each parameter, with the reduced gradient in p.grad, a "
    "DTensor. See that this is meant."
)
_NEVER = (
    "FSDP2 never calls this hook, without an error; FSDP1 called it with the gradient of a flat parameter, "
    "unless use_orig_params=True. Take p.register_post_accumulate_grad_hook, and change p.grad in it, which "
    "is reduced then, and a DTensor."
)
_STEPPED = (
    "FSDP2 never runs the node of the graph that this hooks: nothing is stepped, without an error. Give each "
    "parameter an optimizer of its own, and step it in p.register_post_accumulate_grad_hook."
)
_NO_GRADIENT = (
    "FSDP2's units put their gradients into .grad past the graph: of their parameters this raises, gives "
    "None, or leaves .grad empty; FSDP1 gave a flat parameter's, without use_orig_params=True. Call "
    "loss.backward(), and read p.grad."
)
_DIFFERENTIATES = frozenset({"torch.autograd.backward", "torch.autograd.grad"})
_FUNCTIONAL = frozenset({"torch.func.functional_call", "torch.nn.utils.stateless.functional_call"})
_PUT_IN = (
    "FSDP2 gathers its own parameters, past those that functional_call puts in: this raises, or goes on with "
    "the model's own. Call the model, with the values copied into its parameters."
)
_SHARED = "on a CPU this ends the process: the memory of DTensors cannot be shared. On a GPU it does nothing."
_IN_BACKWARD = re.compile(r"^torch\.distributed\.optim\.(\w+\.)*_?apply_optimizer_in_backward$")
_REPLACED = (
    "FSDP2 goes on with the parameter that it has, without an error, or raises at its next all-gather: give "
    "a module another weight, or one that it shares, before it is sharded, or copy into the one it has."
)
_PUT = (
    "FSDP2 goes on with the tensor that it has: assigning .data to a DTensor does not reach it. Copy into "
    "it, p.data.copy_(x)."
)
_PUT_OR_CAST = (
    f"{_PUT} Where another dtype is meant (float32 for the optimizer, half for the forward), make what is "
    "trained float32 before it is sharded, on each rank, give mixed_precision=MixedPrecision("
    "param_dtype=..., reduce_dtype=..., cast_root_forward_inputs=False), and take away what casts weights "
    "and gradients to and fro."
)
_CASTS = frozenset({"bfloat16", "double", "float", "half", "to", "type", "type_as"})
_MOVED = (
    "FSDP2 goes on with the tensor that it has: assigning .data to a DTensor does not reach it, and copying "
    "into it moves nothing. Call {} of the model in place of this loop, on every rank: it moves the "
    "parameters, their gradients and the buffers, and frees what they held."
)
_STATE_PUT = (
    "assigning .data does not reach a DTensor, of which the optimizer's state is made now: put what is meant "
    "into the state's dict, state[key] = value.to(...), on every rank."
)
_MOVES = frozenset({"cpu", "cuda"})
_DEVICE = re.compile(
    r"device|^(cpu|cuda|xpu|npu|hpu|mps|meta)(:\d+)?$|\b(local_)?rank\b|\bgpu(_id)?$", re.IGNORECASE
)
_NO_MEMORY = (
    "a DTensor has no {}(): take .to_local() for this rank's part, or .full_tensor(), which every rank must "
    "call, before it."
)
_STORAGES = frozenset({"storage", "typed_storage", "untyped_storage"})
_OF_MEMORY = frozenset({"data_ptr", "resize_"})
_NO_STORAGE = (
    "a DTensor has no storage of its own, and torch raises here: take .to_local() of it first. What is freed "
    "or compared so is this rank's shard."
)
_NO_ADDRESS = "data_ptr() of a DTensor is 0, whichever it is: take .to_local().data_ptr(), or id() of it."
_DEEPEST = 3
_LIGHTNINGS = re.compile(r"^(?:lightning|pytorch_lightning)\b.*\.grad_norm$")
_GRAD_NORM = (
    "Lightning's grad_norm makes one tensor of norms that are DTensors now, and raises: log "
    "clip_grad_norm_(model, float('inf')) of fsdp_migrate.runtime, asked for on every rank."
)
_REFUSES = {
    COLLECTIVE,
    INTO,
    _COPIED,
    _GRAD_NORM,
    PLAIN_ALONE,
    _NO_STORAGE,
    OVER_PARTS,
    REFUSED_VALUES,
    *(_NO_MEMORY.format(each) for each in _MEMORY | {"array", "asarray"}),
}
_WHOLE = (
    "this was a plain tensor, the same on each rank, and is a DTensor now, which collectives do not take, "
    "and of which this rank may hold a part: take .full_tensor() of it, on every rank, before it is used."
)


def find(source: Source) -> Iterator[Found]:
    """Find what is done with the parameters of sharded models, and with their norm."""
    values = ParameterValues(source)
    waits = waiting(values)
    found = (each for each in _find(values) if not is_for_none(source, each.node, values.is_one))
    for each in where_whole(source, said_once(source, found), is_after_evaluation):
        node, is_always = waits.pop(source.index.statement(each.node), (None, False))
        others = "" if each.action == "kept" else f" In others {each.becomes}"
        said = ALWAYS if is_always else f"{AT_TIMES}{others}"
        yield each if node is None else replace(each, code="FM423", becomes=said, action="commented")
    for node, is_always in waits.values():
        yield Found("FM423", node, ALWAYS if is_always else AT_TIMES, "commented")


def _find(values: ParameterValues) -> Iterator[Found]:
    source = values.source
    named, local_ones = set[cst.CSTNode](), set[cst.CSTNode]()
    for call in source.calls:
        said = "" if source.contexts.is_summoned(call) else _of_call(values, call)
        if said and not any(_is_other_class(call)):
            named.add(call)
            is_number = said in {STATISTIC, STATISTIC_OR_WHOLE}
            local = said_of_local_number(source, call, values.is_one) if is_number else None
            text = with_hints(values, call, local or said)
            local_ones.update([call] if local == "" else [])
            yield (
                Found("FM423", call, said_of_kept_number(source, call), "kept")
                if local == ""
                else Found(_code_of(source, call, said), call, text, "commented")
            )
    yield from (Found("FM423", each, _COUNTED, "commented") for each in counts_about_ranks(values))
    yield from (Found("FM334", each, ELEMENTS, "kept") for each in counts_of_elements(values, named))
    for each in counts_of_gradients(values):
        is_shown = is_shown_alone(source, each.value if isinstance(each, cst.AugAssign) else each)
        yield Found("FM334" if is_shown else "FM423", each, UNCOUNTED, "commented")
    for node, said in _of_statements(values):
        inside = {*walk_for(node, cst.Call), *source.index.ancestors(node)}
        if inside.isdisjoint(named - local_ones) and not source.contexts.is_summoned(node):
            named.add(node)
            code = "FM423" if said in {_REPLACED, CHANGED, CUT, EMPTIED} else refused(source, node)
            yield Found(code, node, with_hints(values, node, said), "commented")
    named -= local_ones
    yield from found_rows(values, named)
    yield from _of_attributes(values, named)


def _of_attributes(values: ParameterValues, named: set[cst.CSTNode]) -> Iterator[Found]:
    source = values.source
    for node in source.attributes:
        above = source.index.parents[node]
        if node.attr.value == "data" and isinstance(above, cst.AssignTarget):
            is_its = values.is_one(node.value) or values.is_own(node.value)
            if is_its and not source.contexts.is_summoned(node):
                yield Found("FM423", node, _put(source, above, node.value), "commented", is_of_its_own=True)
        elif node in named or not named.isdisjoint(source.index.ancestors(node)):
            continue
        elif is_of_one_weight(values, node) and not goes_on(source, node, values.is_one):
            # It goes on as a DTensor, or is refused.
            yield Found("FM336", node, with_hints(values, node, PLAIN_ALONE), "commented")


def _code_of(source: Source, call: cst.Call, said: str) -> str:
    """Return the code of a use: where nothing is computed by what it gives, one that stops no run."""
    if said in _REFUSES or changes_plain(source, call):
        return refused(source, call)
    if said == _SHARED:
        return "FM336"
    if said not in {_COUNT, STATISTIC, STATISTIC_OR_WHOLE} or not is_shown_alone(source, call):
        return "FM423"
    # A norm's `.item()` is a collective, for which one rank alone waits for ever.
    waits = said != _COUNT and runs_on_one_rank(source.index, source.models.guards, call)
    return "FM423" if waits else "FM334"


def _of_statements(values: ParameterValues) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield where a plain tensor meets a parameter, and where weights are put into a model."""
    source = values.source
    yield from ((node, _BESIDE) for node in met(values))
    yield from ((node, COPIES) for node in met_copies(values))
    yield from ((node, MEANT) for node in met_models(values))
    yield from ((node, CUT) for node in cut_by_sizes(values))
    yield from unreached(values)
    targets = [each.target for assign in source.assignments for each in assign.targets]
    added = source.index.by_kind.get(cst.AugAssign, ())
    targets += [cst.ensure_type(node, cst.AugAssign).target for node in added]
    for each in targets:
        if isinstance(each, cst.Attribute) and each.attr.value in WEIGHTS and values.is_one(each):
            yield each, _REPLACED


def _put(source: Source, target: cst.AssignTarget, parameter: cst.BaseExpression) -> str:
    """Return what is said of an assignment to ``.data``: of one that moves a parameter, what moves all."""
    above = source.index.parents[target]
    if STATE in source.models.kinds(parameter):
        return _STATE_PUT
    value: cst.BaseExpression | None = above.value if isinstance(above, cst.Assign) else None
    if isinstance(value, cst.Name):
        value = last_value(source.index, value)
    put = _PUT_OR_CAST if _may_cast(value) else _PUT
    found, own = "", text_of(parameter)
    while value is not None and text_of(value) != own:
        if isinstance(value, cst.Call):
            found = _move_of(value, own) or found
            value = value.func
        value = value.value if isinstance(value, cst.Attribute) else None
    return _MOVED.format(found) if found and value is not None else put


def _may_cast(value: cst.BaseExpression | None) -> bool:
    """Tell whether what is put in may have another dtype: a cast, or a tensor that is kept (``p.master``)."""
    if isinstance(value, cst.Call):
        return last_name(value.func) in _CASTS
    return isinstance(value, (cst.Attribute, cst.Name, cst.Subscript))


def _move_of(call: cst.Call, parameter: str) -> str:
    """Return a move to another device as the model is asked for it, or nothing: ``.to(p.dtype)`` is none."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    given = argument_of(call, 0, {"device"})
    where = text_of(given) if given is not None else ""
    is_device = "device" in named_arguments(call) or _DEVICE.search(where.strip("'\"")) is not None
    is_device = is_device and not where.startswith(f"{parameter}.")
    return f".{name}({where})" if name in _MOVES or (name == "to" and is_device) else ""


def _is_other_class(call: cst.Call) -> Iterator[bool]:
    """Yield whether a call is one of DTensors already: ``p.full_tensor().norm()``."""
    for inner in walk_for(call, cst.Call):
        last = inner.func.attr.value if isinstance(inner.func, cst.Attribute) else ""
        yield last in PLAIN


def _of_call(values: ParameterValues, call: cst.Call) -> str:
    source = values.source
    name = last_name(call.func)
    known = source.index.qualified(call.func)
    if name == "clip_gradients" and is_norm_used(source, call):
        return _WHOLE
    if name in _GATHERED and is_norm_gathered(source, call):
        return _WHOLE
    first = call.args[0].value if call.args and not call.args[0].star else None
    if name in COLLECTIVES and any(each.startswith("torch.distributed.") for each in known):
        if _are_given(values, call):
            return OVER_PARTS if is_over_parts(call) else said_of_collective(name)
        if first is None or name != "all_reduce":
            return ""
        is_summed = _is_norm(values, first) and not is_averaged(source.index, call)
        is_one = is_summed or (not takes_one(call) and is_of_gradients(source, call, first))
        return (NORM_OVER_PARTS if is_over_parts(call) else SUMMED) if is_one else ""
    if first is not None and any(map(_LIGHTNINGS.search, known)):
        return _GRAD_NORM if source.models.certainty(first) is not None else ""
    return _of_function(values, call, name)


def _of_function(values: ParameterValues, call: cst.Call, name: str) -> str:
    """Return what is said of a function that is given parameters, or of a method of one."""
    source = values.source
    known = source.index.qualified(call.func)
    if known & _FUNCTIONAL and call.args and source.models.certainty(call.args[0].value) is not None:
        return _PUT_IN
    if name == "share_memory" and isinstance(call.func, cst.Attribute):
        return _SHARED if source.models.certainty(call.func.value) is not None else ""
    if "torch._foreach_copy_" in known:
        return _COPIED if _are_given(values, call) else ""
    if known & _DIFFERENTIATES or (
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"
    ):
        given = given_by_name(call, "inputs")
        given += [arg.value for arg in call.args[1:2] if "torch.autograd.grad" in known and not arg.star]
        return _NO_GRADIENT if any(values.is_one(each) or values.is_many(each) for each in given) else ""
    if any(map(_IN_BACKWARD.search, known)):
        return _STEPPED if _are_given(values, call) else ""
    if known & _ARRAYS:
        return _NO_MEMORY.format(name) if any(values.is_one(arg.value) for arg in call.args[:1]) else ""
    if known & OF_THE_WHOLE:
        return said_of_values(source, call, name) if _are_given(values, call) else ""
    if isinstance(call.func, cst.Attribute) and values.is_one(call.func.value):
        return _of_method(values, call, call.func.attr.value)
    return _of_storage(values, call)


def _of_storage(values: ParameterValues, call: cst.Call) -> str:
    """Return what is said of what is asked of a parameter's storage: ``p.untyped_storage().data_ptr()``."""
    func = call.func
    made = func.value if isinstance(func, cst.Attribute) and func.attr.value in _OF_MEMORY else None
    asked = made.func if isinstance(made, cst.Call) else None
    is_its = isinstance(asked, cst.Attribute) and asked.attr.value in _STORAGES and values.is_one(asked.value)
    return _NO_STORAGE if is_its else ""


def _are_given(values: ParameterValues, call: cst.Call) -> bool:
    given = [arg.value for arg in call.args if not arg.star]
    return any(values.is_one(each) or values.is_many(each) for each in given)


def _of_method(values: ParameterValues, call: cst.Call, name: str) -> str:
    """Return what is said of a method that is called on a parameter."""
    source = values.source
    if name in _REFUSED:
        # Of `p.data = p.data.cpu().pin_memory()` more is said.
        return "" if name == "pin_memory" and _is_put(source, call) else PLAIN_ALONE
    if name == "register_post_accumulate_grad_hook":
        return _HOOKED
    if name == "register_hook":
        return "" if catalog.MAY_KEEP_NAMES.search(source.code) else _NEVER
    if name in _MEMORY:
        return _NO_ADDRESS if name == "data_ptr" else _NO_MEMORY.format(name)
    if name in STATISTICS:
        return said_of_values(source, call, name)
    if name in _SHAPES:
        return _SHAPED if any(_PARTS.search(text_of(arg.value).lower()) for arg in call.args) else ""
    if name != "numel" or are_whole(source.models):  # NO_SHARD's were whole before
        return ""
    if asks_whether_empty(source, call):
        return _EMPTY if takes_of_some(source, call, values.is_one) else ""
    return _COUNT if is_about_ranks(source.index, call) or is_summed_state(source.models, call) else ""


def _is_put(source: Source, value: cst.CSTNode, *, is_named: bool = False) -> bool:
    """Tell whether a value takes the place of a parameter's, also by a name: ``p.data = value``."""
    above = source.index.parents[value]
    target = above.targets[0].target if isinstance(above, cst.Assign) else None
    if isinstance(target, cst.Name) and not is_named:
        return any(_is_put(source, each, is_named=True) for each in source.readers(target))
    return isinstance(target, cst.Attribute) and target.attr.value == "data"


def _is_norm(values: ParameterValues, node: cst.BaseExpression) -> bool:
    """Tell whether a name holds what torch's own clipping of a sharded model gave."""
    source = values.source
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    for binding in source.index.scopes[node].lookup(node.value):
        value = binding.value
        while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
            if value.func.attr.value in _CLIPS:
                break
            value = value.func.value
        if not isinstance(value, cst.Call) or not value.args:
            continue
        is_torchs = any(each.startswith("torch.nn.utils.") for each in source.index.qualified(value.func))
        if is_torchs and values.is_list(value.args[0].value):
            return True
    return False
