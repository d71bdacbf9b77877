"""What ``fabric.setup(model)`` gives where Fabric has FSDP1's strategy: the model, in a module of its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.accelerators import is_one
from fsdp_migrate.source.python.fabrics_made import makes_plain, shards_nothing
from fsdp_migrate.source.python.heirs import FABRICS as THEIRS, is_itself, is_made_by
from fsdp_migrate.source.python.held import put
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.named_objects import NamedObjects
from fsdp_migrate.source.python.nodes import code as written, named_arguments, text_of, walk_for
from fsdp_migrate.source.python.optimizers import OF_A_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


FABRIC = "by:fabric"
_CLASS = re.compile(r"Fabric$")
_STRATEGY = re.compile(r"^(lightning|lightning_fabric)\b.*\bFSDPStrategy$")
_WORD = re.compile(r"^['\"]fsdp(_cpu_offload)?['\"]$")
SETS_UP = frozenset({"setup", "setup_module"})
_INNER = "_forward_module"
_TAKES_ITS_OWN = frozenset({"clip_gradients", "no_backward_sync", "save"})
_CLIPS: Final = re.compile(r"\b([\w.]+)\.clip_gradients\(")
FABRICS: Final = NamedObjects(
    "Fabric",
    shards=SETS_UP,
    tells=frozenset(
        {
            *("backward", "clip_gradients", "is_global_zero", "launch", "load_raw", "no_backward_sync"),
            *("setup_dataloaders", "setup_module", "setup_optimizers"),
        }
    ),
    named=r"fabric$",
)


def shards_by_fabric(index: Index) -> bool:
    """Tell whether a source makes a Fabric, and FSDP1's strategy for it."""
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    # A project may have a class of its own around Fabric.
    is_made = any(_STRATEGY.match(name) for call in calls for name in index.qualified(call.func))
    asking = calls if is_made else [call for call in calls if any(map(_asks, call.args))]
    return any(_CLASS.search(text_of(call.func)) or is_made_by(index, call, THEIRS) for call in asking)


def _asks(arg: cst.Arg) -> bool:
    is_its = arg.keyword is not None and arg.keyword.value == "strategy"
    return is_its and _WORD.match(text_of(arg.value)) is not None


def is_of_other_strategy(test: cst.BaseExpression, *, truth: bool) -> bool:
    """Tell whether a test that has come out as ``truth`` says that a Fabric has another strategy.

    Example:
        >>> test = cst.parse_expression("isinstance(fabric.strategy, FSDPStrategy)")
        >>> is_of_other_strategy(test, truth=False), is_of_other_strategy(test, truth=True)
        (True, False)
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return is_of_other_strategy(test.expression, truth=not truth)
    if truth or not isinstance(test, cst.Call) or len(test.args) != 2 or text_of(test.func) != "isinstance":
        return False
    asked, kind = (text_of(arg.value) for arg in test.args)
    return asked.rpartition(".")[2] in {"strategy", "_strategy"} and kind.endswith("FSDPStrategy")


def sets_up(code: str) -> bool:
    """Tell whether a text has a Fabric set up models, or clip those that are, as its words say.

    Example:
        >>> sets_up("fab = L.Fabric(); fab.setup(net)"), sets_up("data.setup(net)")
        (True, False)
        >>> sets_up("self.fabric.clip_gradients(net, opt)"), sets_up("self.clip_gradients(opt)")
        (True, False)
    """
    if ".setup" in code and FABRICS.shards_in(code):
        return True
    return any(FABRICS.is_one(owner, code) for owner in _CLIPS.findall(code))


def set_up(index: Index, call: cst.Call) -> set[str]:
    """Return what a call of Fabric's ``setup`` gives."""
    func = call.func
    if not isinstance(func, cst.Attribute) or not call.args or call.args[0].star:
        return set()
    others = [arg for arg in call.args[1:] if arg.keyword is None]
    if func.attr.value not in SETS_UP:
        return set()
    is_its = is_one(FABRICS, text_of(func.value), index) or is_made_by(index, func.value, THEIRS)
    if not is_its and not is_itself(index, func.value, THEIRS):
        return set()
    if _is_made_plain(index, func.value):
        return set()
    return set_up_by(func.attr.value, has_optimizers=bool(others))


def is_set_up_plain(index: Index, call: cst.Call) -> bool:
    """Tell whether a Fabric that shards nothing sets up a model, which nobody has sharded before."""
    func = call.func
    is_one = isinstance(func, cst.Attribute) and func.attr.value in SETS_UP
    return is_one and _is_made_plain(index, cst.ensure_type(func, cst.Attribute).value)


def may_shard(index: Index, fabric: cst.BaseExpression) -> bool:
    """Tell whether it is a Fabric, and not seen to be one that shards nothing."""
    return is_one(FABRICS, text_of(fabric), index) and not _is_made_plain(index, fabric)


def is_fabrics_own(index: Index, model: cst.BaseExpression) -> bool:
    """Tell whether the same function asks a model for what Fabric's module alone has, or gives it to Fabric.

    As ``model._forward_module``, and ``fabric.save(path, {"model": model})``.
    """
    function, text = index.function(model), text_of(model)
    if function is None:
        return False
    inner = [each for each in walk_for(function, cst.Attribute) if each.attr.value == _INNER]
    if any(text_of(each.value) == text and not _is_bound_to(index, each, text) for each in inner):
        return True
    for call in walk_for(function, cst.Call):
        func = call.func
        is_its = isinstance(func, cst.Attribute) and func.attr.value in _TAKES_ITS_OWN
        if not is_its or not is_one(FABRICS, text_of(cst.ensure_type(func, cst.Attribute).value), index):
            continue
        if any(text_of(each) == text for arg in call.args for each in _given(arg.value)):
            return True
    return False


def _is_bound_to(index: Index, value: cst.BaseExpression, name: str) -> bool:
    """Tell whether a name is given a value: ``model = model._forward_module``."""
    above = index.parents[value]
    return isinstance(above, cst.Assign) and any(text_of(each.target) == name for each in above.targets)


def _given(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    yield value
    for each in value.elements if isinstance(value, cst.Dict) else ():
        yield each.value


def _is_made_plain(index: Index, fabric: cst.BaseExpression) -> bool:
    """Tell whether the same function, or class, makes a Fabric that shards nothing."""
    around = index.class_of(fabric) if isinstance(fabric, cst.Attribute) else index.function(fabric)
    if around is not None and makes_plain(written(around), text_of(fabric)):
        return True
    made = last_value(index, fabric) if isinstance(fabric, cst.Name) and fabric in index.scopes else None
    if not isinstance(made, cst.Call) or index.function(made) is not index.function(fabric):
        return False
    if not any(map(THEIRS.match, index.qualified(made.func))):
        return False
    given = {name: written(value) for name, value in named_arguments(made).items()}
    return len(given) == len(made.args) and shards_nothing(given)


def set_up_by(method: str, *, has_optimizers: bool) -> set[str]:
    """Return what a method gives, if it is Fabric's ``setup``: the model, or the model and its optimizers.

    Example:
        >>> set_up_by("setup", has_optimizers=False) == {"fsdp", "other", "by:fabric"}
        True
    """
    if method not in SETS_UP:
        return set()
    kinds = {"fsdp", "other", FABRIC}
    if not has_optimizers or method != "setup":
        return kinds
    return put("0", kinds) | put("1", OF_A_MODEL)  # mostly one; `setup(model, *optimizers)` gives more
