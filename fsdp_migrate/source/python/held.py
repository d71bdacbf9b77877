"""What containers and objects hold: kinds, each behind the steps that lead to it.

``each>fsdp`` is a list of FSDP1 models, ``each>1>fsdp`` one of pairs whose second is a model. An object with
such an attribute is ``.model>fsdp``, and a dict with such an item ``['model']>fsdp``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Collection


ARGUMENT = "arg:"
"""Of what a function gives: before the place and the name of the argument that it gives back."""
EACH = "each"
"""The step to what a loop over a list goes through."""
VALUE = "value"
"""The step to a value of a dict, whatever its name is."""
ITEM = "item"
"""The step to ``it[i]``, where it is not seen whether that is a list or a dict."""
MODEL = "fsdp"
BY = "by:"
"""Before the name of the framework that shards a model, among what an expression may be."""
FLAT = "was:flat"
"""A plain model whose parameters were flat at that place under FSDP1: it was sharded there already."""
BY_ANY = frozenset(
    f"{BY}{name}" for name in ("accelerate", "composer", "fabric", "lightning", "transformers")
)
TENSOR = "tensor"
"""A parameter of a sharded model by itself, its gradient, or what has their form: a DTensor now."""
WRAPS = "._wrapped>params"
"""What a module of another file is that wraps an FSDP1 model: that model's parameters are its own."""
COMPILED = "._compiled>sharded"
"""Beside a sharded model that ``torch.compile`` was given, or gave: its names had ``_orig_mod.``."""
UNSHARDED = "._compiled>plain"
"""The same of a model that is not sharded yet."""
HANDS_ON = "._hands_on"
"""The step to the name of the attribute to which an object, that is no module, hands on what it is asked."""
_SHARDING = frozenset({"", "prepare", "prepare_model", "setup", "setup_module"})
LONGEST = 64
"""Longer lists and dicts hold data, and no models."""
_MOST_STEPS = 6
_ITEM: Final = re.compile(r"\['(\w+)'\]>")


def item(name: str) -> str:
    """Return the step to a dict's item."""
    return f"[{name!r}]"


def attribute(name: str) -> str:
    """Return the step to an object's attribute."""
    return f".{name}"


def put(step: str, kinds: Collection[str]) -> set[str]:
    """Return what holds something behind a step.

    Example:
        >>> put(EACH, {"fsdp"})
        {'each>fsdp'}
    """
    return {f"{step}>{kind}" for kind in kinds if kind.count(">") < _MOST_STEPS}


def taken(step: str, kinds: Collection[str]) -> set[str]:
    """Return what is behind a step; what stands at any place of a list may stand at this one.

    Example:
        >>> taken("1", {"1>fsdp"}), taken(EACH, {"1>fsdp"}), taken("0", {"1>fsdp"})
        ({'fsdp'}, {'fsdp'}, set())
    """
    parted = (kind.partition(">") for kind in kinds if ">" in kind)
    return {rest for first, _, rest in parted if first == step or _may_be(first, step)}


def entered(kinds: Collection[str]) -> set[str]:
    """Return what ``with`` gives of a context: what a generator yields, or the object itself.

    Example:
        >>> entered({"each>fsdp"}), entered({".model>fsdp"})
        ({'fsdp'}, {'.model>fsdp'})
    """
    return taken(EACH, kinds) if any(kind.startswith(f"{EACH}>") for kind in kinds) else set(kinds)


def _may_be(first: str, step: str) -> bool:
    """Tell whether two steps may lead to the same part of a list or of a dict."""
    if "." in {first[:1], step[:1]}:
        return False
    if ITEM in {first, step}:
        return True
    is_named = VALUE in {first, step}
    if is_named or EACH in {first, step}:
        return all((each == VALUE or each[:1] == "[") is is_named for each in (first, step))
    return False


def whole(kinds: Collection[str]) -> set[str]:
    """Return what something is itself, what it holds left out."""
    return {kind for kind in kinds if ">" not in kind}


