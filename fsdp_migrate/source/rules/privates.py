"""What is private to torch's FSDP1 has no twin: flat parameters, handles, and its internal modules."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.method_calls import was_asked_for, was_fsdp1s
from fsdp_migrate.source.private_values import OF_FLAT, OF_MARKED, said_of_value
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.named_texts import texts_of
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.rules.module_attribute import is_taken_out
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "private"
CODES = ("FM317",)

_MEANT = "private to FSDP1: FSDP2 has no flat parameters, handles or wrapped modules; find what it was for."
_MOVED = (
    "flat parameters that are moved by hand: FSDP2 has none. Take this function away, and put what needs the "
    "device meanwhile below `with offloaded(model, optimizer):` of fsdp_migrate.runtime."
)
_WITH_IT = "goes with the function, which moves flat parameters"
_OWN = (
    "FSDP2's modules have no such attribute, unless the model itself has one of this name: take what "
    "prepare_fully_shard was given, or fsdp_migrate.shard_plan(model)."
)
_GROUP = (
    "FSDP2 asks no module for its group: this changes nothing, and the mesh keeps the groups that it was "
    "made of, also those that were destroyed. For other groups make the model anew, and give "
    "prepare_fully_shard a mesh of them."
)
_PASSED_OVER = (
    "private to FSDP1: FSDP2's modules have none, so that what is set on it below is set no more, without an "
    "error; find what it was for."
)
_OF_STREAMS = (
    "streams of FSDP1: FSDP2's modules have none of these names, and make their own. Take this away; where "
    "several models are to share them, torch.distributed.fsdp.share_comm_ctx([...]), if your torch has it."
)
_COMPOSERS_STATES: Final = frozenset({"composer.core", "composer.core.state"})
_COMPOSERS = re.compile(r"^composer\.utils\.(?:misc\.)?is_model_fsdp$")
_ASKS_FSDP1 = (
    "Composer's is_model_fsdp asks for FSDP1's class, and is false of FSDP2's models: what is done where it "
    "is true is passed over. Ask any(isinstance(m, torch.distributed.fsdp.FSDPModule) for m in "
    "model.modules())."
)
_OF_COMPOSERS_STATES: Final = {
    "fsdp_state_dict_type_context": (
        "Composer's context is FSDP1's state_dict_type: in it an FSDP2 model's state is of DTensors, one "
        "rank's part of each, and at its end it raises KeyError(None). Take it away, and on every rank the "
        "state by torch's get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
        "cpu_offload=True)), which is rank 0's alone as before; of 'sharded' leave the options out."
    ),
    **dict.fromkeys(
        ("fsdp_get_optim_state_dict", "get_fsdp_full_optim_state_dict"),
        "Composer asks FSDP1's own function here, which knows no FSDP2 model: take "
        "full_optimizer_state_dict(model, optimizer) of fsdp_migrate.runtime, on every rank.",
    ),
    "get_fsdp_sharded_optim_state_dict": (
        "Composer asks FSDP1's own function here, which knows no FSDP2 model: take "
        "optim_state_dict_to_load(model, optimizer, state) of fsdp_migrate.runtime, on every rank."
    ),
}
_MARK, _FLAT = "_fsdp_flattened", "_is_flat_param"
_NOT_THERE = "stays: it is asked for first, and not there"
_NAMES = frozenset({"_flat_param", "_fsdp_wrapped_module", "_handle", "_handles", "flat_param"})
_STREAMS = frozenset(
    {"_all_reduce_stream", "_post_backward_stream", "_pre_unshard_stream", "_unshard_stream"}
)
# What nothing else has, also in a file that imports nothing of FSDP1's.
_NO_OTHERS = frozenset(
    {
        "_exec_order_data",
        "_flat_param",
        _MARK,
        "_fsdp_wrapped_module",
        "_fully_sharded_module_to_handle",
        _FLAT,
        "_unsharded_flat_param_names",
    }
)
# Of FSDP1 alone, whatever they are asked of.
_FSDP1S = _NO_OTHERS | _STREAMS | {"_all_handles", "_streams", "flat_param"}
# What another FSDP is, or writes into its checkpoints: fairscale's, torch_xla's and a project's own.
_IS_ANOTHERS = re.compile(
    r"^class FullyShardedDataParallel\b|[\"']flatten_info[\"']|^[ \t]+self\._fsdp_wrapped_module\s*="
    r"|^[ \t]*(?:from|import)\s+(?:fairscale|torch_xla\.distributed\.fsdp)\b",
    re.MULTILINE,
)
_ASKING = frozenset({"delattr", "getattr", "hasattr", "setattr"})
_WITH_DEFAULT = {"getattr": 3}


def find(source: Source) -> Iterator[Found]:
    """Find what is private to FSDP1: a function that moves flat parameters is told once."""
    told: set[cst.FunctionDef] = set()
    every = [
        e for e in _find(source) if not (isinstance(e.node, cst.Attribute) and is_taken_out(source, e.node))
    ]
    # Of `model._handle.flat_param` both are private: it is one use.
    parts = {
        (part, e.becomes) for e in every if isinstance(e.node, cst.Attribute) for part in _owners(e.node)
    }
    for each in (found for found in every if (found.node, found.becomes) not in parts):
        function = source.index.function(each.node)
        if function is None or each.action != "commented" or not _moves(function):
            yield each
        elif function in told:
            yield replace(each, becomes=_WITH_IT, action="kept")
        else:
            told.add(function)
            yield replace(each, becomes=_MOVED)


def _owners(node: cst.Attribute) -> Iterator[cst.CSTNode]:
    """Yield what an attribute is asked of, and what that is."""
    owner = node.value
    while isinstance(owner, (cst.Attribute, cst.Call, cst.Subscript)):
        yield owner
        owner = owner.func if isinstance(owner, cst.Call) else owner.value


def _moves(function: cst.FunctionDef) -> bool:
    """Tell whether a function moves flat parameters: ``handle.flat_param_to(...)``, ``flat.data = ...``."""
    if any(each.attr.value == "flat_param_to" for each in walk_for(function, cst.Attribute)):
        return True
    targets = (each.target for each in walk_for(function, cst.AssignTarget))
    return any((dotted(each) or "").endswith(("flat_param.data", "_local_shard")) for each in targets)


def _find(source: Source) -> Iterator[Found]:
    for call in source.calls:
        if any(map(_COMPOSERS.search, source.index.qualified(call.func))):
            yield Found("FM317", call, _ASKS_FSDP1, "commented")
    yield from _of_composers_states(source)
    for node, name in source.references.items():
        if catalog.is_private(name) or name.split(".")[0] == "FlatParameter":
            said = said_of_value(source, node, name) or _MEANT
            yield Found("FM317", node, said, "commented", covers=(node,))
    if not source.uses_fsdp1:
        yield from _without_imports(source)
        return
    yield from (Found("FM317", each, _GROUP, "commented") for each in _groups_set(source))
    own = _own_names(source)
    # A name alone tells nothing where a class of the source's own has a public attribute of it.
    telling = _FSDP1S - {name for name in own if not name.startswith("_")}
    for node in source.attributes:
        if (
            node.attr.value in catalog.WRAPPER_ATTRIBUTES
            and _is_asked_of_a_model(source, node)
            and not _are_settings(source, node)
        ):
            yield Found("FM317", node, _OWN, "commented")
        if node.attr.value not in _NAMES | _FSDP1S or node in source.references:
            continue
        if not (node.attr.value in telling or _is_asked_of_a_model(source, node)) or _is_own(source, node):
            continue
        yield _of_attribute(source, node)
    yield from _by_their_names(source, telling)


def _of_composers_states(source: Source) -> Iterator[Found]:
    """Find what Composer has for the states of FSDP1's models: calls, and names that are given away."""
    if not any(each in source.code for each in _OF_COMPOSERS_STATES):
        return
    for kind in (cst.Name, cst.Attribute):
        for node in source.index.by_kind.get(kind, ()):
            above = source.index.parents[node]
            if isinstance(above, (cst.Attribute, cst.ImportAlias)):
                continue
            for name in source.index.qualified(node):
                start, _, last = name.rpartition(".")
                if start in _COMPOSERS_STATES and last in _OF_COMPOSERS_STATES:
                    at = above if isinstance(above, cst.Call) and above.func is node else node
                    yield Found("FM317", at, _OF_COMPOSERS_STATES[last], "commented")


