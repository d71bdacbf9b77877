"""The items of ``.distcp`` files: one archive of torch.save per chunk of a tensor, or per other value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.pickle_writer import pickle_value
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import check_record
from fsdp_migrate.checkpoint_convert.formats.strided_reader import StridedReader
from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue, find_unlisted, load_value
from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip
from fsdp_migrate.checkpoint_convert.formats.zip_writer import FIXED_RECORDS, small_archive
from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape, row_major_strides
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.manifest.item_views import ItemView, viewed_elements
from fsdp_migrate.checkpoint_convert.manifest.manifest import RawElements, Stored, StoredRecord
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Collection

    from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_PICKLE: Final = "data.pkl"
_MAX_PICKLE: Final = 256 << 20
_MAX_INLINE: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class TensorBytes:
    """Where the elements of a stored tensor lie: ``nbytes`` at ``position`` of ``file``.

    ``strides`` and ``start`` are None and 0 where the elements follow each other in row-major order.
    ``record`` is what they are a part of, where a checksum was stored.
    """

    file: str
    position: int
    nbytes: int
    dtype: str
    shape: Shape
    strides: Shape | None
    start: int
    record: StoredRecord | None


def open_item(folder: Folder, stored: Stored, *, where: str) -> TorchZip:
    """Open the archive of an item.

    Raises:
        CheckpointFormatError: It is not such an archive.
    """
    return TorchZip(
        lambda offset, length: folder.read(stored.file, offset, length),
        stored.offset,
        stored.length,
        where=where,
    )


def open_value(folder: Folder, entry: BytesEntry, *, where: str) -> TorchZip:
    """Open the archive of a value; for one that is inline it is made, in memory.

    Raises:
        CheckpointFormatError: It is damaged.
        UnsupportedFeatureError: An inline value cannot be written, or is too large for memory.
    """
    if entry.inline is None:
        return open_item(folder, entry.stored, where=where)
    data = small_archive(value_records(folder, entry.inline.value, where=where))
    return TorchZip(lambda start, count: data[start : start + count], 0, len(data), where=where)


def value_records(folder: Folder, value: object, *, where: str) -> dict[str, bytes]:
    """Return the records of the archive of a value, by name.

    Raises:
        UnsupportedFeatureError: It cannot be written, or is too large for memory.
    """
    records, _ = streamed_records(folder, value, {}, where=where)
    return records


def streamed_records(
    folder: Folder, value: object, streamed: Collection[int], *, where: str
) -> tuple[dict[str, bytes], dict[str, TensorValue]]:
    """Return the records of the archive of a value that are read at once, and those that are not.

    Args:
        folder: Where the elements of the tensors in it lie.
        value: The value.
        streamed: The identities (``id``) of the tensors in it whose elements come later: they are empty here.
        where: The file and entry, for messages.

    Raises:
        UnsupportedFeatureError: It cannot be written, or the rest is too large for memory.
    """
    pickled, tensors = pickle_value(value, where=where)
    nbytes = sum(math.prod(t.shape) * DTYPES[t.dtype].itemsize for t in tensors if id(t) not in streamed)
    if nbytes > _MAX_INLINE:
        msg = f"{where} is no tensor, and holds {nbytes} bytes of tensors; at most {_MAX_INLINE} are carried."
        raise UnsupportedFeatureError(msg, feature="values with large tensors in them")
    records = {"data.pkl": pickled, **FIXED_RECORDS}
    later: dict[str, TensorValue] = {}
    for number, tensor in enumerate(tensors):
        name = f"data/{number}"
        if id(tensor) in streamed:
            later[name] = tensor
        records[name] = b"" if id(tensor) in streamed else _read_tensor(folder, tensor, where)
    records["version"] = b"3\n"
    return records, later


def _read_tensor(folder: Folder, value: TensorValue, where: str) -> bytes:
    stored = place_tensor(value, where=where, takes_views=True)
    itemsize = DTYPES[value.dtype].itemsize
    if stored.length and value.storage.record is not None:
        check_record(folder, stored.file, value.storage.record)
    if stored.raw is None or stored.raw.strides is None:
        return folder.read(stored.file, stored.offset, stored.length)
    reader = StridedReader(folder, stored.file, stored.offset, itemsize, stored.raw.strides)
    data: bytes = reader.read(stored.raw.start, value.shape).tobytes()
    return data


def _refuse_views(value: TensorValue, where: str) -> None:
    """Refuse a tensor whose elements are not what is stored: a conjugated or negated view."""
    if value.views:
        msg = f"{where} is a {' and '.join(value.views)} view. Save `tensor.resolve_conj().resolve_neg()`."
        raise UnsupportedFeatureError(msg, feature="conjugated and negated views")


def place_tensor(value: TensorValue, *, where: str, takes_views: bool = False) -> Stored:
    """Return where the elements of a tensor lie whose storage has its place in a file.

    Args:
        value: The tensor.
        where: The file and entry, for messages.
        takes_views: Whether it may be a view that is still to be conjugated or negated.

    Raises:
        UnsupportedFeatureError: It is such a view, and may not be.
        CheckpointFormatError: Shape, strides and stored bytes do not fit.
    """
    if value.storage.place is None:
        raise AssertionError(f"{where}: the storage was never looked for")
    if not takes_views:
        _refuse_views(value, where)
    file, position, size = value.storage.place
    itemsize = DTYPES[value.dtype].itemsize
    count = math.prod(value.shape)
    if count == 0:
        return Stored(file, position, 0, RawElements())
    last = value.start + sum((n - 1) * s for n, s in zip(value.shape, value.strides, strict=True))
    # `count` too: with strides of 0 the last element of an expanded tensor is near, however many there are.
    if max(last + 1, count) * itemsize > size:
        is_expanded = any(n > 1 and s == 0 for n, s in zip(value.shape, value.strides, strict=True))
        reason = (
            "The tensor was expanded and not copied, which is not read: a small file could ask for any size. "
            "Save it again with `.contiguous()`."
            if is_expanded
            else "The file is damaged."
        )
        msg = (
            f"{where}: a {value.dtype} tensor of shape {list(value.shape)} and strides {list(value.strides)} "
            f"needs {max(last + 1, count) * itemsize} bytes, and {size} are stored. {reason}"
        )
        raise CheckpointFormatError(msg)
    if _is_row_major(value.shape, value.strides):
        raw = RawElements(record=value.storage.record)
        return Stored(file, position + value.start * itemsize, count * itemsize, raw)
    return Stored(file, position, size, RawElements(value.strides, value.start, value.storage.record))


def load_item(archive: TorchZip) -> object:
    """Read the value of an item; tensors in it stay descriptions.

    Raises:
        UnsafePickleError: It names a class outside the allow-list.
        CheckpointFormatError: It is damaged.
    """
    return load_value(_read_pickle(archive), where=archive.where)


def asked_for(archive: TorchZip) -> list[str]:
    """Return the classes and functions outside the allow-list that the value of an item names.

    Raises:
        UnsafePickleError: It attacks its reader.
        CheckpointFormatError: It is damaged.
    """
    return find_unlisted(_read_pickle(archive), where=archive.where)


def _read_pickle(archive: TorchZip) -> bytes:
    record = archive.records.get(_PICKLE)
    if record is not None and record.size > _MAX_PICKLE:
        msg = f"{archive.where} holds a pickle of {record.size} bytes; at most {_MAX_PICKLE} are read."
        raise CheckpointFormatError(msg)
    return archive.read(_PICKLE)


def locate_tensor(folder: Folder, stored: Stored, *, where: str) -> TensorBytes:
    """Find the bytes of a stored tensor, or of a view of it, without reading them.

    Raises:
        CheckpointFormatError: The item is damaged, or holds something else than a tensor, or one of another
            shape than the view is of.
    """
    found = tensor_in(open_item(folder, stored, where=where), stored.file)
    return found if stored.view is None else _viewed(found, stored.view, where)


def _viewed(found: TensorBytes, view: ItemView, where: str) -> TensorBytes:
    if found.shape != view.shape:
        msg = (
            f"{where}: the metadata says shape {list(view.shape)}, and the item has {list(found.shape)}. The "
            "files are not of the same save."
        )
        raise CheckpointFormatError(msg)
    strides, start = viewed_elements(view, found.strides, found.start)
    if strides is not None:
        return replace(found, shape=view.sizes, strides=strides, start=start)
    itemsize = DTYPES[found.dtype].itemsize
    return replace(
        found,
        position=found.position + start * itemsize,
        nbytes=math.prod(view.sizes) * itemsize,
        shape=view.sizes,
        strides=None,
        start=0,
    )


def tensor_in(archive: TorchZip, file: str) -> TensorBytes:
    """Find the bytes of the tensor that an archive holds, without reading them.

    Raises:
        CheckpointFormatError: It is damaged, or holds something else than a tensor.
    """
    value = load_item(archive)
    if not isinstance(value, TensorValue):
        msg = f"{archive.where} should hold a tensor, and holds something else ({type(value).__name__})."
        raise CheckpointFormatError(msg)
    _refuse_views(value, archive.where)
    return tensor_bytes(archive, value, file)


def tensor_bytes(archive: TorchZip, value: TensorValue, file: str) -> TensorBytes:
    """Find the bytes that a tensor in an archive looks at, and check that it looks at nothing else.

    Raises:
        CheckpointFormatError: Shape, strides and stored bytes do not fit.
    """
    itemsize = DTYPES[value.dtype].itemsize
    count = math.prod(value.shape)
    name = f"data/{value.storage.key}"
    if count == 0:
        return TensorBytes(file, 0, 0, value.dtype, value.shape, None, 0, None)
    position = archive.position(name)
    record = archive.records[name]
    last = value.start + sum((n - 1) * s for n, s in zip(value.shape, value.strides, strict=True))
    if max(last + 1, count) * itemsize > record.size or record.size % itemsize:
        msg = (
            f"{archive.where}: a {value.dtype} tensor of shape {list(value.shape)} needs "
            f"{max(last + 1, count) * itemsize} bytes, and {record.size} are stored. The file is damaged."
        )
        raise CheckpointFormatError(msg)
    crc = archive.stored_crc(name)
    is_plain = _is_row_major(value.shape, value.strides)
    begin = position + value.start * itemsize if is_plain else position
    return TensorBytes(
        file=file,
        position=begin,
        nbytes=count * itemsize if is_plain else record.size,
        dtype=value.dtype,
        shape=value.shape,
        strides=None if is_plain else value.strides,
        start=0 if is_plain else value.start,
        record=None if crc is None else StoredRecord(position, record.size, crc),
    )


def _is_row_major(shape: Shape, strides: Shape) -> bool:
    """Tell whether elements follow each other; strides of dimensions of one element mean nothing."""
    expected = row_major_strides(shape)
    return all(n == 1 or s == e for n, s, e in zip(shape, strides, expected, strict=True))
