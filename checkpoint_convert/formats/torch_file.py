"""Read a file of ``torch.save`` without torch: the zip format, and the one before torch 1.6.

What comes back is inert, as ``torch_values`` says, and the elements of tensors stay where they are: every
storage is looked for once, its place held against the size of the file, and nothing of it is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.pickle_audit import CutOffError, audit_opcodes
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import Globals, load_pickle, paused_gc
from fsdp_migrate.checkpoint_convert.formats.sharded_values import SHARD_GLOBALS
from fsdp_migrate.checkpoint_convert.formats.torch_values import (
    VALUE_GLOBALS,
    Record,
    StorageRef,
    record_type,
    storage_of,
)
from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


ZIP_START: Final = b"PK\x03\x04"
# How torch pickles 0x1950A86A20F9469CFC6C, the first thing in a file before 1.6.
LEGACY_START: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_LEGACY_PROTOCOL: Final = 1001
_FIRST_WINDOW: Final = 1 << 20
_MAX_PICKLE: Final = 256 << 20
_MAX_UNLISTED: Final = 1000
_PICKLE: Final = "data.pkl"
_GLOBALS: Final[Globals] = {**VALUE_GLOBALS, **SHARD_GLOBALS}


@dataclass(frozen=True, slots=True)
class SavedFile:
    """What a file holds.

    Attributes:
        name: The file, relative to its folder.
        form: ``"zip"``, or ``"legacy"`` for the format before torch 1.6.
        value: What was saved; its storages have their places.
        pickle_size: The bytes of the pickle, which bound what can honestly be in it.
        unlisted: The classes and functions that it names and that are on no list.
    """

    name: str
    form: str
    value: object
    pickle_size: int
    unlisted: tuple[str, ...]


def is_saved_file(start: bytes) -> bool:
    """Tell whether a file that begins so can be one of torch.save."""
    return start.startswith((ZIP_START, LEGACY_START))


def read_saved_file(folder: Folder, name: str, size: int) -> SavedFile:
    """Read what a file holds, but for the elements of tensors.

    Args:
        folder: Where it lies.
        name: Its name there.
        size: Its size.

    Raises:
        CheckpointFormatError: It is damaged, or none of torch.save.
        UnsafePickleError: It attacks its reader.
        UnsupportedFeatureError: It is compressed, or of another byte order.
    """
    where = f"'{folder.url}/{name}'"
    start = folder.read(name, 0, min(size, len(LEGACY_START)))
    loader = _Loader(folder, name, size, where)
    with paused_gc():
        if start.startswith(ZIP_START):
            return loader.read_zip()
        if start == LEGACY_START:
            return loader.read_legacy()
    msg = f"{where} was not written by torch.save: it starts with {start!r}."
    raise CheckpointFormatError(msg, path=where.strip("'"))


class _Loader:
    def __init__(self, folder: Folder, name: str, size: int, where: str) -> None:
        self._folder = folder
        self._name = name
        self._size = size
        self._where = where
        self._storages: dict[str, StorageRef] = {}
        self._unlisted: dict[str, type[Record]] = {}

    def read_zip(self) -> SavedFile:
        archive = TorchZip(self._read, 0, self._size, where=self._where)
        record = archive.records.get(_PICKLE)
        if record is not None and record.size > _MAX_PICKLE:
            raise self._broken(f"its pickle has {record.size} bytes; at most {_MAX_PICKLE} are read")
        data = archive.read(_PICKLE)
        value = self._load(data)
        for storage in self._storages.values():
            name = f"data/{storage.key}"
            if storage.numel == 0 and name not in archive.records:
                storage.place = (self._name, 0, 0)
                continue
            position = archive.position(name)
            self._place(storage, position, archive.records[name].size)
            storage.crc = archive.stored_crc(name)
        return self._saved("zip", value, len(data))

    def read_legacy(self) -> SavedFile:
        # Pickles one behind the other: the magic number, the protocol, the machine, the state, the keys of
        # its storages. Then each storage in that order, with its number of elements in eight bytes before it.
        at = len(LEGACY_START)
        protocol, at = self._next_pickle(at)
        if protocol != _LEGACY_PROTOCOL:
            raise self._broken("its protocol is not 1001")
        system, at = self._next_pickle(at)
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            msg = f"{self._where} was written on a machine of another byte order; it cannot be read."
            raise UnsupportedFeatureError(msg, feature="big-endian checkpoints")
        begin = at
        value, at = self._next_pickle(at)
        pickle_size = at - begin
        storages = self._storages
        # The list of keys is read by the same loader, and could name storages of its own.
        self._storages = {}
        keys, at = self._next_pickle(at)
        if not isinstance(keys, list) or not all(type(key) is str for key in keys):
            raise self._broken("it does not list its storages")
        for key in keys:
            storage = storages.pop(key, None)
            if storage is None:
                raise self._broken(f"it stores {key[:40]!r}, which no tensor refers to")
            count = self._count(at)
            itemsize = 1 if storage.dtype is None else DTYPES[storage.dtype].itemsize
            self._place(storage, at + 8, count * itemsize)
            at += 8 + count * itemsize
        if storages:
            raise self._broken(f"it lacks {counted(len(storages), 'storage')} that tensors refer to")
        return self._saved("legacy", value, pickle_size)

    def _count(self, at: int) -> int:
        if at + 8 > self._size:
            raise self._broken("it ends before its last storage")
        count: int = struct.unpack("<q", self._read(at, 8))[0]
        return count

    def _place(self, storage: StorageRef, position: int, nbytes: int) -> None:
        itemsize = 1 if storage.dtype is None else DTYPES[storage.dtype].itemsize
        if storage.numel < 0 or nbytes < 0 or position + nbytes > self._size:
            raise self._broken(
                f"a storage of {nbytes} bytes at {position} reaches beyond its {self._size} bytes"
            )
        if storage.numel * itemsize > nbytes:
            raise self._broken(f"a storage of {storage.numel * itemsize} bytes is stored in {nbytes}")
        storage.place = (self._name, position, nbytes)

    def _next_pickle(self, at: int) -> tuple[object, int]:
        """Load the pickle at ``at``, whose length nothing tells."""
        window = _FIRST_WINDOW
        while True:
            data = self._read(at, min(window, self._size - at))
            try:
                end = audit_opcodes(data, where=self._where)
            except CutOffError:
                if len(data) < window or window >= _MAX_PICKLE:
                    raise
                # Four times as much each time: what is read again is then a third of the last window.
                window *= 4
                continue
            return self._load(data[:end]), at + end

    def _load(self, data: bytes) -> object:
        return load_pickle(data, _GLOBALS, where=self._where, persistent=self._storage, unknown=self._unknown)

    def _storage(self, pid: object) -> StorageRef:
        storage = storage_of(pid)
        known = self._storages.setdefault(storage.key, storage)
        if known.dtype != storage.dtype:
            raise TypeError("one storage of two types")
        return known

    def _unknown(self, name: str) -> type[Record]:
        if name not in self._unlisted and len(self._unlisted) >= _MAX_UNLISTED:
            msg = f"{self._where} names more than {_MAX_UNLISTED} classes. It was not loaded."
            raise UnsafePickleError(msg, global_name=name)
        return self._unlisted.setdefault(name, record_type(name, listed=False))

    def _saved(self, form: str, value: object, pickle_size: int) -> SavedFile:
        return SavedFile(self._name, form, value, pickle_size, tuple(self._unlisted))

    def _read(self, offset: int, length: int) -> bytes:
        return self._folder.read(self._name, offset, length)

    def _broken(self, what: str) -> CheckpointFormatError:
        msg = f"{self._where} is not what torch.save writes: {what}. The file is damaged or of another kind."
        return CheckpointFormatError(msg, path=self._where.strip("'"))
