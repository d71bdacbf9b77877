"""What Accelerate's ``prepare`` gives in a source that makes its plugin for FSDP1: the sharded model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.catalog import PREPARED_MODEL
from fsdp_migrate.source.python.held import put
from fsdp_migrate.source.python.nodes import dotted, text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_PLUGIN = re.compile(r"^accelerate\..*\bFullyShardedDataParallelPlugin$")
_OTHERS = re.compile(r"optim|loader|sched|dataset|config|tokenizer")
ACCELERATE = "by:accelerate"
_METHODS = frozenset({"prepare", "prepare_model"})


def shards_by_accelerate(index: Index) -> bool:
    """Tell whether a source makes Accelerate's plugin, and does not ask for FSDP2 itself."""
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    made = [call for call in calls if any(map(_PLUGIN.match, index.qualified(call.func)))]
    given = (arg for call in made for arg in call.args if arg.keyword is not None)
    return bool(made) and all(each.keyword.value != "fsdp_version" for each in given if each.keyword)


def prepared(call: cst.Call) -> set[str]:
    """Return what a call of Accelerate's ``prepare`` gives, by what its arguments are called.

    Accelerate may run with DDP as well, if it is launched so.
    """
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in _METHODS:
        return set()
    if "accelerator" not in text_of(func.value).lower() or any(arg.star for arg in call.args):
        return set()
    found: set[str] = set()
    for place, arg in enumerate(call.args):
        name = (dotted(arg.value) or "").split(".")[-1].lower()
        if re.search(PREPARED_MODEL, name) and not _OTHERS.search(name):
            kinds = {"fsdp", "other", ACCELERATE}
            found |= kinds if len(call.args) == 1 else put(str(place), kinds)
    return found
