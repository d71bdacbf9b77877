"""What of torchrec shards embeddings: ``DistributedModelParallel``, and ``shard`` for a module.

It may have FSDP around it, or in it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst


if TYPE_CHECKING:
    from fsdp_migrate.source.python.scopes import Index


_NAME = re.compile(
    r"^torchrec\..*\b(D(istributed)?M(odel)?P(arallel)?|DMPCollection|\w*DataParallelWrapper"
    r"|shard\.shard(_modules)?|shard_modules)$"
)


def torchrecs_model(index: Index) -> bool:
    """Tell whether a source has torchrec's wrapper for models, puts FSDP into it, or has what shards."""
    scopes = set(index.scopes.values())
    found = (each.qualified for scope in scopes for names in scope.bindings.values() for each in names)
    names = {name for name in found if name is not None and name.split(".")[0] == "torchrec"}
    if any(_NAME.match(name) for name in names):
        return True
    attributes = index.by_kind.get(cst.Attribute, ()) if names else ()
    return any(_NAME.match(name) for node in attributes for name in index.qualified(node))
