"""What Lightning's strategies for FSDP2 take otherwise than FSDP1's: modules, and a Fabric's contexts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.heirs import led_to
from fsdp_migrate.source.python.lightning_models import MODULE, is_trainer, run_in
from fsdp_migrate.source.python.nodes import argument_of, last_name, targets_of, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_SWITCH: Final = "automatic_optimization"
_BY_HAND: Final = (
    "FSDP1's strategy wraps the whole module, so that the backward in training_step ran within its forward: "
    "it stopped there where trained parameters stand outside of units, and elsewhere a zero_grad that is not "
    "between a forward and its backward cleared nothing: gradients of earlier steps were added. FSDP2 has "
    "those of one process, so that losses are others than FSDP1's."
)
_COMPILED: Final = (
    "ModelParallelStrategy refuses a LightningModule that torch.compile gave, where FSDP1's strategy took "
    "it: the Trainer raises RuntimeError. Compile what is within the module, before the hook shards it: "
    "`self.model = torch.compile(self.model)` in its __init__."
)
_INFERENCE: Final = (
    "the Trainer's test and predict run under torch.inference_mode with ModelParallelStrategy on NCCL, where "
    "they ran under no_grad with FSDP1's strategy: gradients that are switched on here are off there, and "
    "this raises. Give that Trainer inference_mode=False."
)
_STATE: Final = (
    "FSDP1's strategy asked its wrapper for the state, which took no notice of a new dict that this gives: "
    "checkpoints held the whole module. ModelParallelStrategy asks the module itself: saving raises where "
    "this gives keys by other names, and resuming where keys are not among it. Name or take them out in "
    "on_save_checkpoint, and set self.strict_loading = False."
)
_UNSYNCED: Final = (
    "behind a no_backward_sync whose `enabled` was false ModelParallelStrategy leaves the reduction off "
    "(lightning/fabric/strategies/model_parallel.py, _FSDPNoSync.__exit__): outside of such contexts this "
    "backward reduces nothing, without an error, where FSDP1's did. Put it into one, with enabled=False."
)
_UNSYNCING: Final = "no_backward_sync"
_EVALUATES: Final = re.compile(r"^(?:predict_step|test_step)$")
_SWITCHES_ON: Final = frozenset({"torch.autograd.grad", "torch.enable_grad", "torch.set_grad_enabled"})
_IS_OFF: Final = re.compile(r"\binference_mode['\"]?\s*[=:]\s*False\b")
_RUNS: Final = ("fit", "validate", "test", "predict")


def taken_otherwise(source: Source) -> Iterator[Found]:
    """Find modules that step by themselves, that are compiled as a whole, and that test with gradients."""
    if source.models.frameworks.sets_up_by_fabric:
        yield from (Found("FM319", call, _UNSYNCED, "commented") for call in _outside_of_contexts(source))
    if source.models.frameworks.trains_by_lightning:
        yield from (Found("FM319", node, _BY_HAND, "commented") for node in _switched_off(source))
        yield from (Found("FM319", call, _COMPILED, "commented") for call in _compiled(source))
        yield from (Found("FM319", call, _INFERENCE, "commented") for call in _with_gradients(source))
        yield from (Found("FM319", method, _STATE, "commented") for method in _own_states(source))


def _switched_off(source: Source) -> Iterator[cst.CSTNode]:
    """Yield where a class says that it steps by itself, unless its gradients were right under FSDP1."""
    for kind in (cst.Assign, cst.AnnAssign):
        for node in source.index.by_kind.get(kind, ()):
            assert isinstance(node, (cst.Assign, cst.AnnAssign))
            is_named = any(text_of(each) in {_SWITCH, f"self.{_SWITCH}"} for each in targets_of(node))
            is_off = node.value is not None and text_of(node.value) != "True"
            owner = source.index.class_of(node)
            if is_named and is_off and owner is not None and not _clears_between(owner):
                yield node
    for node in source.index.by_kind.get(cst.FunctionDef, ()):
        method = cst.ensure_type(node, cst.FunctionDef)
        owner = source.index.class_of(method) if method.name.value == _SWITCH else None
        gives = (text_of(each.value) for each in walk_for(method, cst.Return) if each.value is not None)
        if owner is not None and "False" in gives and not _clears_between(owner):
            yield method


def _clears_between(owner: cst.ClassDef) -> bool:
    """Tell whether each ``zero_grad`` stands right above a backward: that one cleared under FSDP1, too."""
    is_one = False
    for block in walk_for(owner, cst.IndentedBlock):
        lines = list(_lines(block))
        for place, names in enumerate(lines):
            if "zero_grad" not in names:
                continue
            below = (each for each in lines[place + 1 :] if "zero_grad" not in each)
            if "manual_backward" not in next(below, ()):
                return False
            is_one = True
    return is_one


def _lines(block: cst.IndentedBlock) -> Iterator[list[str]]:
    """Yield what each small statement of a block calls, and nothing for what has blocks of its own."""
    for each in block.body:
        for small in each.body if isinstance(each, cst.SimpleStatementLine) else ():
            yield [last_name(call.func) for call in walk_for(small, cst.Call)]
        if not isinstance(each, cst.SimpleStatementLine):
            yield []


def _compiled(source: Source) -> Iterator[cst.Call]:
    """Yield the calls of ``torch.compile`` whose model a Trainer is given."""
    calls = [call for call in source.calls if "torch.compile" in source.index.qualified(call.func)]
    if not calls:
        return
    given: set[cst.CSTNode] = set()
    names: set[tuple[str, cst.ClassDef | None]] = set()
    for call in (each for name in _RUNS for each in source.index.calls_of_method(name)):
        model = argument_of(call, 0, {"model"})
        if model is None or not is_trainer(source.index, cst.ensure_type(call.func, cst.Attribute).value):
            continue
        if isinstance(model, cst.Name) and model in source.index.scopes:
            given.update(each.value for each in source.index.bindings_of(model) if each.value is not None)
        given.add(model)
        names.update(
            [(text_of(model), source.index.class_of(call))] if isinstance(model, cst.Attribute) else []
        )
    for call in calls:
        above = source.index.parents[call]
        targets = targets_of(above) if isinstance(above, (cst.Assign, cst.AnnAssign)) else []
        owner = source.index.class_of(call)
        if call in given or any((text_of(each), owner) in names for each in targets):
            yield call


def _outside_of_contexts(source: Source) -> Iterator[cst.Call]:
    """Yield backwards beside ``with fabric.no_backward_sync(model, enabled=is_last):``, in its function."""
    around: dict[cst.FunctionDef | None, list[cst.With]] = {}
    for call in source.index.calls_of_method(_UNSYNCING):
        enabled = argument_of(call, 1, {"enabled"})
        item = source.index.parents[call]
        above = source.index.parents[item]
        if enabled is not None and text_of(enabled) != "True" and isinstance(above, cst.With):
            around.setdefault(source.index.function(call), []).append(above)
    for call in source.index.calls_of_method("backward") if around else ():
        contexts = around.get(source.index.function(call), [])
        if contexts and not any(each in contexts for each in source.index.ancestors(call)):
            yield call


def _with_gradients(source: Source) -> Iterator[cst.Call]:
    """Yield what switches gradients on in a step of tests or predictions, or in a method that one runs."""
    if _IS_OFF.search(source.code):
        return
    for call in source.calls:
        owner, function = source.index.class_of(call), source.index.function(call)
        if owner is None or function is None or _SWITCHES_ON.isdisjoint(source.index.qualified(call.func)):
            continue
        if run_in(owner, _EVALUATES).search(function.name.value):
            yield call


def _own_states(source: Source) -> Iterator[cst.FunctionDef]:
    """Yield ``state_dict`` methods of LightningModules that give something else than ``super()`` gave."""
    for node in source.index.by_kind.get(cst.FunctionDef, ()):
        method = cst.ensure_type(node, cst.FunctionDef)
        owner = source.index.class_of(method) if method.name.value == "state_dict" else None
        bases = (base.value for base in owner.bases) if owner is not None else ()
        if not any(MODULE.match(name) for base in bases for name in led_to(source.index, base)):
            continue
        given = (each.value for each in walk_for(method, cst.Return) if each.value is not None)
        if not all(text_of(each).startswith("super().state_dict(") for each in given):
            yield method
