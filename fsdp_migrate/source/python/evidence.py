"""What shows a model to be sharded: FSDP1's functions are given it, or it has the method of FSDP1 alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.branches import leaves
from fsdp_migrate.source.python.nodes import dotted, model_argument, text_of, walk_for
from fsdp_migrate.source.python.wrappers import DDP


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.scopes import Index


CLIP = "clip_grad_norm_"
_MODELS = re.compile(r"model|module|fsdp|(^|_)net(work)?$")
# Objects of other packages that have a method of this name, and what is given parameters.
_OTHERS = re.compile(r"accelerat|booster|engine|fabric|optim|scaler|strategy|trainer|utils")
_ASKS_WHAT_IT_IS = frozenset({"hasattr", "isinstance", "issubclass", "type"})
_ASKS = ("isinstance(", "type(", "__class__", f'"{CLIP}"', f"'{CLIP}'")


def given_as_models(index: Index, guards: Guards) -> Iterator[tuple[cst.BaseExpression, cst.Call]]:
    """Yield what is given to FSDP1's functions as a model, with the call: it is sharded in all of its scope.

    What stands below a check or a switch of FSDP's says so of its branch alone.
    """
    yield from ((model, call) for model, call in _given(index) if not _is_below_a_check(guards, model, call))


def given_below_checks(index: Index, guards: Guards) -> Iterator[tuple[cst.BaseExpression, cst.Call]]:
    """Yield what :func:`given_as_models` leaves out: it is sharded where the same checks lead."""
    yield from ((model, call) for model, call in _given(index) if _is_below_a_check(guards, model, call))


def _given(index: Index) -> Iterator[tuple[cst.BaseExpression, cst.Call]]:
    for node in index.by_kind.get(cst.Call, ()):
        assert isinstance(node, cst.Call)
        known = (index.fsdp1(node.func) or "").removeprefix(f"{catalog.FSDP}.")
        if known not in catalog.MODEL_FUNCTIONS or not node.args:
            continue
        model = model_argument(node, catalog.MODEL_FUNCTIONS[known])
        if model is not None:
            yield model, node


def _is_below_a_check(guards: Guards, model: cst.BaseExpression, call: cst.Call) -> bool:
    facts = guards.facts(call)
    return any("fsdp" in text_of(test).lower() or _is_a_choice(guards, test, model) for test, _ in facts)


def _is_a_choice(guards: Guards, test: cst.BaseExpression, model: cst.BaseExpression) -> bool:
    """Tell whether a test asks what a model is, and another branch has another answer for it.

    ``if hasattr(net, "module"): ... elif hasattr(net, "_orig_mod"): ... else: net.state_dict()``
    """
    choice = guards.index.parents[test]
    if not isinstance(choice, cst.If) or (choice.orelse is None and not leaves(choice.body)):
        return False
    asked = (call for call in walk_for(test, cst.Call) if dotted(call.func) in _ASKS_WHAT_IT_IS and call.args)
    return any(text_of(call.args[0].value) == text_of(model) for call in asked)


def clipped_as_models(
    index: Index, guards: Guards
) -> Iterator[tuple[cst.BaseExpression, cst.Call, set[str]]]:
    """Yield what ``model.clip_grad_norm_(1.0)`` is called on, with the call, and what that may be.

    No plain module has this method. Below a check of the model's class, or for the method, it says so of its
    branch alone; below a switch, of all where that is not off. There DDP may take the place of FSDP1.
    """
    if not imports_fsdp1(index) or clips_itself(index):
        return
    for node in index.by_kind.get(cst.Call, ()):
        assert isinstance(node, cst.Call)
        model = _clipped(index, node)
        if model is None or guards.is_of_other_wrapper(model) or guards.is_without_fsdp(model):
            continue
        if any(word in text_of(test) for test, _ in guards.facts(node) for word in _ASKS):
            continue
        may_be_ddp = bool(switches(guards, node)) and _knows_ddp(index)
        yield model, node, {"fsdp", "other"} if may_be_ddp else {"fsdp"}


def imports_fsdp1(index: Index) -> bool:
    """Tell whether anything of FSDP1's is imported."""
    if any(module.startswith("torch.distributed.fsdp") for module in index.stars):
        return True
    whole = (cst.ensure_type(node, cst.ImportAlias) for node in index.by_kind.get(cst.ImportAlias, ()))
    if any(text_of(node.name) == "torch.distributed.fsdp" for node in whole):
        return True
    return any(
        binding.qualified is not None
        and (
            catalog.fsdp1_name(binding.qualified) is not None or binding.qualified == "torch.distributed.fsdp"
        )
        for scope in set(index.scopes.values())
        for bindings in scope.bindings.values()
        for binding in bindings
    )


