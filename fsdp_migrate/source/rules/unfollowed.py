"""What is done with a model or an optimizer of which nothing shows whether it is the sharded one.

Nothing is done to these places. They are named, so that nobody has to search for them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.indexed_rows import rows_of_unknown
from fsdp_migrate.source.kept_in_classes import kept_in_doubt
from fsdp_migrate.source.method_calls import is_fsdp1s_alone, is_seen_plain
from fsdp_migrate.source.python.accelerators import UNWRAPS, method
from fsdp_migrate.source.python.branches import gathers_state, is_fsdp2s
from fsdp_migrate.source.python.checked_optimizers import is_made_for_fsdp1, is_of_a_plain_model
from fsdp_migrate.source.python.clipped_lists import are_unknown, clipped, given_to_clipper
from fsdp_migrate.source.python.counted import meets_ranks
from fsdp_migrate.source.python.given_plain import is_given_plain
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.lightning_models import is_before_sharding
from fsdp_migrate.source.python.loaded_back import is_its_own_state, is_loaded_back
from fsdp_migrate.source.python.mentions import find_left
from fsdp_migrate.source.python.no_models import is_annotated_plain, is_no_model
from fsdp_migrate.source.python.nodes import (
    dotted,
    named_arguments,
    parameters_of,
    placed_arguments,
    text_of,
    walk_for,
    word_of,
)
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.python.optimizers import is_optimizer
from fsdp_migrate.source.python.own_states import said_of_own_state
from fsdp_migrate.source.python.parameter_lists import is_read_for_names
from fsdp_migrate.source.python.read_states import is_asked_for_keys
from fsdp_migrate.source.python.unknown_foreach import of_foreach
from fsdp_migrate.source.python.unknown_models import is_model, is_unknown, last_word
from fsdp_migrate.source.python.unknown_optimizers import is_made_of_unknown
from fsdp_migrate.source.python.xlas import imports_xlas
from fsdp_migrate.source.unknown_gradients import is_of_gradients, knows_dtensors, of_unknown_lists
from fsdp_migrate.source.unknown_wrappers import of_wrappers
from fsdp_migrate.source.uses import Found, Remove


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "unfollowed"
CODES = ("FM450",)

_STATE = (
    "the sharded model's state holds one rank's part of each tensor (DTensor). For whole ones every rank "
    "takes torch's get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True))."
)
_LOAD = "the sharded model takes no whole tensors: load_model_state_dict of fsdp_migrate.runtime does."
_PRETRAINED = (
    "the sharded model would save one rank's part of each tensor: every rank takes its whole state first, "
    "and one gives it as state_dict=."
)
_OPTIMIZER = (
    "the state of a sharded model's optimizer is one rank's part, keyed by numbers: "
    "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime gives the whole."
)
_OPTIMIZER_LOAD = (
    "a sharded model's optimizer takes no whole tensors: first optim_state_dict_to_load(model, optimizer, "
    "state) of fsdp_migrate.runtime."
)
_COPY = "a sharded model cannot be copied: copy it before it is sharded."
_BESIDE = (
    "the sharded model's parameters are DTensors: arithmetic with plain ones beside them fails, unless both "
    "are taken as .full_tensor() on every rank, or both models are sharded alike."
)
_GRADIENTS = (
    "the sharded model's gradients are DTensors: a norm or sum is that of the whole, where FSDP1's was one "
    "rank's, and collectives take none. clip_grad_norm_(model, float('inf')) of fsdp_migrate.runtime gives "
    "the norm as a plain tensor."
)
_FORWARD = (
    "FSDP2 gathers a sharded model's parameters where it is called, as FSDP1's wrapper did here too: write "
    "model(...), not model.forward(...)."
)
_VECTOR = (
    "of a sharded model's parameters, which are DTensors, torch makes a vector of the whole, or refuses "
    "where they are not sharded evenly; FSDP1's were one rank's parts. On every rank take p.full_tensor() of "
    "each."
)
_MODULE = "the sharded model has none: FSDP2 wraps nothing, take the model itself."
_LIST = (
    "of a sharded model's parameters the norm is that of the whole gradient, and a DTensor, which a text "
    "does not take; FSDP1's was one rank's. clip_grad_norm_(model, max_norm) of fsdp_migrate.runtime gives a "
    "plain one."
)
_COUNT = (
    "of a sharded model numel() counts whole parameters, on each rank, where FSDP1's were one rank's part: "
    "leave the number of ranks, or the sum over them, out of what is made of this count."
)
_ROWS: Final = (
    "of a sharded model's gradient, a DTensor, an index is a row, where FSDP1's was an element of one rank's "
    "flat part; what is written to it goes into a copy and is lost, without an error, or is refused. On "
    "every rank take full = x.full_tensor(), write to that, and put back "
    "torch.distributed.tensor.distribute_tensor(full, x.device_mesh, x.placements)."
)
_ALONE: Final = {
    _GRADIENTS: (
        "One rank alone comes here, and would wait for the others, in clip_grad_norm_ too: take the norm "
        "above this branch, on every rank, or take .to_local() of each gradient, which is that rank's part, "
        "as FSDP1's was."
    ),
    **dict.fromkeys(
        (_LIST, _OPTIMIZER, _PRETRAINED, _STATE),
        "One rank alone comes here, and would wait for the others: do that above this branch, on every rank.",
    ),
}
"""What is added where one rank alone comes, and what is asked, or what takes its place, waits for all."""
_FOREACH = (
    "torch._foreach_* takes no list of both a sharded model's parameters, which are DTensors, and its "
    "buffers, which are plain: give each a list of its own."
)
_COUNTS: Final = frozenset({"nelement", "numel"})
_MAKES_STATES: Final = frozenset(
    {
        "flatten_sharded_optim_state_dict",
        "load_sharded_optimizer_state_dict",
        "optim_state_dict_to_load",
        "scatter_full_optim_state_dict",
        "shard_full_optim_state_dict",
    }
)
_SAID: Final = {
    "clip_grad_norm_": "the sharded model has none: fsdp_migrate.runtime.clip_grad_norm_(model, max_norm).",
    "forward": _FORWARD,
    "load_state_dict": _LOAD,
    "no_sync": "the sharded model has none: fsdp_migrate.runtime.no_sync(model).",
    "save_pretrained": _PRETRAINED,
    "state_dict": _STATE,
}
_OF_OPTIMIZERS: Final = {"load_state_dict": _OPTIMIZER_LOAD, "state_dict": _OPTIMIZER}
_OF_FUNCTIONS: Final = {
    "clip_grad_norm_": _LIST,
    "deepcopy": _COPY,
    "get_peft_model_state_dict": _PRETRAINED,
    "parameters_to_vector": _VECTOR,
}
_OF_PARAMETERS: Final = frozenset({"clip_grad_norm_", "parameters_to_vector"})

_MAY_FIND: Final = re.compile(
    r"(?P<method>\.(?:load_state_dict|save_pretrained|state_dict|(?:named_)?parameters)\(|\.module\b(?!\s+import\b))"
    r"|\.(?:clip_grad_norm_|forward|no_sync)\(|\bparameters_to_vector\(|(?<![\w.])clip_grad_norm_?\(|\._foreach_\w+\("
    r"|\bunwrap_model\(|\bdeepcopy\(|\bget_peft_model_state_dict\(|\.grad\b[^\n]*\.(?:norm|sum)\("
    r"|\b(?:norm|all_reduce)\([^\n]*\.grad\b|\.grad\s+for\b|\.(?:bias|weight)\.grad\b|attr\([^\n]{0,200}['\"](?:clip_grad_norm_|no_sync)['\"]"
    r"|(?i:grad_?clip|clip_?(?:fn|grad|norm)|clipper)\w*\("
)
_SETTINGS: Final = re.compile(r"(?:^|_)(?:args|cfg|conf|config|hparams|opt|settings)$")
_WHOLE_IN_CONTEXT: Final = frozenset(
    {"get_peft_model_state_dict", "load_state_dict", "save_pretrained", "state_dict"}
)
_LAST: Final = re.compile(r"(\w+)(?:['\"]\])?\s*$")
_LONGEST: Final = 60


def may_find(text: str) -> bool:
    """Tell whether a source may do any of this with a model.

    Example:
        >>> may_find("net.load_state_dict(x)"), may_find("scheduler.load_state_dict(x)")
        (True, False)
    """
    for match in _MAY_FIND.finditer(text):
        last = _LAST.search(text[max(0, match.start() - _LONGEST) : match.start()])
        word = last[1].lower() if last is not None else ""
        if match["method"] is None or is_model(word) or is_optimizer(word):
            return True
    return False


_KEPT = (
    "another method shards this model: where this runs before it, it holds parameters in whose place FSDP2 "
    "puts new ones. Make it of the sharded model."
)


def find(source: Source, found: Iterable[tuple[str, Found]]) -> Iterator[Found]:
    """Find what the other rules have said nothing of, in files that a sharded model may come to."""
    is_near = source.links.is_near
    if not (is_near or source.links.is_far) or (not source.uses_fsdp1 and imports_xlas(source.index)):
        return
    found = [*found]
    said = {source.index.statement(each.node) for _, each in found}
    said |= {source.index.statement(edit.statement) for edit in _removed(found)}
    commented = {line for line, *_ in find_left(source.code)}
    is_fsdp2_file = _shards_by_fsdp2_alone(source)
    is_foreach_said = any(each.code == "FM447" and each.action == "commented" for _, each in found)
    asked = ((call, _asked(source, call)) for call in source.calls)
    done = [(call, *what) for call, what in asked if what is not None]
    if not is_near:
        yield from _of_far(source, done, said)
        return
    both = () if is_foreach_said else of_foreach(source)
    wrapped = ((node, model, _MODULE) for node, model in of_wrappers(source))
    rows = ((node, model, _ROWS) for node, model in rows_of_unknown(source))
    lists: list[tuple[cst.CSTNode, None, str]] = [
        *((each, None, _LIST) for each in _clipped_lists(source)),
        *((each, None, _GRADIENTS) for each in of_unknown_lists(source)),
        *((each, None, _FOREACH) for each in both),
        *((each, None, _KEPT) for each in kept_in_doubt(source)),
    ]
    for node, model, meant in (*done, *wrapped, *rows, *_loops(source), *lists):
        statement = source.index.statement(node)
        is_known = model is not None and (not _is_unknown(source, model) or is_seen_plain(source, model))
        is_known = is_known or (model is not None and is_annotated_plain(source.index, model))
        is_whole = meant in {_BESIDE, _PRETRAINED, _STATE} and source.contexts.is_summoned(node)
        is_known = is_known or is_fsdp2s(source.index, node) or gathers_state(source.index, node)
        if statement in said or is_known or is_whole:
            continue
        if is_fsdp2_file and not _is_called_here(source, node):
            continue
        if is_before_sharding(source.index, node) or source.models.guards.is_without_fsdp(node):
            continue
        if source.position(statement)[0] not in commented:
            said.add(statement)
            yield Found("FM450", node, _where_alone(source, node, meant), "unclear")


def _where_alone(source: Source, node: cst.CSTNode, meant: str) -> str:
    """Return what is said of a place, with what holds where one rank alone comes to it."""
    added = next((said for start, said in _ALONE.items() if meant.startswith(start)), "")
    is_alone = added and runs_on_one_rank(source.index, source.models.guards, node)
    return f"{meant} {added}" if is_alone else meant


def _of_far(
    source: Source, done: list[tuple[cst.Call, cst.BaseExpression, str]], said: set[cst.CSTNode]
) -> Iterator[Found]:
    """Find FSDP1's own way of clipping in a file that no import leads to: nothing else may lead there."""
    for call, model, meant in done:
        is_told = meant == _SAID["clip_grad_norm_"] and source.index.statement(call) not in said
        if is_told and _is_unknown(source, model) and not source.models.guards.is_without_fsdp(call):
            yield Found("FM450", call, meant, "unclear")


