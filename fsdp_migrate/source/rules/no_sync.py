"""``model.no_sync()`` becomes ``no_sync(model)``; named without being called, a partial of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.framework_words import is_an_accelerator, mixed, unsynced
from fsdp_migrate.source.method_calls import on_model, renamed, sureness_of_lost, unbound
from fsdp_migrate.source.python.accelerate_models import ACCELERATE
from fsdp_migrate.source.python.last_values import last_value, seen_value, values_set
from fsdp_migrate.source.python.nodes import last_name, short, text_of
from fsdp_migrate.source.python.wrappers import SAME_MODEL
from fsdp_migrate.source.rules.framework_clipping import may_accumulate
from fsdp_migrate.source.uses import Found, Need, Replace


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "no-sync"
CODES = ("FM312", "FM333")

NO_SYNC = Need("fsdp_migrate.runtime", "no_sync")
_PARTIAL = Need("functools", "partial")
_LISTED = (
    "Accelerate asks each thing that this is given, and under FSDP2 a list of models raises, where FSDP1 "
    "passed over it: give it the models, {}(*{})."
)
_OTHERS = (
    "Accelerate's FSDP2 asks each thing that this is given for set_requires_gradient_sync, which a sharded "
    "model alone has: AttributeError for others, over which FSDP1 passed. Give it the models that "
    "accelerator.prepare gave, without {}, where that is none of them."
)
_UNSURE = "if this is the sharded model, take fsdp_migrate.runtime.no_sync(model)."


def find(source: Source) -> Iterator[Found]:
    """Find FSDP1's ``no_sync``, called or not."""
    for call in source.calls:
        if unbound(source, call, "no_sync"):
            new = source.local_name(NO_SYNC)
            edit = renamed(call.func, new)
            yield Found("FM312", call, f"{new}(...)", "rewritten", (edit,), (NO_SYNC,), (call.func,))
        yield from _of_accelerate(source, call)
    for node in source.attributes:
        if node.attr.value == "no_sync" and node not in source.references and not _is_set(source, node):
            yield from _of_method(source, node)


def _of_accelerate(source: Source, call: cst.Call) -> Iterator[Found]:
    """Find what is no sharded model in ``accelerator.accumulate(model, head)`` and ``no_sync``."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in {"accumulate", "no_sync"}:
        return
    if not call.args or not is_an_accelerator(source, func.value):
        return
    if func.attr.value == "accumulate" and not may_accumulate(source):
        return
    if len(call.args) == 1 and not call.args[0].star and _is_list_of_models(source, call.args[0].value):
        said = _LISTED.format(short(func, 40), short(call.args[0].value, 30))
        yield Found("FM312", call, said, "commented")
        return
    others = [short(each, 30) for each in _others(source, call)]
    if others:
        yield Found("FM312", call, _OTHERS.format(", ".join(f"`{each}`" for each in others)), "commented")


def _is_list_of_models(source: Source, given: cst.BaseExpression) -> bool:
    kinds = source.models.kinds(given)
    held = {kind for kind in kinds if not kind.startswith(".")}
    is_list = any(kind.endswith(">fsdp") for kind in held) and "fsdp" not in kinds
    return is_list and any(kind.endswith(f">{ACCELERATE}") for kind in held)


def _others(source: Source, call: cst.Call) -> list[cst.BaseExpression]:
    """Return what stands beside a model that Accelerate shards, or alone is a part or a holder of one."""
    given = list(_given(source, call))
    sharded = [each for each in given if "fsdp" in source.models.kinds(each)]
    if any(ACCELERATE in source.models.kinds(each) for each in sharded):
        return [each for each in given if each not in sharded]
    return [each for each in given if _is_around(source, each)] if len(given) == 1 else []


def _given(source: Source, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what a call is given, and what a list holds that it is given by a star."""
    for arg in call.args:
        value = arg.value
        if arg.star and isinstance(value, cst.Name) and value in source.index.scopes:
            value = last_value(source.index, value) or value
        if not arg.star:
            yield value
        elif isinstance(value, (cst.List, cst.Tuple)):
            yield from (each.value for each in value.elements if isinstance(each, cst.Element))


def _is_around(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether it is an object that holds a model of Accelerate's, or an attribute of such a model."""
    kinds = source.models.kinds(given)
    if "fsdp" in kinds:
        return False
    if any(kind.startswith(".") and kind.endswith(f">{ACCELERATE}") for kind in kinds):
        return True
    owner = source.models.kinds(given.value) if isinstance(given, cst.Attribute) else ()
    return not kinds and ({"fsdp", ACCELERATE} <= set(owner) or _is_made_of_one(source, given))


def _is_made_of_one(source: Source, given: cst.BaseExpression) -> bool:
    """Tell whether an unknown call makes it of a model of Accelerate's: ``make_wrapper(config)(model)``."""
    made = seen_value(source.index, given)
    # `model = model.to(device)` is what it was.
    while isinstance(made, cst.Call) and isinstance(made.func, cst.Attribute):
        if made.func.attr.value not in SAME_MODEL:
            break
        made = seen_value(source.index, made.func.value)
    if not isinstance(made, cst.Call) or "unwrap" in last_name(made.func):
        return False
    return any({"fsdp", ACCELERATE} <= set(source.models.kinds(arg.value)) for arg in made.args)


def _is_set(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is a flag that the same class sets, ``self.no_sync = False``, or is set here."""
    if isinstance(source.index.parents[node], cst.AssignTarget):
        return True
    return text_of(node) == "self.no_sync" and bool(values_set(source.index, node))


def _of_method(source: Source, node: cst.Attribute) -> Iterator[Found]:
    sure = sureness_of_lost(source, node.value)
    if sure == "mixed":
        said = f"{mixed(source, node.value)}take {unsynced(source, node.value)}."
        yield Found("FM333", node, said, "commented")
    elif sure in {"likely", "unknown"} and not _is_given_a_model(source, node):
        yield Found("FM312", node, _UNSURE, "commented")
    elif sure == "sure":
        yield _rewritten(source, node)


def _is_given_a_model(source: Source, node: cst.Attribute) -> bool:
    """Tell whether it is a framework's own, which takes the model: ``get_accelerator().no_sync(model)``."""
    above = source.index.parents[node]
    return isinstance(above, cst.Call) and above.func is node and bool(above.args)


def _rewritten(source: Source, node: cst.Attribute) -> Found:
    new, above = source.local_name(NO_SYNC), source.index.parents[node]
    model = short(node.value, 30)
    if isinstance(above, cst.Call) and above.func is node:

        def build(updated: cst.Call) -> cst.Call:
            assert isinstance(updated.func, cst.Attribute)
            return on_model(updated, updated.func.value, new)

        return Found("FM312", above, f"{new}({model})", "rewritten", (Replace(above, build),), (NO_SYNC,))
    partial = source.local_name(_PARTIAL)

    def bind(updated: cst.Attribute) -> cst.Call:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return cst.Call(cst.Name(partial), [cst.Arg(cst.Name(new), comma=comma), cst.Arg(updated.value)])

    needs = (NO_SYNC, _PARTIAL)
    return Found("FM312", node, f"partial({new}, {model})", "rewritten", (Replace(node, bind),), needs)
