"""A ``state_dict`` of an optimizer's own, which frameworks' FSDP2 asks for by torch's functions.

Those take what torch's optimizers give, ``state`` and ``param_groups``, and raise for a dict around that.
They give ``load_state_dict`` its argument by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.optimizer_bases import is_optimizer_class
from fsdp_migrate.source.python.frameworks import by_whom
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import dotted, last_name, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "optimizer-state"
CODES = ("FM445",)

_KEYS = frozenset({"param_groups", "state"})
_MEANT = (
    "where a framework shards the model of this optimizer, its FSDP2 saves by torch's "
    "get_optimizer_state_dict, which takes `state` and `param_groups` as torch's optimizers give them, and "
    "raises KeyError for this; FSDP1's checkpoint was written without what this adds. Give back the inner "
    "state_dict() here, and save the rest by itself."
)
_NAMED = (
    "where a framework shards the model of this optimizer, its FSDP2 loads by torch's "
    "set_optimizer_state_dict, which calls this with `state_dict=`, and raises TypeError for an argument of "
    "another name; FSDP1's path gave it by its place. Call it `state_dict`."
)


def find(source: Source) -> Iterator[Found]:
    """Find these methods of classes of optimizers, in a source that a framework's models come to."""
    if not _has_frameworks_models(source):
        return
    made = {last_name(call.func) for call in source.calls} | source.links.optimizers
    for node in source.index.by_kind.get(cst.ClassDef, ()):
        owner = cst.ensure_type(node, cst.ClassDef)
        if owner.name.value not in made or not is_optimizer_class(source, owner):
            continue
        for method in (each for each in owner.body.body if isinstance(each, cst.FunctionDef)):
            if method.name.value == "state_dict":
                returned = (each for each in walk_for(method.body, cst.Return) if each.value is not None)
                if any(_is_of_its_own(source, each.value) for each in returned if each.value is not None):
                    yield Found("FM445", method, _MEANT, "commented")
            elif method.name.value == "load_state_dict" and not _takes_by_name(method.params):
                yield Found("FM445", method, _NAMED, "commented")


def _takes_by_name(asked: cst.Parameters) -> bool:
    """Tell whether a ``load_state_dict`` takes its argument by torch's name for it."""
    names = {each.name.value for each in (*asked.params, *asked.kwonly_params)}
    return "state_dict" in names or asked.star_kwarg is not None


def _has_frameworks_models(source: Source) -> bool:
    if source.links.optimizers and source.links.beside_frameworks:
        return True
    return source.models.frameworks.are_used or any(map(by_whom, source.models.facts.values()))


def _is_of_its_own(source: Source, value: cst.BaseExpression) -> bool:
    """Tell whether a dict is another than torch's optimizers give: ``{"base": inner.state_dict()}``."""
    if isinstance(value, cst.Name) and value in source.index.scopes:
        held = last_value(source.index, value)
        return isinstance(held, cst.Dict) and _is_of_its_own(source, held)
    items = dict(_items(value)) if isinstance(value, (cst.Call, cst.Dict)) else {}
    return (
        bool(items) and "" not in items and (not items.keys() >= _KEYS or _is_a_whole_state(items["state"]))
    )


def _items(value: cst.Call | cst.Dict) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Yield what a dict is made of, by its keys; what is not seen by an empty one."""
    if isinstance(value, cst.Dict):
        for each in value.elements:
            key = each.key if isinstance(each, cst.DictElement) else None
            yield str(key.evaluated_value) if isinstance(key, cst.SimpleString) else "", each.value
    elif dotted(value.func) == "dict":
        yield from ((arg.keyword.value if arg.keyword is not None else "", arg.value) for arg in value.args)


def _is_a_whole_state(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and (dotted(value.func) or "").endswith(".state_dict")
