"""Pickle values that the safe reader found, as torch.save would have: each class again by its name.

This is how a value out of a one-file checkpoint becomes an item of a distributed one. What comes out says
what went in said, no more: an object was kept as its class's name and its arguments, and is again written as
these. Nothing of it is imported or called, here or by any reader of ours.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_values import DTypeName, PathRecord, SizeValue
from fsdp_migrate.checkpoint_convert.formats.torch_values import (
    OrderedDictValue,
    Record,
    TensorValue,
    describe_type,
    split_name,
)
from fsdp_migrate.checkpoint_convert.manifest.boxes import row_major_strides
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.errors import UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterable


_MAX_DEPTH: Final = 200
_LONG_TEXT: Final = 16


def pickle_value(value: object, *, where: str) -> tuple[bytes, list[TensorValue]]:
    """Return the ``data.pkl`` of a value, and the tensors in it: number ``n`` is the record ``data/<n>``.

    The records hold the tensors' elements in row-major order, whatever the order was.

    Raises:
        UnsupportedFeatureError: It is nested too deeply, or holds something that no pickle was seen to hold.

    Example:
        >>> import pickle
        >>> pickle.loads(pickle_value({"lr": 0.5, "betas": (0.9, 1)}, where="an example")[0])
        {'lr': 0.5, 'betas': (0.9, 1)}
    """
    pickler = _Pickler(where)
    pickler.save(value, 0)
    # Protocol 2, as torch.save. It has no opcode for bytes: they are text for `_codecs.encode`.
    return b"\x80\x02" + b"".join(pickler.parts) + b".", pickler.tensors


class _Pickler:
    def __init__(self, where: str) -> None:
        self.parts: list[bytes] = []
        self.tensors: list[TensorValue] = []
        self._where = where
        self._memo: dict[int, int] = {}
        # Keeps every remembered object alive, so that no other gets its number.
        self._kept: list[object] = []

    def save(self, value: object, depth: int) -> None:
        """Emit the opcodes that make ``value``."""
        if depth > _MAX_DEPTH:
            raise self._refusal("is nested too deeply")
        if value is None or isinstance(value, bool | int | float):
            self.parts.append(_scalar(value))
        elif id(value) in self._memo:
            self.parts.append(b"j" + struct.pack("<I", self._memo[id(value)]))
        else:
            self._save_object(value, depth)

    def _save_object(self, value: object, depth: int) -> None:
        if isinstance(value, DTypeName):
            self._emit(_global("torch", str(value)))
        elif isinstance(value, str):
            self._emit(_text(value))
            if len(value) > _LONG_TEXT:
                self._remember(value)
        elif isinstance(value, bytes | bytearray):
            self._save_bytes(value)
        elif isinstance(value, list | dict):
            self._save_container(value, depth)
        elif isinstance(value, SizeValue):
            self._emit(_global("torch", "Size"))
            self.save(tuple(value), depth + 1)
            self._emit(b"\x85R")
            self._remember(value)
        elif isinstance(value, tuple):
            self._emit(b"(")
            self._save_all(value, depth)
            self._emit(b"t")
            self._remember(value)
        else:
            self._save_stand_in(value, depth)

    def _save_stand_in(self, value: object, depth: int) -> None:
        if isinstance(value, TensorValue):
            self._save_tensor(value)
        elif isinstance(value, PathRecord):
            self._emit(_global("pathlib", value.name))
            self.save(value.parts, depth + 1)
            self._emit(b"R")
            self._remember(value)
        elif isinstance(value, Record):
            self._save_record(value, depth)
        elif isinstance(value, type) and issubclass(value, Record):
            self._emit(_global(*split_name(value.name)))
        else:
            raise self._refusal(f"holds a {describe_type(value)}, which cannot be written")

    def _save_bytes(self, value: bytes | bytearray) -> None:
        name = "encode" if isinstance(value, bytes) else "bytearray"
        if name == "encode":
            self._emit(
                _global("_codecs", "encode"), b"(", _text(value.decode("latin1")), _text("latin1"), b"tR"
            )
        else:
            self._emit(
                _global("__builtin__", "bytearray"), b"(", _text(value.decode("latin1")), _text("latin1")
            )
            self._emit(b"tR")

    def _save_container(self, value: list[object] | dict[object, object], depth: int) -> None:
        if isinstance(value, OrderedDictValue):
            self._emit(_global("collections", "OrderedDict"), b")R")
        else:
            self._emit(b"]" if isinstance(value, list) else b"}")
        # Remembered before it is filled, because it can hold itself.
        self._remember(value)
        if not value:
            return
        self._emit(b"(")
        if isinstance(value, list):
            self._save_all(value, depth)
            self._emit(b"e")
        else:
            self._save_all((part for pair in value.items() for part in pair), depth)
            self._emit(b"u")

    def _save_record(self, record: Record, depth: int) -> None:
        self._emit(_global(*split_name(record.name)))
        self.save(record.arguments, depth + 1)
        self._emit(b"R" if record.is_called else b"\x81")
        self._remember(record)
        if record.items:
            self._emit(b"(")
            self._save_all(record.items, depth)
            self._emit(b"e")
        if record.entries:
            self._emit(b"(")
            self._save_all((part for pair in record.entries for part in pair), depth)
            self._emit(b"u")
        if record.has_state:
            self.save(record.state, depth + 1)
            self._emit(b"b")

    def _save_tensor(self, value: TensorValue) -> None:
        if value.is_parameter:
            self._emit(_global("torch._utils", "_rebuild_parameter"), b"(")
        kind = DTYPES[value.dtype]
        count = 1
        for size in value.shape:
            count *= size
        number = len(self.tensors)
        self.tensors.append(value)
        rebuild = "_rebuild_tensor_v2" if kind.storage else "_rebuild_tensor_v3"
        storage = (
            _global("torch", kind.storage) if kind.storage else _global("torch.storage", "UntypedStorage")
        )
        self._emit(_global("torch._utils", rebuild), b"((", _text("storage"), storage)
        # As in `zip_writer`: an untyped storage counts bytes.
        numel = count if kind.storage else count * kind.itemsize
        self._emit(_text(str(number)), _text("cpu"), _scalar(numel), b"tQ", _scalar(0))
        for numbers in (value.shape, row_major_strides(value.shape)):
            self._emit(b"(", *(_scalar(n) for n in numbers), b"t")
        grad = b"\x88" if value.requires_grad and not value.is_parameter else b"\x89"
        self._emit(grad, _global("collections", "OrderedDict"), b")R")
        self._emit(b"" if kind.storage else _global("torch", value.dtype))
        if value.views:
            marks = (part for name in value.views for part in (_text(name), b"\x88"))
            self._emit(b"}(", *marks, b"u")
        self._emit(b"tR")
        if value.is_parameter:
            self._emit(_scalar(value.requires_grad), _global("collections", "OrderedDict"), b")RtR")
        self._remember(value)

    def _save_all(self, values: Iterable[object], depth: int) -> None:
        for value in values:
            self.save(value, depth + 1)

    def _emit(self, *parts: bytes) -> None:
        self.parts += parts

    def _remember(self, value: object) -> None:
        number = len(self._kept)
        self._kept.append(value)
        self._memo[id(value)] = number
        self.parts.append(b"r" + struct.pack("<I", number))

    def _refusal(self, what: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(f"{self._where} {what}.", feature="writing such a value")


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def _scalar(value: float | None) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if not isinstance(value, int):
        return b"G" + struct.pack(">d", value)
    if 0 <= value < 256:
        return b"K" + struct.pack("<B", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(data) < 256:
        return b"\x8a" + struct.pack("<B", len(data)) + data
    return b"\x8b" + struct.pack("<I", len(data)) + data
