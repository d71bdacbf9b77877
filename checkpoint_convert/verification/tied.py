"""Tied embeddings: two names of one matrix, of which some write both and some write one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.checkpoint_convert.storage.model_files import MODEL_CONFIG


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.checkpoint_convert.verification.alignment import AlignedCheckpoint


_TIED: Final = "tie_word_embeddings"
_LARGEST: Final = 1 << 20
_MATRIX: Final = 2


def says_tied(side: AlignedCheckpoint) -> bool:
    """Tell whether the ``config.json`` of a model of transformers says that its embeddings are tied."""
    size = side.manifest.extra_files.get(MODEL_CONFIG, _LARGEST)
    if size >= _LARGEST:
        return False
    try:
        said = json.loads(side.folder.read(MODEL_CONFIG, 0, size))
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get(_TIED) is True


def may_be_tied(side: AlignedCheckpoint, key: str, others: Iterable[str]) -> Iterator[str]:
    """Yield the keys of matrices that may be the same one as ``key``'s, which the other side lacks."""
    entry = side.entries[key]
    weights = {inner for part in side.manifest.parts if part.kind == "model" for inner in part.keys}
    if not isinstance(entry, TensorEntry) or len(entry.shape) != _MATRIX or entry.key not in weights:
        return
    for other in others:
        twin = side.entries[other]
        if not isinstance(twin, TensorEntry) or twin.key not in weights:
            continue
        if (twin.shape, twin.dtype) == (entry.shape, entry.dtype):
            yield other
