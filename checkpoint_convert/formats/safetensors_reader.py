"""Read the header of a safetensors file, without the package: names, types, shapes, and where the bytes lie.

The format: eight bytes of length, a JSON object of that length, then the data. The rules that are checked are
those of https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Final, cast

from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.manifest import Chunk, RawElements, Stored, TensorEntry
from fsdp_migrate.errors import CheckpointFormatError


if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn, TypeGuard

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_MAX_HEADER: Final = 100_000_000
_MAX_DIMENSIONS: Final = 64
_WHOLE: Final = frozenset({int})
_METADATA: Final = "__metadata__"
_DTYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
_ITEMSIZES: Final = {word: DTYPES[dtype].itemsize for word, dtype in _DTYPES.items()}
_PLAIN: Final = RawElements()
DTYPE_WORDS: Final = {dtype: word for word, dtype in _DTYPES.items()}
"""The word for each type in the header of a file."""


def read_safetensors(folder: Folder, name: str, size: int) -> tuple[list[TensorEntry], Mapping[str, str]]:
    """Return the tensors of a file in the order of their bytes, and the text in its header.

    Raises:
        CheckpointFormatError: It is damaged, or not such a file.
    """
    where = f"'{folder.url}/{name}'"
    length = struct.unpack("<Q", folder.read(name, 0, 8))[0] if size >= 8 else size
    if length > min(_MAX_HEADER, size - 8):
        raise _broken(where, f"its header should have {length} bytes, and the file has {size}")
    try:
        header = _load_json(folder.read(name, 8, length))
    except (ValueError, RecursionError) as error:
        raise _broken(where, f"its header is no JSON ({str(error)[:100]})") from error
    if not isinstance(header, dict):
        raise _broken(where, "its header is no object")
    notes = header.pop(_METADATA, None) or {}
    if not isinstance(notes, dict) or not all(isinstance(text, str) for text in notes.values()):
        raise _broken(where, "its `__metadata__` is no object of text")
    start = 8 + length
    entries = [_entry(key, described, name, start, size, where) for key, described in header.items()]
    # The library wants tensors to follow each other without a gap, in whatever order the header names them.
    entries.sort(key=lambda entry: entry.chunks[0].stored.offset)
    end = start
    for entry in entries:
        stored = entry.chunks[0].stored
        if stored.offset != end:
            raise _broken(where, f"`{entry.key}` starts at byte {stored.offset}, expected {end}")
        end += stored.length
    if end != size:
        raise _broken(where, f"its tensors end at byte {end}, and the file has {size}")
    return entries, notes


def _entry(key: str, described: object, name: str, start: int, size: int, where: str) -> TensorEntry:
    if not isinstance(described, dict):
        raise _broken(where, f"`{key[:80]}` is not described")
    dtype, shape, span = described.get("dtype"), described.get("shape"), described.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise _broken(where, f"`{key[:80]}` is of the type {str(dtype)[:20]!r}, which is not known")
    # Both at once: there may be 300,000.
    if not isinstance(shape, list) or not isinstance(span, list) or not _are_sizes(shape + span):
        raise _broken(where, f"the shape or the place of `{key[:80]}` makes no sense")
    if len(span) != 2 or len(shape) > _MAX_DIMENSIONS:
        raise _broken(where, f"the shape or the place of `{key[:80]}` makes no sense")
    nbytes = math.prod(shape) * _ITEMSIZES[dtype]
    if span[1] - span[0] != nbytes or start + span[1] > size:
        raise _broken(where, f"`{key[:80]}` needs {nbytes} bytes, and lies at {span[0]} to {span[1]}")
    stored = Stored(name, start + span[0], nbytes, _PLAIN)
    sizes = tuple(shape)
    chunk = Chunk((0,) * len(sizes), sizes, stored)
    return TensorEntry(key, (key,), _DTYPES[dtype], sizes, (chunk,))


def _load_json(data: bytes) -> object:
    """Read a header by the rules of the library, which are narrower than Python's.

    UTF-8 and nothing else, without a mark of its order; an object; no NaN, no half of a surrogate pair.
    """
    text = data.decode("utf-8")
    if not text.lstrip(" \t\r\n").startswith("{"):
        raise ValueError("it does not start with an object")

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON")

    # Few headers have it: without, the numbers are read in C.
    whole = _whole if "-0" in text else None
    found = json.loads(text, object_pairs_hook=_unique, parse_constant=refuse, parse_int=whole)
    if "\\u" in text:
        # An escape can name half of a character, which then cannot be written again.
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _whole(text: str) -> int:
    if text == "-0":
        raise ValueError("-0 is no size")
    return int(text)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object of which no name stands twice: one reader would take the first, another the last."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands in it twice")
    return made


def _are_sizes(values: list[object]) -> TypeGuard[list[int]]:
    if not _WHOLE.issuperset(map(type, values)):
        return False
    numbers = cast("list[int]", values)
    return not numbers or (min(numbers) >= 0 and max(numbers) < 1 << 63)


def _broken(where: str, what: str) -> CheckpointFormatError:
    msg = f"{where} is not a whole safetensors file: {what}."
    return CheckpointFormatError(msg, path=where.strip("'"))