def _are_settings(source: Source, node: cst.Attribute) -> bool:
    """Tell whether ``params`` is what a model was made of, as Llama's has it, and no list of FSDP1's."""
    if node.attr.value != "params":
        return False
    above = source.index.parents[node]
    target = above.targets[0].target if isinstance(above, cst.Assign) else None
    readers = source.readers(target) if isinstance(target, cst.Name) else []
    asked = [node, *(each for each in readers if each is not target)]
    return any(isinstance(source.index.parents[each], cst.Attribute) for each in asked)


def _groups_set(source: Source) -> Iterator[cst.Attribute]:
    """Yield where units are given another group: ``for unit in units: unit.process_group = group``."""
    for node in source.attributes:
        if node.attr.value != "process_group" or dotted(node.value) in {"self", "cls"}:
            continue
        is_set = isinstance(source.index.parents[node], cst.AssignTarget)
        if is_set and not _is_a_mock(source, node.value) and _is_model(source, node.value):
            yield node


def _own_names(source: Source) -> set[str]:
    """Return the names of the attributes that classes of a source set on themselves."""
    return {
        target.target.attr.value
        for assign in source.assignments
        for target in assign.targets
        if isinstance(target.target, cst.Attribute) and dotted(target.target.value) == "self"
    }


def is_of_own_class(source: Source, name: str) -> bool:
    """Tell whether a class of the source has an attribute of such a name."""
    return name in _own_names(source)


