"""The bytes of an output that are made in memory: changed values, and the files that say what the rest is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.execution.placement import FileRecords, NewValues
from fsdp_migrate.checkpoint_convert.formats.dcp_items import open_value, streamed_records
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_reader import read_metadata
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_writer import write_metadata
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.formats.pickle_strings import replace_strings
from fsdp_migrate.checkpoint_convert.formats.safetensors_writer import INDEX_FILE
from fsdp_migrate.checkpoint_convert.formats.unflatten import build_nested, pick_value, read_value
from fsdp_migrate.checkpoint_convert.formats.zip_writer import small_archive
from fsdp_migrate.checkpoint_convert.manifest.manifest import InlineValue, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedValue


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.execution.placement import Placement, ValueKey
    from fsdp_migrate.checkpoint_convert.outputs.output import Output
    from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_MAX_READ_AGAIN: Final = 100_000


def closing_files(plan: ConversionPlan, placement: Placement, output: Output) -> dict[str, bytes]:
    """Return what is written last, and says what the rest is: metadata, read again, or an index."""
    if not plan.is_distributed:
        return {**plan.model_files, **({} if placement.index is None else {INDEX_FILE: placement.index})}
    sizes = {new: plan.manifest.files[old] for old, new in placement.taken.items()}
    for name, items in placement.files.items():
        sizes[name] = sum(item.length for item in items)
    found: dict[str, bytes] = {}
    for folder, entries in placement.volumes.items():
        start = f"{folder}/" if folder else ""
        data = write_metadata(entries, checkpoint_id=f"{output.checkpoint_id}/{folder}".rstrip("/"))
        own = {name.removeprefix(start): size for name, size in sizes.items() if name.startswith(start)}
        # Of very many chunks this would take as long as the rest, and as much memory again.
        if sum(len(entry.chunks) for entry in entries if isinstance(entry, TensorEntry)) <= _MAX_READ_AGAIN:
            read = read_metadata(data, own, where=f"{output.url}/{start}{METADATA_FILE}")
            if tuple(read.entries.values()) != entries:
                raise AssertionError("The metadata that was written does not say what was planned.")
        found[f"{start}{METADATA_FILE}"] = data
    return found


def new_values(plan: ConversionPlan, source: Folder) -> NewValues:
    """Return the bytes of what changes, or is no item yet, and the records of the files beside the data."""
    values: dict[ValueKey, bytes] = {}
    files: dict[str, FileRecords] = {}
    for entry in plan.entries:
        if isinstance(entry, PlannedValue) and entry.is_new:
            values[entry.folder, entry.key] = _new_value(entry, source)
    for file in plan.files:
        nested, streamed = build_nested(file, source)
        records, later = streamed_records(source, nested, streamed, where=f"`{file.name}`")
        files[file.name] = {**records, **{name: streamed[id(value)] for name, value in later.items()}}
    return NewValues(values, files)


def rewritten_value(entry: PlannedValue, source: Folder) -> bytes:
    """Return a value as a new archive, of nothing but what the safe reader found in the old one.

    Raises:
        UnsafePickleError: It names a class outside the allow-list.
        CheckpointFormatError: It is damaged.
    """
    stored, where = entry.source, f"`{entry.source.key}` in {source.url!r}"
    found = read_value(source, stored, where=where)
    inline = InlineValue(pick_value(found, entry.pick, where=where))
    return _new_value(replace(entry, source=replace(stored, inline=inline), pick=()), source)


def _new_value(entry: PlannedValue, source: Folder) -> bytes:
    where = f"`{entry.source.key}` in {source.url!r}"
    stored = entry.source
    if entry.pick:
        found = pick_value(read_value(source, stored, where=where), entry.pick, where=where)
        stored = replace(stored, inline=InlineValue(found))
    archive = open_value(source, stored, where=where)
    # Only texts in the pickle change: tensors in it, and objects of classes on no list, keep their bytes.
    contents = {name: archive.read(name) for name in archive.records}
    contents["data.pkl"] = replace_strings(contents["data.pkl"], entry.names, where=where)
    return small_archive(contents)
