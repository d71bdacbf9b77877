"""Read values out of a source as inert objects, and put nested states together from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fsdp_migrate.checkpoint_convert.formats.dcp_items import load_item, locate_tensor, open_item
from fsdp_migrate.checkpoint_convert.formats.flatten import NumberKey
from fsdp_migrate.checkpoint_convert.formats.stored_checksums import check_record
from fsdp_migrate.checkpoint_convert.formats.torch_values import Record, StorageRef, TensorValue
from fsdp_migrate.checkpoint_convert.manifest.boxes import row_major_strides
from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, InlineValue, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor, PlannedValue
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedFile
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


def read_value(folder: Folder, entry: Entry, *, where: str) -> object:
    """Return the value of an entry; tensors in it are descriptions that know where their bytes lie.

    Raises:
        UnsafePickleError: It names a class outside the allow-list.
        CheckpointFormatError: It is damaged.
        UnsupportedFeatureError: It is a tensor in several pieces.
    """
    if isinstance(entry, TensorEntry):
        return _read_tensor(folder, entry, where)
    if entry.inline is not None:
        return entry.inline.value
    archive = open_item(folder, entry.stored, where=where)
    value = load_item(archive)
    for tensor in _tensors_in(value):
        name = f"data/{tensor.storage.key}"
        size = archive.records[name].size if name in archive.records else 0
        tensor.storage.place = (entry.stored.file, archive.position(name) if size else 0, size)
        tensor.storage.crc = archive.stored_crc(name) if size else None
    return value


def pick_value(value: object, pick: Path, *, where: str) -> object:
    """Return the part of a value at some indexes and keys.

    Raises:
        CheckpointFormatError: There is no such part.

    Example:
        >>> pick_value([{"lr": 0.5}], (0, "lr"), where="an example")
        0.5
    """
    found: Any = value
    try:
        for step in pick:
            found = found[step]
    except (LookupError, TypeError) as error:
        raise CheckpointFormatError(f"{where} holds nothing at {list(pick)}.") from error
    return found


def build_nested(file: PlannedFile, folder: Folder) -> tuple[dict[object, object], dict[int, PlannedTensor]]:
    """Return the state that a planned file holds, and by its identity each tensor in it that is streamed."""
    leaves: list[tuple[Path, object]] = [(path, []) for path in file.lists]
    streamed: dict[int, PlannedTensor] = {}
    for path, leaf in file.leaves:
        if isinstance(leaf, InlineValue):
            leaves.append((path, leaf.value))
        elif isinstance(leaf, PlannedTensor):
            shape = leaf.source.shape
            storage = StorageRef(leaf.dtype, "", math.prod(shape))
            tensor = TensorValue(leaf.dtype, shape, row_major_strides(shape), 0, storage)
            streamed[id(tensor)] = leaf
            leaves.append((path, tensor))
        else:
            entry = leaf.source if isinstance(leaf, PlannedValue) else leaf
            where = f"`{entry.key}` in {folder.url!r}"
            value = read_value(folder, entry, where=where)
            if isinstance(leaf, PlannedValue):
                value = _with_names(pick_value(value, leaf.pick, where=where), leaf.names)
            leaves.append((path, value))
    return nest(leaves), streamed


def _with_names(value: object, names: Mapping[str, str]) -> object:
    """Return a value of lists and mappings with other names in it."""
    if not names:
        return value
    if isinstance(value, str):
        return names.get(value, value)
    if type(value) is list or type(value) is tuple:
        return type(value)(_with_names(item, names) for item in value)
    if isinstance(value, dict):
        made = type(value)()
        made.update({_with_names(key, names): _with_names(item, names) for key, item in value.items()})
        return made
    return value


def nest(leaves: Iterable[tuple[Path, object]]) -> dict[object, object]:
    """Put leaves together by their paths, numbers in which are places in lists.

    A key that was a number in a mapping is one again.

    Example:
        >>> nest([(("a", 0, "x"), 1), (("a", 1, "x"), 2), (("b",), [3])])
        {'a': [{'x': 1}, {'x': 2}], 'b': [3]}
    """
    root: dict[object, object] = {}
    for path, leaf in leaves:
        at = root
        for step in path[:-1]:
            at = at.setdefault(step, {})  # type: ignore[assignment]  # a leaf above a leaf is refused below
            if not isinstance(at, dict):
                raise CheckpointFormatError(f"`{'.'.join(map(str, path))}` lies below a value of its own.")
        at[path[-1]] = leaf
    found = _with_lists(root)
    return found if isinstance(found, dict) else dict(enumerate(found))


def _with_lists(value: dict[object, object]) -> dict[object, object] | list[object]:
    made = {key: _with_lists(item) if type(item) is dict else item for key, item in value.items()}
    # Integers are places in lists. A mapping's keys that were numbers are `NumberKey`, which is text.
    if made and all(type(key) is int for key in made):
        return [made[key] for key in sorted(made)]  # type: ignore[type-var]  # all are numbers
    return {key.key if isinstance(key, NumberKey) else key: item for key, item in made.items()}


def _read_tensor(folder: Folder, entry: TensorEntry, where: str) -> TensorValue:
    if len(entry.chunks) != 1:
        msg = f"{where} is stored in {len(entry.chunks)} pieces, and a file beside the data takes whole ones."
        raise UnsupportedFeatureError(msg, feature="sharded tensors in a file beside the data")
    stored = entry.chunks[0].stored
    if stored.raw is None:
        found = locate_tensor(folder, stored, where=where)
        place, strides, start = (found.file, found.position, found.nbytes), found.strides, found.start
        record = found.record
    else:
        place, strides, start, record = (
            (stored.file, stored.offset, stored.length),
            *stored.raw,
        )
    storage = StorageRef(entry.dtype, "0", place[2])
    storage.place = place
    if record is not None and place[2]:
        check_record(folder, place[0], record)
    return TensorValue(entry.dtype, entry.shape, strides or row_major_strides(entry.shape), start, storage)


def _tensors_in(value: object) -> Iterator[TensorValue]:
    seen: set[int] = set()
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, TensorValue):
            yield item
        if not isinstance(item, list | tuple | dict | Record) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Record):
            pending += [item.arguments, item.state, item.items, item.entries]
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        else:
            pending += item
