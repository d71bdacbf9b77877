"""Files whose FSDP is torch_xla's: its models, and what is done with them, stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_CLASS: Final = "XlaFullyShardedDataParallel"
_HOMES: Final = ("torch_xla.distributed.fsdp", "torch_xla.distributed.xla_fully_sharded_data_parallel")


def imports_xlas(index: Index) -> bool:
    """Tell whether a source imports torch_xla's FSDP, at its top or in a function."""
    for node in index.by_kind.get(cst.ImportFrom, ()):
        assert isinstance(node, cst.ImportFrom)
        home = dotted(node.module) if node.module is not None else None
        names = node.names if not isinstance(node.names, cst.ImportStar) else ()
        if home in _HOMES and any(dotted(each.name) == _CLASS for each in names):
            return True
    return False
