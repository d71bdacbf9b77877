"""What Accelerate's ``prepare`` gives in a source that asks it for FSDP1: the sharded model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.catalog import PREPARED_MODEL
from fsdp_migrate.source.python.held import put
from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.source.python.scopes import Index


_PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
_TYPE = re.compile(r"\bDistributedType\.FSDP\b")
_OTHERS = re.compile(r"optim|loader|sched|dataset|config|tokenizer")
ACCELERATE = "by:accelerate"
_METHODS = frozenset({"prepare", "prepare_model"})


def shards_by_accelerate(index: Index) -> bool:
    """Tell whether a source makes Accelerate's plugin or gives it one, and does not ask for FSDP2 itself."""
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    made = [call for call in calls if any(map(_PLUGIN.match, index.qualified(call.func)))]
    given = [(arg.keyword.value, arg.value) for call in calls for arg in call.args if arg.keyword is not None]
    if any(name == "fsdp_version" for name, _ in given):
        return False
    is_given = any(name == "fsdp_plugin" and text_of(value) != "None" for name, value in given)
    return bool(made) or is_given or _is_set(index)


def _is_set(index: Index) -> bool:
    """Tell whether a source sets ``os.environ["ACCELERATE_USE_FSDP"]``, which Accelerate reads."""
    for node in index.by_kind.get(cst.Assign, ()):
        assign = cst.ensure_type(node, cst.Assign)
        if any("ACCELERATE_USE_FSDP" in text_of(each.target) for each in assign.targets):
            return text_of(assign.value).strip("'\"").lower() in {"1", "true", "yes"}
    return False


def asks_for_plugin(index: Index) -> bool:
    """Tell whether a source makes the plugin, gives or reads it, or sets the variable that makes one."""
    for node in index.by_kind.get(cst.Call, ()):
        call = cst.ensure_type(node, cst.Call)
        if any(map(_PLUGIN.match, index.qualified(call.func))):
            return True
        if any(arg.keyword is not None and arg.keyword.value == "fsdp_plugin" for arg in call.args):
            return True
    attributes = (cst.ensure_type(node, cst.Attribute) for node in index.by_kind.get(cst.Attribute, ()))
    read = (node for node in attributes if node.attr.value == "fsdp_plugin")
    is_read = any("accelerator" in text_of(node.value).lower() for node in read)
    return is_read or _is_set(index)


def asks_for_fsdp(index: Index) -> bool:
    """Tell whether a source asks Accelerate how it was launched: ``DistributedType.FSDP``."""
    return any(is_fsdp_type(text_of(node)) for node in index.by_kind.get(cst.Attribute, ()))


def is_fsdp_type(test: str) -> bool:
    """Tell whether a test, or a part of one, is about FSDP as Accelerate's type.

    Example:
        >>> is_fsdp_type("state.distributed_type == DistributedType.FSDP"), is_fsdp_type("DistributedType.NO")
        (True, False)
    """
    return _TYPE.search(test) is not None and "!=" not in test and not test.startswith("not ")


def is_list_of_models(node: cst.Attribute) -> bool:
    """Tell whether it is ``accelerator._models``, what an Accelerator has prepared."""
    return node.attr.value == "_models" and "accelerator" in text_of(node.value).lower()


def prepared(call: cst.Call) -> set[str]:
    """Return what a call of Accelerate's ``prepare`` gives."""
    func = call.func
    if not isinstance(func, cst.Attribute) or any(arg.star for arg in call.args):
        return set()
    return prepared_by(text_of(func.value), func.attr.value, [dotted(arg.value) or "" for arg in call.args])


def prepared_by(owner: str, method: str, given: Sequence[str]) -> set[str]:
    """Return what a method gives, if it is an Accelerator's ``prepare``, by what its arguments are called.

    Accelerate may run with DDP as well, if it is launched so.

    Example:
        >>> prepared_by("accelerator", "prepare", ["net"]) == {"fsdp", "other", "by:accelerate"}
        True
    """
    if method not in _METHODS or "accelerator" not in owner.lower():
        return set()
    found: set[str] = set()
    for place, text in enumerate(given):
        name = text.split(".")[-1].lower()
        if re.search(PREPARED_MODEL, name) and not _OTHERS.search(name):
            kinds = {"fsdp", "other", ACCELERATE}
            found |= kinds if len(given) == 1 else put(str(place), kinds)
    return found
