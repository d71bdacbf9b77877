"""``ShardedGradScaler(...)`` becomes ``grad_scaler(...)``, whose ranks agree on an overflow as its did.

torch's own scaler asks the mesh of DTensors. That fails with NCCL alone where parameters are on the CPU, and
where plain parameters are among sharded ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.method_calls import renamed
from fsdp_migrate.source.python.last_values import functions_called
from fsdp_migrate.source.python.makers import is_partial_of
from fsdp_migrate.source.python.nodes import arguments, keyword, named_arguments, parameters_of, text_of
from fsdp_migrate.source.rules.mixed_optimizers import steps_both
from fsdp_migrate.source.rules.own_optimizers import is_given_parameters
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "grad-scaler"
CODES = ("FM314",)

SCALER = Need("fsdp_migrate.runtime", "grad_scaler")
_CLASS = Need("torch.amp", "GradScaler")
_ORDER = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
    "process_group",
)
_TORCHS = frozenset(
    {
        "torch.amp.GradScaler",
        "torch.amp.grad_scaler.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cuda.amp.grad_scaler.GradScaler",
    }
)
_PLAIN = frozenset({"ignored_modules", "ignored_parameters", "ignored_states"})
_AGREES = "stays: its ranks agree on an overflow now, by the mesh of the gradients"
_OFFLOADED = (
    "its ranks agree on an overflow now, where the gradients are: with parameters on the CPU NCCL alone "
    "cannot. Take grad_scaler(...) of fsdp_migrate.runtime, with the same arguments by their names."
)
_AMONG_PLAIN = (
    "it raises where plain parameters, which are ignored, are among sharded ones: take grad_scaler(...) of "
    "fsdp_migrate.runtime, with the same arguments by their names."
)
_BESIDE_PLAIN = (
    "it raises where plain parameters, of a module that is not sharded, are stepped by the same optimizer: "
    "take grad_scaler(...) of fsdp_migrate.runtime, with the same arguments by their names."
)
_NOTHING_SHARDED = (
    "no source here shards a model by FSDP1. Where plain tensors are stepped, each rank's part of a model "
    "that the project shards itself, leave this as it is, and delete the comment: its ranks agree on an "
    "overflow by its process group, and those of torch's own scaler, and of grad_scaler, do not. Where a "
    "model of FSDP2 is stepped take grad_scaler(...) of fsdp_migrate.runtime, with the same arguments by "
    "their names."
)
_MEANT = "call fsdp_migrate.runtime.grad_scaler with the same arguments, by their names."


def find(source: Source) -> Iterator[Found]:
    """Find every use of the class: calls, and where it is only named."""
    for node, name in source.references.items():
        if name != "ShardedGradScaler":
            continue
        above = source.index.parents[node]
        if source.links.shards_nothing:
            yield Found("FM314", node, _NOTHING_SHARDED, "commented")
        elif isinstance(above, cst.Call) and above.func is node:
            yield _of_call(source, above, node)
        else:
            need = SCALER if _is_asked_for_none(above) else _CLASS
            new = source.local_name(need)
            edit = renamed(node, new)
            yield Found("FM314", node, new, "rewritten", (edit,), (need,), (node,))
    for call in source.calls:
        is_torchs = source.index.qualified(call.func) & _TORCHS or is_partial_of(
            source.index, call.func, _TORCHS
        )
        stepped = _stepped(source, call) if is_torchs else []
        is_mixed = any(steps_both(source, each) for each in stepped)
        if is_mixed or any(is_given_parameters(source, each) for each in stepped):
            said = _problem_of(source) or (_BESIDE_PLAIN if is_mixed else "")
            yield Found("FM314", call, said or _AGREES, "commented" if said else "kept")


def _is_asked_for_none(above: cst.CSTNode) -> bool:
    """Tell whether it is asked whether torch has the class: what takes its place is None where it has not."""
    if not isinstance(above, cst.Comparison):
        return False
    return all(isinstance(each.operator, (cst.Is, cst.IsNot)) for each in above.comparisons) and any(
        text_of(each.comparator) == "None" for each in above.comparisons
    )


def _problem_of(source: Source) -> str:
    """Return why torch's own scaler does not work with the models of this source; empty where it does."""
    for call in source.calls:
        known = source.index.fsdp1(call.func)
        given = {name: text_of(value) for name, value in named_arguments(call).items()}
        first = text_of(call.args[0].value) if call.args else "False"
        offload = given.get("offload_params", first)
        if known == "CPUOffload" and offload != "False":
            return _OFFLOADED if offload == "True" else f"where {offload} is true, {_OFFLOADED}"
        if known == catalog.FSDP and any(given.get(name, "None") != "None" for name in _PLAIN):
            return _AMONG_PLAIN
    return ""


def _stepped(source: Source, call: cst.Call) -> list[cst.Call]:
    """Return the calls that make the optimizers which a scaler steps that a call makes."""
    assign = source.index.parents[call]
    if not isinstance(assign, cst.Assign) or source.models.guards.is_without_fsdp(call):
        return []
    names = {text_of(each.target) for each in assign.targets}
    same = [each for each in source.assignments if names & {text_of(t.target) for t in each.targets}]
    if any(source.index.fsdp1(each.value.func) for each in same if isinstance(each.value, cst.Call)):
        return []  # FSDP1's scaler is in its place where the model is sharded
    handed = _handed(source)
    names = _also(names, handed)
    stepped = {
        text_of(other.args[0].value)
        for other in source.calls
        if isinstance(other.func, cst.Attribute) and other.func.attr.value in {"step", "unscale_"}
        if other.args and text_of(other.func.value) in names
    }
    stepped = _also(stepped, [(parameter, given) for given, parameter in handed])
    return [
        each.value
        for each in source.assignments
        if isinstance(each.value, cst.Call) and any(text_of(t.target) in stepped for t in each.targets)
    ]


def _handed(source: Source) -> list[tuple[str, str]]:
    """Return what calls give functions of this source, and what they call it: ``("opt", "optimizer")``."""
    found: list[tuple[str, str]] = []
    for call in source.calls:
        for function in functions_called(source.index, call.func):
            names = [each.name.value for each in parameters_of(function)]
            given = arguments(call, names[1:] if isinstance(call.func, cst.Attribute) else names) or {}
            found += [(text_of(value), name) for name, value in given.items() if name in names]
    return found


def _also(names: set[str], handed: list[tuple[str, str]]) -> set[str]:
    """Return names, and what the same values are called where they are handed to."""
    found = set(names)
    while more := {name for given, name in handed if given in found} - found:
        found |= more
    return found


def _of_call(source: Source, call: cst.Call, node: cst.BaseExpression) -> Found:
    given = arguments(call, _ORDER)
    positional = [arg for arg in call.args if arg.keyword is None]
    # Before torch 2.1 there was no `device`, and a number came first.
    if given is None or (positional and not isinstance(positional[0].value, cst.SimpleString)):
        return Found("FM314", call, _MEANT, "commented", covers=(node,))
    new = source.local_name(SCALER)

    def build(updated: cst.Call) -> cst.Call:
        # Ours takes all but the device by its name.
        args = [
            arg
            if arg.keyword is not None or place == 0
            else arg.with_changes(keyword=cst.Name(_ORDER[place]), equal=keyword("x", arg.value).equal)
            for place, arg in enumerate(updated.args)
        ]
        return updated.with_changes(func=cst.Name(new), args=args)

    return Found("FM314", call, f"{new}(...)", "rewritten", (Replace(call, build),), (SCALER,), (node,))