def _of_attribute(source: Source, node: cst.Attribute) -> Found:
    if node.attr.value == _MARK:
        return Found("FM317", node, OF_MARKED, "commented")
    if was_asked_for(source, node):
        return Found("FM317", node, _NOT_THERE, "kept")
    if node.attr.value in _STREAMS:
        return Found("FM317", node, _OF_STREAMS, "commented")
    return Found("FM317", node, OF_FLAT if node.attr.value == _FLAT else _MEANT, "commented")


def is_of_another_package(source: Source) -> bool:
    """Tell whether a source speaks of another package's FSDP, and not of torch's."""
    return not source.uses_fsdp1 and _IS_ANOTHERS.search(source.code) is not None


def _without_imports(source: Source) -> Iterator[Found]:
    """Find what is FSDP1's alone in a file that is given models, and imports nothing of FSDP1's."""
    if is_of_another_package(source):
        return
    for node in source.attributes:
        is_handles = node.attr.value == "flat_param" and (dotted(node.value) or "").endswith("._handle")
        is_private = node.attr.value in _NAMES | _FSDP1S
        is_shown = node.attr.value in catalog.WRAPPER_ATTRIBUTES and not _are_settings(source, node)
        if (is_private or is_shown) and _is_asked_of_a_model(source, node):
            yield _of_attribute(source, node) if is_private else Found("FM317", node, _OWN, "commented")
        elif (is_handles or node.attr.value in _NO_OTHERS) and dotted(node.value) not in {"self", "cls"}:
            yield _of_attribute(source, node)


def _by_their_names(source: Source, telling: frozenset[str]) -> Iterator[Found]:
    """Find attributes that are asked for by a string: ``getattr(module, "_flat_param")``, or by a name."""
    of_loops: dict[cst.CSTNode, Found] = {}
    for call in source.calls:
        if dotted(call.func) not in _ASKING or len(call.args) < 2 or any(arg.star for arg in call.args[:2]):
            continue
        model, text = call.args[0].value, call.args[1].value
        if isinstance(text, cst.SimpleString):
            found = _of_texts(source, call, {str(text.evaluated_value)}, telling)
            is_said = text.evaluated_value == "_fsdp_wrapped_module"
            if found is not None and not (is_said and source.models.certainty(model) is not None):
                yield found  # what becomes of `_fsdp_wrapped_module` of a model is said with `.module`
        elif isinstance(text, cst.Name):
            found = _of_texts(source, call, texts_of(source.models.guards, text), telling)
            # One loop may ask for them, and set them, in many lines: the first that raises says it.
            loops = (a for a in source.index.ancestors(call) if isinstance(a, (cst.For, cst.BaseComp)))
            key = next(loops, call)
            if found is not None and (key not in of_loops or of_loops[key].action == "kept" != found.action):
                of_loops[key] = found
    yield from of_loops.values()


