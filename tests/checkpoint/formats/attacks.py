"""Pickles that attack, opcode by opcode."""

from __future__ import annotations

from tests.checkpoint.samples import PLAIN


def short(text: str) -> bytes:
    return b"\x8c" + bytes([len(text)]) + text.encode()


def stack_global(module: str, name: str) -> bytes:
    return short(module) + short(name) + b"\x93"


PROTO = b"\x80\x04"


METADATA = (PLAIN / ".metadata").read_bytes()


MISSING = "torch.distributed.checkpoint.metadata"
