"""Models whose embeddings Accelerate's FSDP2 cannot ask for: it calls the getters of transformers' models.

``doctor`` knows the fault of a model that is there as accelerate-asks-for-embeddings.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.source.python.nodes import last_name, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "embedding-getters"
CODES = ("FM343",)

GETTERS = frozenset({"get_input_embeddings", "get_output_embeddings"})
"""What Accelerate's FSDP2 calls of each model that it prepares."""
_SINCE = ACCELERATE["embeddings_apart"].versions
_TAKES_MORE = (
    "where this model is prepared, Accelerate's FSDP2 ({}) calls this method, without an argument, and "
    "stops: name this one otherwise, or let it return the embeddings where nothing is given."
)
_HAS_NONE = (
    "where this model is prepared, Accelerate's FSDP2 ({}) asks it for its embeddings, and transformers "
    "does not find them by their names here: it stops at NotImplementedError. Give the class `def "
    "get_input_embeddings(self)`, which returns its embeddings, or None where it has none."
)
_MODEL = "PreTrainedModel"
# What transformers looks into where a class has no method of its own.
_FOUND = re.compile(r"self\.(?:embed_tokens|embeddings|language_model|model|base_model|transformer)\b")
_NAMES_BASE = frozenset({"base_model_prefix", "_input_embed_layer"})


def find(source: Source) -> Iterator[Found]:
    """Find such methods, and classes without one, in projects whose models Accelerate shards."""
    if not source.links.beside_getters:
        return
    classes = [cst.ensure_type(each, cst.ClassDef) for each in source.index.by_kind.get(cst.ClassDef, ())]
    above = {last_name(base.value) for each in classes for base in each.bases}
    for owner in classes:
        methods = {each.name.value: each for each in owner.body.body if isinstance(each, cst.FunctionDef)}
        for name in sorted(GETTERS & set(methods)):
            if _asks_for_more(methods[name].params):
                yield Found("FM343", methods[name], _TAKES_MORE.format(_SINCE), "commented")
        is_model = any(last_name(base.value) == _MODEL for base in owner.bases)
        is_run = "forward" in methods and owner.name.value not in above
        if is_model and is_run and "get_input_embeddings" not in methods and not _is_found(owner):
            yield Found("FM343", owner, _HAS_NONE.format(_SINCE), "commented")


def _asks_for_more(params: cst.Parameters) -> bool:
    """Tell whether a method needs more than its object."""
    placed = [*params.posonly_params, *params.params][1:]
    return any(each.default is None for each in (*placed, *params.kwonly_params))


def _is_found(owner: cst.ClassDef) -> bool:
    """Tell whether transformers may find the embeddings by what the class sets."""
    named = (text_of(each.target) for each in walk_for(owner.body, cst.AssignTarget))
    return any(name in _NAMES_BASE or _FOUND.match(name) for name in named)