def _removed(found: Iterable[tuple[str, Found]]) -> Iterator[Remove]:
    yield from (edit for _, each in found for edit in each.edits if isinstance(edit, Remove))


def _is_unknown(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a model or an optimizer comes from where it is not seen, or is made of what does."""
    if is_unknown(source, node):
        return True
    return is_optimizer(last_word(node)) and is_made_of_unknown(source, node)


def _shards_by_fsdp2_alone(source: Source) -> bool:
    """Tell whether a file shards models itself, by FSDP2, and names nothing of FSDP1's."""
    if source.uses_fsdp1 or catalog.FSDP in source.code or "fully_shard" not in source.code:
        return False
    made = (name for call in source.calls for name in source.index.qualified(call.func))
    return any(name.startswith("torch.") and name.endswith(".fully_shard") for name in made)


def _is_called_here(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether the file itself shows what is given to a place's function, or runs it at once."""
    function = source.index.function(node)
    return function is None or any(_name(call) == function.name.value for call in source.calls)


def _loops(source: Source) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression, str]]:
    """Yield what loops over a model's parameters do with them that is otherwise for a sharded one."""
    for kind in (cst.For, cst.CompFor):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.For, cst.CompFor))
            models = [model for each in walk_for(node.iter, cst.Call) if (model := _whose_parameters(each))]
            if not models:
                continue
            region = node.body if isinstance(node, cst.For) else source.index.parents[node]
            if knows_dtensors(region):
                continue
            if len(models) > 1:
                named = (each for each in models if is_model(last_word(each)))
                yield from ((node.iter, model, _BESIDE) for model in named)
                continue
            counts = (each for each in walk_for(region, cst.Call) if _name(each) in _COUNTS)
            yield from ((e, models[0], _COUNT) for e in counts if meets_ranks(source.index, e))
            if any(each.attr.value == "grad" for each in walk_for(region, cst.Attribute)):
                made = (each for each in walk_for(region, cst.Call) if is_of_gradients(source, each))
                yield from ((each, models[0], _GRADIENTS) for each in made)


