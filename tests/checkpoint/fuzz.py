"""Mutations of real pickles, and how they get back into files that are otherwise whole."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.zip_writer import small_archive


if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


# Opcodes and arguments that a reader could stumble over.
SNIPPETS: Final = (
    b"(",
    b")",
    b"}",
    b"]",
    b"t",
    b"u",
    b"e",
    b"a",
    b"s",
    b"b",
    b"R",
    b"N",
    b"0",
    b"1",
    b"2",
    b"l",
    b"\x94",
    b"\x81",
    b"\x85",
    b"\x86",
    b"\x87",
    b"\x88",
    b"\x89",
    b"\x8f",
    b"\x90",
    b"\x91",
    b"\x92",
    b"\x93",
    b"Q",
    b"h\x00",
    b"h\x01",
    b"h\x05",
    b"q\x00",
    b"r\xff\xff\xff\x7f",
    b"j\x00\x00\x00\x00",
    b"K\x00",
    b"M\xff\xff",
    b"J\xff\xff\xff\xff",
    b"J\x00\x00\x00\x80",
    b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
    b"\x8a\x09" + b"\x00" * 8 + b"\x01",
    b"G" + b"\x7f\xf8" + b"\x00" * 6,
    b"X\x00\x00\x00\x00",
    b"\x8c\x00",
    b"X\xff\xff\xff\xff",
    b"\x8e" + b"\xff" * 8,
    b"\x96" + b"\x00" * 7 + b"\x10",
    b"\x8a\xff" + b"\x01" * 255,
    b"I1\n",
    b"I01\n",
    b"Lx\n",
    b"F1e999\n",
    b"V\\ud800\n",
    b"S'a'\n",
    b"p0\n",
    b"g0\n",
    b"g9999999999\n",
    b"ccollections\nOrderedDict\n)R",
    b"ctorch\nSize\n",
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\x80\x05",
    b"\x80\xff",
    b"}\x94h\x00h\x00s",
    b"]\x94h\x00a",
    b".",
    b"\x85" * 200,
    b"2\x86" * 40,
    b"(" * 50,
    b"]a" * 30,
    b"}]s" * 20,
)


def mutate(data: bytes, random: Random) -> bytes:
    """Change a pickle in a few places, most often so that it is still a pickle of a kind."""
    mutated = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        at = random.randrange(2, max(len(mutated), 3))
        kind = random.randrange(8)
        if kind == 0:
            mutated[at : at + 1] = bytes([random.randrange(256)])
        elif kind == 1:
            mutated[at : at + 1] = bytes([mutated[min(at, len(mutated) - 1)] ^ 1 << random.randrange(8)])
        elif kind in (2, 3):
            mutated[at:at] = random.choice(SNIPPETS)
        elif kind == 4:
            del mutated[at : at + random.choice((1, 2, 5, 40))]
        elif kind == 5:
            other = random.randrange(2, max(len(mutated), 3))
            mutated[at:at] = mutated[other : other + random.choice((1, 2, 9, 80))]
        elif kind == 6:
            # A number becomes another, where one stands.
            digits = random.choice((b"\x00", b"\xff", b"\x7f", b"\x80"))
            mutated[at : at + 2] = digits * 2
        else:
            del mutated[at:]
            mutated += random.choice((b"", b".", b"t.", b"u.", b"ub."))
    return bytes(mutated)


def records_of(archive: bytes) -> dict[str, bytes]:
    """Return the records of an archive of torch.save, in their order."""
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        return {name.partition("/")[2]: file.read(name) for name in file.namelist()}


def with_pickle(archive: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return an archive of torch.save with another pickle in it, and right checksums."""
    records = records_of(archive)
    return small_archive({**records, "data.pkl": change(records["data.pkl"])})


def legacy_with_pickle(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a file in the format before torch 1.6 with another pickle in it."""
    import pickletools

    ends, at = [], 0
    for _ in range(4):
        for opcode, _argument, position in pickletools.genops(data[at:]):
            if opcode.name == "STOP":
                at += (position or 0) + 1
                ends.append(at)
                break
    return data[: ends[2]] + change(data[ends[2] : ends[3]]) + data[ends[3] :]


def safetensors_with_header(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a safetensors file with another header in it."""
    (length,) = struct.unpack("<Q", data[:8])
    header = change(data[8 : 8 + length])
    return struct.pack("<Q", len(header)) + header + data[8 + length :]
