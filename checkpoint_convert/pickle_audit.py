"""Walk the opcodes of a pickle before it is loaded, and refuse those that attack the reader itself.

An allow-list of globals keeps a pickle from running code, but not from exhausting memory: ``LONG_BINPUT``
with a large index makes CPython's unpickler clear a table of that size, and ``BYTEARRAY8`` allocates what
it declares before it reads. So every index and length is held against the size of the data. The frequent
opcodes are skipped in long runs by one regular expression: a pickle of a million chunks takes two seconds.
"""

from __future__ import annotations

import re
from typing import Final

from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError


_SHORT_STRINGS: Final = b"|".join(
    b"%s(?s:.{%d})" % (re.escape(bytes([length])), length) for length in range(256)
)
_SIMPLE_RUN: Final = re.compile(
    b"(?:"
    + b"|".join(
        (
            # No argument: containers, tuples, None and booleans, MEMOIZE, NEWOBJ, REDUCE, BUILD,
            # STACK_GLOBAL, ...
            rb"[)\]}(\x94\x81Rbuaetdsl012NQ\x85-\x89\x8f\x90\x91\x93]",
            rb"[hqK](?s:.)",
            rb"M(?s:..)",
            rb"[jJ](?s:....)",
            rb"G(?s:.{8})",
            rb"[\x8cUC](?:" + _SHORT_STRINGS + rb")",
        )
    )
    # Bounded, because the engine keeps a record of every repetition until the match ends.
    + rb"){1,1000}"
)

_STOP: Final = 0x2E
_HIGHEST_PROTOCOL: Final = 5
# opcode -> size of the length that precedes the payload
_COUNTED: Final = {
    ord("X"): 4,
    ord("T"): 4,
    ord("B"): 4,
    0x8A: 1,
    0x8B: 4,
    0x8D: 8,
    0x8E: 8,
    0x96: 8,
}
# opcodes whose argument is one line of text
_LINES: Final = frozenset(b"IFLSVg")
_REFUSED: Final = {
    ord("P"): "PERSID",
    ord("i"): "INST",
    ord("o"): "OBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
_MAX_LINE: Final = 4096


def audit_opcodes(data: bytes, *, where: str) -> None:
    """Check every opcode of ``data`` up to its STOP; nothing is built.

    Args:
        data: The pickle.
        where: The file and entry, for messages.

    Raises:
        UnsafePickleError: An opcode that no checkpoint needs, or one that would allocate far more than
            the data holds.
        CheckpointFormatError: Not a pickle, or one that is cut off.

    Example:
        >>> import pickle
        >>> audit_opcodes(pickle.dumps({"a": [1, 2.5]}), where="an example")
    """
    if len(data) < 2 or data[0] != 0x80 or data[1] > _HIGHEST_PROTOCOL:
        msg = f"{where} is not a pickle that Python 3 can have written (it starts with {data[:8]!r})."
        raise CheckpointFormatError(msg)
    position, run = 2, _SIMPLE_RUN.match
    while True:
        matched = run(data, position)
        if matched is not None:
            position = matched.end()
            continue
        if position >= len(data):
            raise CheckpointFormatError(f"{where} is cut off: the pickle has no end.")
        if data[position] == _STOP:
            return
        position = _audit_rare(data, position, where)


def _audit_rare(data: bytes, position: int, where: str) -> int:
    """Check one opcode that is not in the regular expression, and return where the next one starts."""
    opcode, size = data[position], len(data)
    if opcode in _REFUSED:
        msg = (
            f"{where} holds the pickle opcode {_REFUSED[opcode]}, which no checkpoint needs. It was not "
            "loaded."
        )
        raise UnsafePickleError(msg)
    if opcode in _COUNTED:
        start = position + 1 + _COUNTED[opcode]
        end = start + int.from_bytes(data[position + 1 : start], "little")
    elif opcode == ord("r"):
        end = position + 5
        _check_index(int.from_bytes(data[position + 1 : end], "little"), size, where)
    elif opcode == ord("p"):
        line, end = _line(data, position + 1, where)
        _check_index(int(line) if line.isdigit() else size, size, where)
    elif opcode == ord("c"):
        _, end = _line(data, position + 1, where)
        _, end = _line(data, end, where)
    elif opcode in _LINES:
        _, end = _line(data, position + 1, where)
    elif opcode == 0x95:
        end = position + 9
    elif opcode == 0x80:
        end = position + 2
    else:
        end = size + 1
    if end > size:
        msg = (
            f"{where} is not a whole pickle: at byte {position} of {size} stands "
            f"{data[position : position + 8]!r}."
        )
        raise CheckpointFormatError(msg)
    return end


def _check_index(index: int, size: int, where: str) -> None:
    if index >= size:
        msg = (
            f"{where} holds a pickle of {size} bytes that asks for a memo of {index} entries. No program "
            "writes that; it was not loaded."
        )
        raise UnsafePickleError(msg)


def _line(data: bytes, start: int, where: str) -> tuple[bytes, int]:
    end = data.find(b"\n", start, start + _MAX_LINE)
    if end < 0:
        raise CheckpointFormatError(f"{where} is not a whole pickle: a line at byte {start} has no end.")
    return data[start:end], end + 1
