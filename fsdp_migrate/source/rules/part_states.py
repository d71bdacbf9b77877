"""States of parts of a sharded model, and ``push_to_hub``, which asks the model for its state by itself.

FSDP1 gave the state of a part that was a unit whole, and of another one as this rank's flat part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.framework_words import given
from fsdp_migrate.source.method_calls import is_seen_plain, sureness
from fsdp_migrate.source.python.edited_in_place import is_edited_in_place
from fsdp_migrate.source.python.heirs import led_to
from fsdp_migrate.source.python.keywords import is_given_by_name
from fsdp_migrate.source.python.lightning_models import MODULE
from fsdp_migrate.source.python.no_models import is_no_model
from fsdp_migrate.source.python.nodes import dotted, last_name, short, text_of
from fsdp_migrate.source.python.one_rank import runs_on_one_rank
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "part-states"
CODES = ("FM333",)

_STATE = (
    "this is a part of the model: where that is sharded, its state is of DTensors now, of which each rank "
    "has a part. On every rank take torch's get_model_state_dict({}, options=StateDictOptions("
    "full_state_dict=True, cpu_offload=True)), which rank 0 has."
)
_LOAD = (
    "this is a part of the model: where that is sharded, its parameters are DTensors now, which take no "
    "plain tensors by this. Take load_model_state_dict({}, state) of fsdp_migrate.runtime, on every rank."
)
_PUSHED = (
    "`push_to_hub` asks the model for its state, which is sharded now where the model is: save it by "
    "save_pretrained(folder, state_dict=state), of {}, which every rank takes{}, and upload that folder."
)
_WHOLE = "torch's get_model_state_dict({}, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"
_STATES = {"load_state_dict": _LOAD, "state_dict": _STATE}
_IN_ITS_METHOD = "this method is called on a model that is sharded, or may be: {}"
_OF_SELF = {
    "load_state_dict": (
        "its parameters are DTensors then, which take no plain tensors by this. Take "
        "load_model_state_dict({}, state) of fsdp_migrate.runtime, on every rank."
    ),
    "save_pretrained": (
        f"its state is of DTensors then: on every rank take {_WHOLE}, and on rank 0 give it as state_dict=."
    ),
    "state_dict": (
        f"its state is of DTensors then, each rank's its shards: take {_WHOLE} on every rank, rank 0 has it."
    ),
}
_ITSELF = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module"})


def find(source: Source) -> Iterator[Found]:
    """Find these calls outside of FSDP1's contexts, which say so themselves."""
    for call in source.calls:
        func = call.func
        if not isinstance(func, cst.Attribute) or source.contexts.around(call) is not None:
            continue
        if source.contexts.is_summoned(call):
            continue
        if _is_of_self(source, call, func):
            said = _OF_SELF[func.attr.value].format(short(func.value))
            yield Found("FM333", call, _IN_ITS_METHOD.format(said), "commented")
        elif func.attr.value in _STATES and _is_part(source, func.value):
            if is_edited_in_place(source.index, call):
                continue
            yield Found("FM333", call, _STATES[func.attr.value].format(short(func.value)), "commented")
        elif func.attr.value == "push_to_hub" and not is_given_by_name(source, call, "state_dict"):
            model = whole_of(source, func.value)
            if model is not None and dotted(func.value) != "self" and not _is_beside(source, func.value):
                yield Found("FM333", call, _pushed(source, call, func.value, model), "commented")


def _pushed(source: Source, call: cst.Call, asked: cst.BaseExpression, model: cst.BaseExpression) -> str:
    """Return what is said of a push: the state of a part has other names than that of the whole."""
    whole = given(source, model).removesuffix(", on every rank")
    state = _WHOLE.format(short(asked, 60)) if _is_part(source, asked) else whole
    is_alone = runs_on_one_rank(source.index, source.models.guards, call)
    return _PUSHED.format(state, " above this branch" if is_alone else "")


def _is_of_self(source: Source, call: cst.Call, func: cst.Attribute) -> bool:
    """Tell whether a method of the model's own class, which others call on a sharded model, asks for a state.

    What is known of the object's attributes themselves, or says that it is plain, counts before that.
    """
    if func.attr.value not in _OF_SELF or (dotted(func.value) or "").split(".")[0] != "self":
        return False
    if not _is_asked_of_a_sharded_model(source, source.index.function(call)):
        return False
    is_given = func.attr.value == "save_pretrained" and is_given_by_name(source, call, "state_dict")
    if is_given or _is_beside(source, func.value):
        return False
    # Whatever makes a part of a LightningModule, the strategy shards all that the module has.
    if is_seen_plain(source, func.value) and not _is_in_a_lightning_module(source, call):
        return False
    return whole_of(source, func.value) is None and not source.models.is_other_branch(func.value)


def _is_in_a_lightning_module(source: Source, call: cst.Call) -> bool:
    owner = source.index.class_of(call) if source.models.frameworks.trains_by_lightning else None
    above = (name for base in (owner.bases if owner else ()) for name in led_to(source.index, base.value))
    return any(map(MODULE.match, above))


def _is_asked_of_a_sharded_model(source: Source, method: cst.FunctionDef | None) -> bool:
    """Tell whether a method is called on a sharded model, in another file or in this one."""
    if method is None or method.name.value in catalog.OF_MODULES:
        return False
    owner = source.index.class_of(method)
    if owner is not None and (owner.name.value, method.name.value) in source.links.state_methods:
        return True
    if owner is None or not _is_a_module(owner):
        return False
    return any(
        isinstance(call.func, cst.Attribute)
        and source.models.certainty(call.func.value) is not None
        and not source.contexts.is_summoned(call)
        for call in source.index.calls_of_method(method.name.value)
    )


def _is_a_module(owner: cst.ClassDef) -> bool:
    """Tell whether a class is a module, by its bases, or by its forward."""
    if any((dotted(base.value) or "").endswith(("Module", "PreTrainedModel")) for base in owner.bases):
        return True
    return any(isinstance(each, cst.FunctionDef) and each.name.value == "forward" for each in owner.body.body)


def _is_part(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is a part of a sharded model, and neither the model itself nor what is no module."""
    if source.models.certainty(node) is not None or source.models.is_guarded(node):
        return False
    if isinstance(node, cst.Attribute) and node.attr.value in _ITSELF:
        return False
    if isinstance(node, cst.Attribute) and _is_put_in(source, node):
        return False
    model = whole_of(source, node)
    # What a LightningModule keeps beside its model is seldom one: an average, a metric.
    return model is not None and dotted(model) != "self" and not is_no_model(source.index, node)


def _is_put_in(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a part was put into a model that was sharded before: that one is plain."""
    for assign in source.assignments:
        for to in (each.target for each in assign.targets):
            if not isinstance(to, cst.Attribute) or to.attr.value != node.attr.value:
                continue
            model = _outer(to.value)
            is_its = text_of(model) == text_of(_outer(node.value)) and sureness(source, model) == "sure"
            if is_its and "fsdp" not in source.models.kinds(assign.value):
                return True
    return False


def _outer(node: cst.BaseExpression) -> cst.BaseExpression:
    is_inner = isinstance(node, cst.Attribute) and node.attr.value in catalog.WRAPPED
    return node.value if is_inner and isinstance(node, cst.Attribute) else node


def _is_beside(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is what a model has beside its weights: a tokenizer, a config."""
    last = last_name(node)
    return any(word in last for word in ("config", "processor", "tokenizer")) or is_no_model(
        source.index, node
    )
