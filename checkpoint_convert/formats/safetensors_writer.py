"""Lay out safetensors files: their headers, and which tensor goes into which file. Pure."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.safetensors_reader import DTYPE_WORDS
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.errors import UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor


INDEX_FILE: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_PIECE: Final = "model-{:05d}-of-{:05d}.safetensors"
_ALIGNMENT: Final = 8
# What `from_pretrained` asks for, and by whom it is written.
_ABOUT: Final = {"__metadata__": {"format": "pt", "written_by": "fsdp-migrate"}}
HEADER_START: Final = json.dumps(_ABOUT, separators=(",", ":"))[:-1].encode()
"""How the header of each file that is written here begins, after its length."""

PlacedFile = tuple[bytes, "Sequence[PlannedTensor]"]
"""The header of a file, with its length before it, and the tensors that follow it, in order."""


def place_files(tensors: Iterable[PlannedTensor], max_bytes: int) -> dict[str, PlacedFile]:
    """Divide tensors over files as ``save_pretrained`` does, in their order, and write the headers.

    Args:
        tensors: What is to be stored.
        max_bytes: How many bytes of tensors a file holds at most; one that is larger has a file of its own.
    """
    pieces: list[list[PlannedTensor]] = [[]]
    nbytes = 0
    for tensor in tensors:
        size = tensor.nbytes
        if pieces[-1] and nbytes + size > max_bytes:
            pieces.append([])
            nbytes = 0
        pieces[-1].append(tensor)
        nbytes += size
    names = [_SINGLE]
    if len(pieces) > 1:
        names = [_PIECE.format(number, len(pieces)) for number in range(1, len(pieces) + 1)]
    # Large elements first, as the library itself does, so that every tensor is aligned to its own elements.
    ordered = [sorted(piece, key=lambda t: (-DTYPES[t.dtype].itemsize, t.key)) for piece in pieces]
    return {name: (_header(piece), piece) for name, piece in zip(names, ordered, strict=True)}


def write_index(files: Mapping[str, Sequence[PlannedTensor]]) -> bytes:
    """Return the index of files: which tensor is in which, and how many bytes there are in all."""
    places = {tensor.key: name for name, tensors in files.items() for tensor in tensors}
    total = sum(tensor.nbytes for tensors in files.values() for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    return (json.dumps(index, indent=2) + "\n").encode()


def _header(tensors: Sequence[PlannedTensor]) -> bytes:
    header: dict[str, object] = {**_ABOUT}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.key] = {
            "dtype": DTYPE_WORDS[tensor.dtype],
            "shape": list(tensor.source.shape),
            "data_offsets": [start, end],
        }
    try:
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        feature = (
            f"a name of a tensor that is no Unicode text ({error.object[error.start - 20 : error.end]!r})"
        )
        msg = f"safetensors cannot hold {feature}. Give it another one with `renames` (--rename)."
        raise UnsupportedFeatureError(msg, feature=feature) from error
    # Spaces, as the library fills up: they belong to the JSON, and its length counts them.
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