def _of_texts(source: Source, call: cst.Call, texts: set[str], telling: frozenset[str]) -> Found | None:
    """Return what is said of a call that asks for attributes by their names, if one is FSDP1's."""
    model, node = call.args[0].value, call.args[1].value
    known = texts & telling
    shown = texts & (catalog.WRAPPER_ATTRIBUTES | _NAMES) if _is_model(source, model) else set()
    if dotted(call.func) == "setattr":
        if "process_group" in shown:
            return Found("FM317", node, _GROUP, "commented")
        shown = {each for each in shown if each.startswith("_")}  # a public one is the source's own
    if not known | shown:
        return None
    if _MARK in known:  # also with a default: what is done with it is done for no parameter now
        return Found("FM317", node, OF_MARKED, "commented")
    has_default = len(call.args) == _WITH_DEFAULT.get(dotted(call.func) or "")
    if has_default and _is_set_on(source, call):
        return Found("FM317", node, _PASSED_OVER, "commented")
    if dotted(call.func) == "hasattr" or has_default or _is_below_its_check(source, call):
        return Found("FM317", node, _NOT_THERE, "kept")
    if texts & (_STREAMS | {"_streams"}):
        return Found("FM317", node, _OF_STREAMS, "commented")
    return Found("FM317", node, _MEANT if texts & (_NAMES | known) else _OWN, "commented")


def _is_set_on(source: Source, call: cst.Call) -> bool:
    """Tell whether something is set on what a call gives, or on each of it: ``handle.rank = rank``."""
    above = source.index.parents[call]
    around = source.index.function(call) or source.module
    names = {dotted(each.target) for each in above.targets} if isinstance(above, cst.Assign) else set()
    for loop in walk_for(around, cst.For):
        if loop is above or any(dotted(each) in names for each in walk_for(loop.iter, cst.Name)):
            names.add(dotted(loop.target))
    set_on = (each.target for each in walk_for(around, cst.AssignTarget))
    return any(isinstance(each, cst.Attribute) and dotted(each.value) in names - {None} for each in set_on)


def _is_below_its_check(source: Source, call: cst.Call) -> bool:
    """Tell whether a call stands where ``hasattr`` of the same two was found true."""
    asked = [text_of(arg.value) for arg in call.args[:2]]
    return any(
        dotted(check.func) == "hasattr" and [text_of(arg.value) for arg in check.args] == asked
        for test, truth in source.models.guards.facts(call)
        for check in (walk_for(test, cst.Call) if truth else ())
    )


def asked_attribute(source: Source, node: cst.CSTNode) -> cst.Call | None:
    """Return the call that asks for, or sets, the private attribute of FSDP1's that a string names."""
    if not isinstance(node, cst.SimpleString) or node.evaluated_value not in _FSDP1S:
        return None
    arg = source.index.parents[node]
    call = source.index.parents.get(arg)
    if not isinstance(call, cst.Call) or dotted(call.func) not in _ASKING or len(call.args) < 2:
        return None
    return call if call.args[1] is arg else None


def _is_asked_of_a_model(source: Source, node: cst.Attribute) -> bool:
    if node.attr.value in catalog.WRAPPER_ATTRIBUTES and _is_within(source, node.value):
        return False  # the model within had none of the wrapper's: this is its own
    return not _is_own(source, node) and _is_model(source, node.value)


def _is_within(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is the model within FSDP1's wrapper: ``model.module``, or a name that holds that."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        value = last_value(source.index, node)
        return value is not None and not isinstance(value, cst.Name) and _is_within(source, value)
    return isinstance(node, cst.Attribute) and node.attr.value in catalog.WRAPPED


def _is_model(source: Source, node: cst.BaseExpression) -> bool:
    return was_fsdp1s(source, node) or source.models.is_guarded(node)


def _is_own(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is an attribute that the source's own class has, or that is set under a public name."""
    is_set = isinstance(source.index.parents[node], cst.AssignTarget)
    if is_set and _is_a_mock(source, node.value):
        return True
    if dotted(node.value) in {"self", "cls"}:
        return is_set or not source.models.is_guarded(node.value)
    return is_set and not node.attr.value.startswith("_") and node.attr.value not in _FSDP1S


def _is_a_mock(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether a test makes an object to be asked for anything: ``model = MagicMock()``."""
    value = (
        last_value(source.index, node) if isinstance(node, cst.Name) and node in source.index.scopes else None
    )
    name = dotted(value.func) if isinstance(value, cst.Call) else None
    return name is not None and name.endswith(("Mock", "SimpleNamespace"))
