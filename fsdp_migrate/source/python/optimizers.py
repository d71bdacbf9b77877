"""What an optimizer of a sharded model holds: its parameters in groups, and their state."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.held import EACH, VALUE, attribute, item, put, taken
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, given_by_name
from fsdp_migrate.source.python.parameters import is_torchs_optimizer, makes_optimizers


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.source.python.model_kinds import ModelKinds
    from fsdp_migrate.source.python.scopes import Index


PARAMETERS = "params"
"""What a list of a sharded model's parameters is."""
STATE = "state"
"""What an optimizer keeps for one parameter: ``optimizer.state[p]["exp_avg"]``."""
_NAME: Final = re.compile(r"optim|(?:^|_)opt_?\d*$")


def is_optimizer(name: str) -> bool:
    """Tell whether a name, in small letters, is one that optimizers have.

    Example:
        >>> [is_optimizer(each) for each in ("critic_opt", "opt2", "options", "adopt")]
        [True, True, False, False]
    """
    return _NAME.search(name) is not None


def of_optimizer(name: str, given: Iterable[set[str]]) -> set[str]:
    """Return what the object holds that a class makes of a sharded model's parameters, or of groups of them.

    A class of which more is not known keeps them under these names, or not at all.

    Args:
        name: What is called.
        given: What its first argument is, and what it is given as ``params``.

    Example:
        >>> sorted(of_optimizer("optim.SGD", [{"params"}]))
        [".param_groups>each>['params']>params", '.state>value>value>state']
        >>> of_optimizer("count", [{"params"}])
        set()
    """
    if not name.rsplit(".", maxsplit=1)[-1][:1].isupper():
        return set()
    if not any(PARAMETERS in known | taken(item("params"), taken(EACH, known)) for known in given):
        return set()
    groups = put(EACH, put(item("params"), {PARAMETERS}))
    return put(attribute("param_groups"), groups) | put(attribute("state"), put(VALUE, put(VALUE, {STATE})))


OF_A_MODEL: Final = frozenset(of_optimizer("Optimizer", [{PARAMETERS}]))
"""What an optimizer holds that a framework gives back beside its model."""


def made_by(models: ModelKinds, call: cst.Call) -> set[str]:
    """Return what the object holds that a call makes, where that is an optimizer of a sharded model.

    Where what is called is picked when it runs, ``getattr(torch.optim, name)(params)``, or is a function that
    is given the model, or a method of it, the name tells that is bound to what comes back.
    """
    name, given = dotted(call.func) or "", [models.kinds(each) for each in stepped(call)]
    if name.rsplit(".", maxsplit=1)[-1][:1].isupper():
        # A class steps what it is given first, also where another function made that of the model.
        is_its = any(is_made_of_a_model(models, each) for each in stepped(call))
        is_its = is_its and (_is_torchs(models, call) or is_named_so(models, call))
        given += [{PARAMETERS}] if is_its else []
    elif is_named_so(models, call) and not any(models.guards.functions(call.func)):
        values = [arg.value for arg in call.args if not arg.star]
        asked = [call.func.value] if isinstance(call.func, cst.Attribute) and makes_optimizers(name) else []
        is_its = any("fsdp" in models.kinds(each) for each in (*asked, *values))
        is_its = is_its or any(is_made_of_a_model(models, each) for each in values)
        given += [{PARAMETERS}] if is_its else []
        name = "Optimizer"
    return of_optimizer(name, given)


def _is_torchs(models: ModelKinds, call: cst.Call) -> bool:
    return any(map(is_torchs_optimizer, models.index.qualified(call.func)))


def is_made_of_a_model(models: ModelKinds, node: cst.BaseExpression) -> bool:
    """Tell whether a function that is not here made something of a sharded model: ``groups(model, 0.1)``."""
    value: cst.BaseExpression | None = node
    if isinstance(node, cst.Attribute) or (isinstance(node, cst.Name) and node in models.index.scopes):
        value = last_value(models.index, node)
    if not isinstance(value, cst.Call) or value in models.index.ancestors(node):
        return False  # `self.net = lib.wrap(self.net)`
    if any(models.guards.functions(value.func)) or models.kinds(value):
        return False  # more is known of what it gives
    if isinstance(value.func, cst.Name) and not models.index.bindings_of(value.func):
        return False  # Python's own: `len(model)`
    return any(not arg.star and models.kinds(arg.value) & {"fsdp", PARAMETERS} for arg in value.args)


def is_named_so(models: ModelKinds, call: cst.Call) -> bool:
    """Tell whether what a call gives has the name of an optimizer, or is stepped as one is."""
    above = models.index.parents[call]
    targets = [dotted(each.target) or "" for each in above.targets] if isinstance(above, cst.Assign) else []
    if any(is_optimizer(each.rpartition(".")[2].lower()) for each in targets):
        return True
    return bool(targets) and not _stepped_names(models.index).isdisjoint(targets)


@functools.lru_cache(maxsize=1)
def _stepped_names(index: Index) -> frozenset[str]:
    """Return the names of what does as optimizers do: ``adam.zero_grad()``, with ``scaler.step(adam)``."""
    asked: dict[str, set[str]] = {"param_groups": set(), "step": set(), "zero_grad": set()}
    for node in index.by_kind.get(cst.Attribute, ()):
        func = cst.ensure_type(node, cst.Attribute)
        if (known := asked.get(func.attr.value)) is None:
            continue
        known.add(dotted(func.value) or "")
        above = index.parents[func]
        if func.attr.value == "step" and isinstance(above, cst.Call):
            known |= {dotted(arg.value) or "" for arg in above.args}
    return frozenset(asked["zero_grad"] & (asked["step"] | asked["param_groups"]) - {""})


def has_groups(kinds: Iterable[str]) -> bool:
    """Tell whether something holds the groups of an optimizer of a sharded model."""
    return any(kind.endswith(f"{item('params')}>{PARAMETERS}") for kind in kinds)


def stepped(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the arguments of a call that are what an optimizer steps, where it makes one."""
    named = given_by_name(call, "params")
    return named + [arg.value for arg in call.args[:1] if arg.keyword is None and not arg.star]
