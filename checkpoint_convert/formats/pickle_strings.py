"""Replace names inside a pickle without understanding the rest of it.

Only the operands of text opcodes change; every other byte stays, whatever it means. Frames are optional, and
their lengths would no longer be right, so they are dropped.
"""

from __future__ import annotations

import pickletools
import struct
from typing import TYPE_CHECKING

from fsdp_migrate.errors import CheckpointFormatError


if TYPE_CHECKING:
    from collections.abc import Mapping


_TEXT = frozenset({"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "UNICODE"})


def replace_strings(data: bytes, names: Mapping[str, str], *, where: str) -> bytes:
    """Return ``data`` with every text that is exactly a key of ``names`` replaced.

    Raises:
        CheckpointFormatError: It is not a pickle.

    Example:
        >>> import pickle
        >>> old = pickle.dumps({"params": ["_orig_mod.a", "b"], "lr": 0.1}, protocol=2)
        >>> pickle.loads(replace_strings(old, {"_orig_mod.a": "a"}, where="an example"))
        {'params': ['a', 'b'], 'lr': 0.1}
    """
    try:
        opcodes = list(pickletools.genops(data))
    except Exception as error:
        raise CheckpointFormatError(f"{where} is not a readable pickle: {error}.") from error
    parts: list[bytes] = []
    ends = [position for _, _, position in opcodes[1:]] + [len(data)]
    for (opcode, argument, start), end in zip(opcodes, ends, strict=True):
        if start is None or end is None or opcode.name == "FRAME":
            continue
        if opcode.name in _TEXT and argument in names:
            text = names[str(argument)].encode("utf-8", "surrogatepass")
            # The opcode with four bytes of length holds any name, however long the old one's was.
            parts.append(b"X" + struct.pack("<I", len(text)) + text)
        else:
            parts.append(data[start:end])
    return b"".join(parts)
