"""A model's embeddings that its forward reads the weights of: a unit of their own in Accelerate's FSDP2.

Under FSDP1 they lay in the root, and were whole as long as the model's forward ran.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.adapters.engine.claims import ACCELERATE
from fsdp_migrate.adapters.engine.shared_embeddings import EMBEDDINGS_STAY
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.nodes import last_name, text_of, walk_for
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "embedding-weights"
CODES = ("FM343",)

_MEANT = (
    f"Accelerate {ACCELERATE['embeddings_apart'].versions} gives a model's embeddings a unit of their own "
    "under FSDP2. Where these are what `get_input_embeddings()` gives, their weights are whole only while "
    "they run, and not here, unless the head is tied to them and they ran before: a product with them, or "
    "`F.embedding`, raises at a DTensor. "
    f"{EMBEDDINGS_STAY}"
)
_GETTER, _HEAD = "get_input_embeddings", "get_output_embeddings"
_USUAL = frozenset({"embed_in", "embed_tokens", "shared", "word_embeddings", "wte"})
_OF_TRANSFORMERS = re.compile(r"PreTrained|Pretrained|For[A-Z]\w+\Z|Model\Z")
_BEFORE = re.compile(
    r"^(?:__init__|post_init|from_|load_|save_|set_|get_|resize_|extend_|merge_|freeze|reset_|_?tie_)|init"
)
"""Methods that are not run in a forward."""
_ASKED = frozenset(
    {"device", "dim", "dtype", "element_size", "is_meta", "ndim", "numel", "requires_grad"}
    | {"requires_grad_", "shape", "size"}
)
"""What says the same of a DTensor."""


def find(source: Source) -> Iterator[Found]:
    """Find these in methods of models, in projects that Accelerate or Hugging Face's Trainer shards."""
    if not source.links.reads_embeddings or _gives_them_as_head(source):
        return
    for node in source.attributes:
        if node.attr.value == "weight" and _is_embeddings(source, node.value) and _is_read(source, node):
            yield Found("FM343", node, _MEANT, "commented")


def _gives_them_as_head(source: Source) -> bool:
    """Tell whether `get_output_embeddings` gives the embeddings: the unit of both stays whole once it ran."""
    heads = (each for each in _functions(source) if each.name.value == _HEAD)
    given = (each.value for head in heads for each in walk_for(head.body, cst.Return))
    return any(last_name(each) in _USUAL for each in given if each is not None)


def _is_embeddings(source: Source, node: cst.BaseExpression) -> bool:
    """Tell whether it is called as the embeddings of transformers' models are, or what the getter gives."""
    if isinstance(node, cst.Name) and node in source.index.scopes:
        value = last_value(source.index, node)
        return value is not None and not isinstance(value, cst.Name) and _is_embeddings(source, value)
    if isinstance(node, cst.Call):
        return last_name(node.func) == _GETTER and text_of(node).startswith("self.")
    is_usual = isinstance(node, cst.Attribute) and node.attr.value in _USUAL
    return is_usual and text_of(node).startswith("self.")


def _is_read(source: Source, node: cst.Attribute) -> bool:
    """Tell whether a model's forward may read values there: it is not tied, set, or asked for its size."""
    owner, function = source.index.class_of(node), source.index.function(node)
    if owner is None or function is None or not _is_a_model(source, owner):
        return False
    if _BEFORE.search(function.name.value) is not None:
        return False
    above = source.index.parents[node]
    if isinstance(above, cst.Attribute) and above.attr.value in _ASKED:
        return False
    if isinstance(above, cst.Assign):  # `self.head.weight = self.wte.weight`
        return not any(text_of(each.target).endswith(".weight") for each in above.targets)
    return not isinstance(above, (cst.AssignTarget, cst.ComparisonTarget))


def _is_a_model(source: Source, owner: cst.ClassDef) -> bool:
    """Tell whether a class extends one of transformers' models, or stands beside what says its embeddings."""
    if any(_OF_TRANSFORMERS.search(last_name(base.value)) for base in owner.bases):
        return True
    return any(each.name.value == _GETTER for each in _functions(source))


def _functions(source: Source) -> Iterator[cst.FunctionDef]:
    for node in source.index.by_kind.get(cst.FunctionDef, ()):
        yield cst.ensure_type(node, cst.FunctionDef)