def _clipped_lists(source: Source) -> Iterator[cst.Call]:
    """Yield what clips an optimizer's parameters, or a list that others give, of which nothing is known."""
    for call in source.calls:
        if _is_ours(source, call):
            continue
        given = clipped(call) or given_to_clipper(source, call)
        if given is not None and are_unknown(source, given) and not is_seen_plain(source, given):
            yield call


def _is_ours(source: Source, call: cst.Call) -> bool:
    """Tell whether it is a function of this package, which knows DTensors: what is advised elsewhere."""
    return any(each.startswith("fsdp_migrate.") for each in source.index.qualified(call.func))


def _asked(source: Source, call: cst.Call) -> tuple[cst.BaseExpression, str] | None:
    """Return the model or optimizer that a call does something with, and what to know of it."""
    func, name = call.func, _name(call)
    if is_read_for_names(source.index, call) or _is_ours(source, call):
        return None
    if name in _WHOLE_IN_CONTEXT and source.contexts.is_summoned(call):
        return None  # parameters are plain there, and whole
    if isinstance(func, cst.Attribute) and name in _SAID and not source.index.qualified(func):
        if _is_of_another_kind(call, name) or (name == "forward" and _is_of_a_part(source, func.value)):
            return None
        model = _wrapped(source, func.value)
        last = last_word(model)
        if name in _OF_OPTIMIZERS and is_optimizer(last):
            is_done = name == "load_state_dict" and _is_made_for_loading(source, call)
            is_done = is_done or (name == "state_dict" and is_loaded_back(source.index, call))
            is_done = is_done or is_asked_for_keys(source.index, call)
            is_done = is_done or is_of_a_plain_model(source.models.guards, func.value)
            is_done = is_done or is_given_plain(source.models, func.value)
            said = f"{_OF_OPTIMIZERS[name]}{said_of_own_state(source, func.value)}"
            return None if is_done else (func.value, said)
        is_whole = name == "save_pretrained" and "state_dict" in named_arguments(call)
        is_one = is_model(last) and not is_whole and not is_no_model(source.index, model)
        return (model, _SAID[name]) if is_one or is_fsdp1s_alone(source, call) else None
    if name in {"getattr", "hasattr"} and len(call.args) > 1:
        # FSDP2's has none of both: `getattr(trainer.model, "no_sync", None)` gives None from now on.
        model, asked = _wrapped(source, call.args[0].value), word_of(call.args[1].value)
        is_one = asked in {"clip_grad_norm_", "no_sync"} and is_model(last_word(model))
        return (model, _SAID[asked]) if is_one else None
    name = "clip_grad_norm_" if given_to_clipper(source, call) is not None else name
    given = _wrapped(source, call.args[0].value) if name in _OF_FUNCTIONS and call.args else None
    if given is not None and (_is_of_a_saved_state(source, given) or _has_its_state(call, name)):
        return None
    if name in _OF_PARAMETERS:
        given = _whose_parameters(given)
    if name == "deepcopy" and given is not None and _is_of_settings(given):
        return None
    return (given, _OF_FUNCTIONS[name]) if given is not None and is_model(last_word(given)) else None