def is_off(guards: Guards, shows: cst.Call, node: cst.CSTNode) -> bool:
    """Tell whether a place is reached only where a switch is off below which a call shows a model."""
    wanted = switches(guards, shows)
    asked = (part for test, truth in guards.facts(node) for part in _parts(test, truth=truth))
    return bool(wanted) and any((text, not truth) in wanted for text, truth in asked)


def switches(guards: Guards, call: cst.Call) -> set[tuple[str, bool]]:
    """Return the tests that decide on FSDP above a call, or on another way to clip, and their answers."""
    model = call.func.value if isinstance(call.func, cst.Attribute) else None
    others = {f"{text_of(model)}.parameters"} if model is not None else set()
    return {
        part
        for test, truth in guards.facts(call)
        if "fsdp" in text_of(test).lower() or _clips_otherwise(guards.index.parents[test], call, others)
        for part in _parts(test, truth=truth)
    }


def _parts(test: cst.BaseExpression, *, truth: bool) -> Iterator[tuple[str, bool]]:
    """Yield what a test that is ``truth`` says for sure: of ``a and not b`` that is true, a and not b."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        yield from _parts(test.expression, truth=not truth)
    elif isinstance(test, cst.BooleanOperation):
        if isinstance(test.operator, cst.And) is truth:
            yield from _parts(test.left, truth=truth)
            yield from _parts(test.right, truth=truth)
    else:
        yield text_of(test), truth


def _clips_otherwise(choice: cst.CSTNode, call: cst.Call, others: set[str]) -> bool:
    """Tell whether the ``else`` of an ``if`` gives torch's function the parameters of the same model."""
    if not isinstance(choice, cst.If) or choice.orelse is None:
        return False
    clips = (each for each in walk_for(choice.orelse, cst.Call) if (dotted(each.func) or "").endswith(CLIP))
    given = (arg.value for clip in clips for arg in clip.args if clip is not call)
    return any(isinstance(each, cst.Call) and dotted(each.func) in others for each in given)


def _clipped(index: Index, call: cst.Call) -> cst.BaseExpression | None:
    """Return what the method of FSDP1 is called on, by its name and what it is given."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != CLIP or not call.args:
        return None
    text, first = dotted(func.value), call.args[0]
    if text is None or text in {"self", "cls"} or index.qualified(func.value):
        return None
    if first.star or "param" in text_of(first).lower():
        return None
    is_model = _MODELS.search(text.split(".")[-1].lower()) and not _OTHERS.search(text.lower())
    return func.value if is_model else None


def clips_itself(index: Index) -> bool:
    """Tell whether a class of the source has such a method of its own."""
    functions = (cst.ensure_type(node, cst.FunctionDef) for node in index.by_kind.get(cst.FunctionDef, ()))
    return any(each.name.value == CLIP and index.class_of(each) is not None for each in functions)


def _knows_ddp(index: Index) -> bool:
    names = (cst.ensure_type(node, cst.Name).value for node in index.by_kind.get(cst.Name, ()))
    last = {name.split(".")[-1] for name in DDP}
    return any(name in last or "ddp" in name.lower() for name in names)
