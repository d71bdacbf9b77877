"""Whatever of FSDP1's no other rule has accounted for: the class as a value, words of state dicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import short, text_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "other"
CODES = ("FM303", "FM306", "FM307", "FM310")

CLASS_AS_A_VALUE = (
    "FSDP1's class as a value: what is done with it is not seen. Call prepare_fully_shard(model, {...})."
)
"""What is said of the class where it is given to something, which may make models of it."""
_ALIAS = "stays: another name of the class, whose uses are looked at themselves"
_ASKED = "stays: only the arguments that it takes are asked for"
_TYPES = frozenset({"set_state_dict_type", "state_dict_type"})
_TYPE = (
    "FSDP2 has no types of state dicts: take this away, and what enters or calls it; of each state there see "
    "that it is asked for as the type said. `fsdp-migrate explain FM307` says what takes its place."
)
_STATIC = "FSDP2 has no such function."
_PATCH = (
    "this changes what FSDP1's class is given, whoever makes it, and FSDP2 makes none: take the patch out, "
    "and give its arguments where the model is sharded. use_orig_params=True needs nothing, FSDP2's "
    "parameters are the model's own."
)
_OURS = "FSDP2 has no such function: take fsdp_migrate.runtime.{}, given all but the model by name."
_METHODS = {
    "apply": "FSDP1 showed whole parameters to the function: call {0}.apply(...) in "
    "fsdp_migrate.runtime.summon_full_params({0}).",
    "forward": "call the model itself, {0}(...): FSDP2 gathers in hooks of that call.",
    "load_state_dict": "of a whole state take torch's set_model_state_dict({0}, state, "
    "options=StateDictOptions(full_state_dict=True)), on every rank.",
    "state_dict": "of the whole take torch's get_model_state_dict({0}, "
    "options=StateDictOptions(full_state_dict=True, cpu_offload=True)), on every rank; {0}.state_dict() "
    "holds one rank's part, as DTensors.",
}
_METHOD = "a method that all modules have, asked of FSDP1's class: call it on the model, {0}.{1}(...)."
_NOBODYS = (
    "neither FSDP1's class nor modules of torch have `{}`: this raises, under FSDP1 too, unless the project "
    "puts it there itself. See what is meant{}."
)
_FUNCTIONS = frozenset(
    f"{verb}_{what}state_dict" for verb in ("get", "set") for what in ("", "model_", "optimizer_")
)
_MEANT = ", maybe the function of torch.distributed.checkpoint.state_dict, which takes the model as it is"
# The methods of FSDP1's class that modules do not have.
_CLASS_OWN = frozenset({*catalog.CLASS_FUNCTIONS, "check_is_root", "module", "register_comm_hook"})
_IN_RUNTIME = frozenset({"clip_grad_norm_", "no_sync", "summon_full_params"})
_WORD = "stays: torch still has it, and FSDP2 takes no notice of it"


def find(source: Source, covered: set[cst.CSTNode]) -> Iterator[Found]:
    """Find every reference that is not among ``covered``."""
    for node, name in source.references.items():
        if node in covered:
            continue
        if _is_asked_for_arguments(source, node):
            yield Found("FM310", node, _ASKED, "kept", covers=(node,))
        elif name.split(".")[0] in catalog.STATE_DICT_WORDS:
            yield Found("FM306", node, _WORD, "kept", covers=(node,))
        elif name == catalog.FSDP:
            if _is_alias(source, node):
                yield Found("FM310", node, _ALIAS, "kept", covers=(node,))
            elif not _is_fallback(source, node):
                yield Found("FM303", node, CLASS_AS_A_VALUE, "commented", covers=(node,))
        elif name.rpartition(".")[2] in _TYPES:
            yield Found("FM307", node, _TYPE, "commented", covers=(node,))
        elif name.startswith(f"{catalog.FSDP}."):
            said = _said_of(source, node, name.rpartition(".")[2])
            yield Found("FM303", node, said, "commented", covers=(node,))
    yield from _on_models(source, covered)


def _said_of(source: Source, node: cst.BaseExpression, name: str) -> str:
    """Return what takes the place of a function of the class; of a module's method that of the model."""
    if name in _IN_RUNTIME or name == "__init__":
        return _OURS.format(name) if name in _IN_RUNTIME else _PATCH
    if name not in catalog.MODULE_METHODS | _CLASS_OWN | _IN_RUNTIME and not name.startswith("_"):
        return _NOBODYS.format(name, _MEANT if name in _FUNCTIONS else "")
    call = source.index.parents[node]
    first = call.args[0] if isinstance(call, cst.Call) and call.func is node and call.args else None
    is_model = (
        first is not None and not first.star and (first.keyword is None or text_of(first.keyword) == "self")
    )
    if first is None or not is_model or name in _CLASS_OWN or name.startswith("_"):
        return _STATIC
    model = short(first.value)
    return _METHODS.get(name, _METHOD).format(model, name) if model != "self" else _STATIC


def _on_models(source: Source, covered: set[cst.CSTNode]) -> Iterator[Found]:
    """Find functions of the class that are called on a model and that no rule turns."""
    for call in source.calls:
        if call.func in source.references or call.func in covered:
            continue
        if source.class_function(call) == "get_state_dict_type":
            yield Found("FM303", call.func, _STATIC, "commented", covers=(call.func,))


def _is_alias(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether the class only gets another name: ``Wrapper = FSDP``."""
    above = source.index.parents[node]
    if source.index.scopes[node].is_class:
        return False  # it is called as an attribute of objects, which is not seen
    return isinstance(above, cst.Assign) and all(isinstance(each.target, cst.Name) for each in above.targets)


def _is_asked_for_arguments(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether only a signature is read: ``inspect.signature(FSDP.__init__).parameters``."""
    above = source.index.parents[node]
    if isinstance(above, cst.Attribute) and above.attr.value == "__init__":
        above = source.index.parents[above]
    call = source.index.parents[above] if isinstance(above, cst.Arg) else None
    asks = {"inspect.getfullargspec", "inspect.signature"}
    return isinstance(call, cst.Call) and not asks.isdisjoint(source.index.qualified(call.func))


def _is_fallback(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether the class is only looked at for being there: ``FSDP is not None``, ``if FSDP:``."""
    above = source.index.parents[node]
    if isinstance(above, (cst.If, cst.IfExp, cst.While, cst.Assert)):
        return above.test is node
    if isinstance(above, cst.UnaryOperation):
        return isinstance(above.operator, cst.Not)
    if isinstance(above, cst.BooleanOperation):
        return above.left is node
    if not isinstance(above, cst.Comparison):
        return False
    return all(
        isinstance(item.comparator, cst.Name) and item.comparator.value == "None"
        for item in above.comparisons
    )