def _is_of_a_part(source: Source, owner: cst.BaseExpression) -> bool:
    """Tell whether a module calls itself or its own part, of which it may be that the whole is sharded."""
    around = source.index.class_of(owner)
    is_module = around is not None and any(text_of(each.value).endswith("Module") for each in around.bases)
    return is_module and (text_of(owner) + ".").startswith("self.")


def _is_of_another_kind(call: cst.Call, name: str) -> bool:
    """Tell whether a state is asked, or given, otherwise than a module's: ``ema.state_dict(net)``."""
    placed = placed_arguments(call)
    if name == "state_dict":
        return any(isinstance(each, (cst.Name, cst.Attribute)) for each in placed)
    is_one = name == "load_state_dict" and len(placed) > 1 and is_model(last_word(placed[0]))
    return is_one and "strict" not in text_of(placed[1]) and text_of(placed[1]) not in {"False", "True"}


def _wrapped(source: Source, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the model that ``accelerator.unwrap_model(model)`` gives back, by a name too, or what it is."""
    if isinstance(node, cst.Name) and not is_model(node.value):
        value = last_value(source.index, node)
        inner = _wrapped(source, value) if isinstance(value, cst.Call) else value
        return node if inner is None or inner is value else inner
    func = method(source.index, node.func) if isinstance(node, cst.Call) and node.args else None
    is_unwrapped = func is not None and func.attr.value == UNWRAPS
    return cst.ensure_type(node, cst.Call).args[0].value if is_unwrapped else node


def _has_its_state(call: cst.Call, name: str) -> bool:
    """Tell whether PEFT's function is given the state, and asks no model for it."""
    is_placed = len(call.args) > 1 and call.args[1].keyword is None
    return name == "get_peft_model_state_dict" and (is_placed or "state_dict" in named_arguments(call))


def _is_of_a_saved_state(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is an item of what ``load_state_dict`` is given: of tensors, and no model."""
    root, function = node.value if isinstance(node, cst.Subscript) else None, source.index.function(node)
    if not isinstance(root, cst.Name) or function is None or function.name.value != "load_state_dict":
        return False
    return root.value in {each.name.value for each in parameters_of(function)}


def _is_of_settings(node: cst.BaseExpression) -> bool:
    """Tell whether it is a part of a config, and so no model itself: ``copy.deepcopy(cfg.model)``."""
    whole = node.value if isinstance(node, (cst.Attribute, cst.Subscript)) else None
    return whole is not None and _SETTINGS.search(last_word(whole)) is not None


def _is_made_for_loading(source: Source, call: cst.Call) -> bool:
    """Tell whether what an optimizer loads was made for it by FSDP1's functions, or by ours."""
    given = call.args[0].value if call.args else None
    if is_its_own_state(source.index, call):
        return True
    if isinstance(given, cst.Name):
        if is_made_for_fsdp1(source.models.guards, given, _MAKES_STATES):
            return True
        given = last_value(source.index, given)
    return isinstance(given, cst.Call) and _name(given) in _MAKES_STATES


def _name(call: cst.Call) -> str:
    """Return the last word of what is called, ``norm`` of ``p.grad.detach().norm(2)``."""
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else (dotted(call.func) or "")


def _whose_parameters(given: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """Return the model of ``model.parameters()``."""
    if not isinstance(given, cst.Call) or not isinstance(given.func, cst.Attribute):
        return None
    return given.func.value if given.func.attr.value in {"named_parameters", "parameters"} else None
