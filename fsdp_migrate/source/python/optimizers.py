"""What an optimizer of a sharded model holds: its parameters in groups, and their state."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.held import EACH, VALUE, attribute, item, put, taken
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.parameters import makes_optimizers


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.source.python.model_kinds import ModelKinds


PARAMETERS = "params"
"""What a list of a sharded model's parameters is."""
STATE = "state"
"""What an optimizer keeps for one parameter: ``optimizer.state[p]["exp_avg"]``."""
_NAME: Final = re.compile(r"optim|(?:^|_)opt$")


def is_optimizer(name: str) -> bool:
    """Tell whether a name, in small letters, is one that optimizers have.

    Example:
        >>> [is_optimizer(each) for each in ("critic_opt", "optimizers", "options", "adopt")]
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
    if not name.rsplit(".", maxsplit=1)[-1][:1].isupper() and _is_named_so(models, call):
        asked = [call.func.value] if isinstance(call.func, cst.Attribute) else []
        is_its = makes_optimizers(name) and any("fsdp" in models.kinds(each) for each in asked)
        given += [{PARAMETERS}] if is_its or any("fsdp" in each for each in given) else []
        name = "Optimizer"
    return of_optimizer(name, given)


def _is_named_so(models: ModelKinds, call: cst.Call) -> bool:
    """Tell whether what a call gives is bound to the name of an optimizer, and no function here gives it."""
    above = models.index.parents[call]
    targets = [dotted(each.target) or "" for each in above.targets] if isinstance(above, cst.Assign) else []
    is_one = any(is_optimizer(each.rpartition(".")[2].lower()) for each in targets)
    return is_one and not any(models.guards.functions(call.func))


def has_groups(kinds: Iterable[str]) -> bool:
    """Tell whether something holds the groups of an optimizer of a sharded model."""
    return any(kind.endswith(f"{item('params')}>{PARAMETERS}") for kind in kinds)


def stepped(call: cst.Call) -> list[cst.BaseExpression]:
    """Return the arguments of a call that are what an optimizer steps, where it makes one."""
    named = [arg.value for arg in call.args if arg.keyword is not None and arg.keyword.value == "params"]
    return named + [arg.value for arg in call.args[:1] if arg.keyword is None and not arg.star]
