"""``isinstance(x, FSDP)`` and annotations name ``FSDPModule``, which the class of each unit derives from.

https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.nodes import dotted
from fsdp_migrate.source.rules.methods import renamed
from fsdp_migrate.source.uses import Found, Need


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.text import Source


NAME = "isinstance"
CODES = ("FM305",)

_PARTS = (
    cst.Arg,
    cst.BinaryOperation,
    cst.Element,
    cst.Index,
    cst.Subscript,
    cst.SubscriptElement,
    cst.Tuple,
)
MODULE = Need("torch.distributed.fsdp", "FSDPModule")


def find(source: Source) -> Iterator[Found]:
    """Find every check for the class, and every annotation with it."""
    for node, name in source.references.items():
        if name == catalog.FSDP and _asks_for_the_class(source, node):
            new = source.local_name(MODULE)
            edit = renamed(node, new)
            yield Found("FM305", node, new, "rewritten", (edit,), (MODULE,), covers=(node,))


def _asks_for_the_class(source: Source, node: cst.CSTNode) -> bool:
    below = node
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Annotation):
            return True
        if isinstance(above, cst.Call):
            name, args = dotted(above.func), above.args
            checks = name == "isinstance" and len(args) == 2 and below is args[1]
            casts = name in {"cast", "typing.cast"} and len(args) == 2 and below is args[0]
            return checks or casts
        if not isinstance(above, _PARTS):
            return False
        below = above
    return False