def stood_for(name: str | None, within: Collection[str]) -> set[str]:
    """Return what an object stands for that hands on what it is asked to an attribute, which is a model.

    Example:
        >>> sorted(stood_for("net", {"fsdp"})), stood_for("net", set()), stood_for(None, {"fsdp"})
        (['._hands_on>net', 'fsdp', 'other'], set(), set())
    """
    if name is None or MODEL not in within:
        return set()
    return {*whole(within), "other", *put(HANDS_ON, {name})}


def held(kinds: Collection[str]) -> set[str]:
    """Return what something holds, behind the steps to it."""
    return {kind for kind in kinds if ">" in kind}


def of_dict(kinds: Collection[str]) -> set[str]:
    """Return what stands behind steps into a dict."""
    return {kind for kind in kinds if kind.startswith(("[", f"{VALUE}>", f"{ITEM}>"))}


def alike(kinds: set[str], by: str | None) -> set[str]:
    """Return what each of many is, if all are alike: not what gives a model here and another there.

    ``by``: the method that gives each, or nothing for a name. What a framework's own gives may be sharded or
    not as it is launched, and all of it alike; a function around it may give back what is no model.
    """
    is_direct = by in _SHARDING and not BY_ANY.isdisjoint(kinds)
    return kinds if len(whole(kinds)) < 2 or is_direct else set()


def inside_of(kinds: Collection[str]) -> set[str]:
    """Return everything that something holds, at any depth, with and without the steps to it.

    What a function takes out of what it is given, and gives back, is its caller's, and no other caller's.
    """
    found: set[str] = set()
    for kind in held(kinds):
        steps = kind.split(">")
        found |= {">".join(steps[start:]) for start in range(len(steps))}
    return found


def tensors(kinds: Collection[str]) -> set[str]:
    """Return the parameters and gradients by themselves among what something is or holds.

    Example:
        >>> tensors({"fsdp", "each>tensor"})
        {'each>tensor'}
    """
    return {kind for kind in kinds if kind == TENSOR or kind.endswith(f">{TENSOR}")}


def parameters_in(kinds: Collection[str]) -> set[str]:
    """Return the lists of parameters, and these by themselves, but those that an optimizer holds.

    Example:
        >>> sorted(parameters_in({"fsdp", "params", "each>tensor", ".param_groups>each>['params']>params"}))
        ['each>tensor', 'params']
    """
    last = (kind for kind in kinds if kind.rpartition(">")[2] in {"params", TENSOR})
    return {kind for kind in last if not kind.startswith(attribute("param_groups"))}


def items_in(kinds: Collection[str]) -> dict[str, set[str]]:
    """Return what a dict holds by the names of its items, as ``**parts`` gives it.

    Example:
        >>> items_in({"['model']>fsdp", "each>fsdp"})
        {'model': {'fsdp'}}
    """
    named = ((_ITEM.match(kind), kind) for kind in sorted(kinds))
    names = {match[1] for match, _ in named if match is not None}
    return {name: taken(item(name), kinds) for name in sorted(names)}


def without_fsdp(kinds: Collection[str]) -> set[str]:
    """Return what is left where a switch for FSDP is off: no model of its, and no parameters.

    Example:
        >>> without_fsdp({"fsdp", "ddp", "each>params", ".state>value>value>state"})
        {'ddp'}
    """
    return {kind for kind in kinds if kind.rpartition(">")[2] not in {MODEL, "params", "state", TENSOR}}


def has_model(kinds: Collection[str]) -> bool:
    """Tell whether something is an FSDP1 model, or holds one."""
    return any(kind == MODEL or kind.endswith(f">{MODEL}") for kind in kinds)


def of_compiled(kinds: Collection[str]) -> set[str]:
    """Return what FSDP1's class makes of a model beside a sharded one: it keeps the names that it has."""
    return set() if {COMPILED, UNSHARDED}.isdisjoint(kinds) else {COMPILED}


def without_models(kinds: Collection[str]) -> set[str]:
    """Return what is left where FSDP1's models are not yet, or not here."""
    return {kind for kind in kinds if kind != MODEL and not kind.endswith((f">{MODEL}", COMPILED))}
