"""``enable_wrap`` and ``wrap`` shard parts of a model by hand, which prepare_fully_shard does by a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "manual-wrapping"
CODES = ("FM303",)

_MEANT = (
    "wrapping by hand: build the model without it, and select the same modules by "
    "prepare_fully_shard(model, {'auto_wrap_policy': ...})."
)


def find(source: Source) -> Iterator[Found]:
    """Find every use of ``enable_wrap`` and ``wrap``."""
    for node, name in source.references.items():
        if name in catalog.MANUAL_WRAPPING:
            yield Found("FM303", node, _MEANT, "commented", covers=(node,))
