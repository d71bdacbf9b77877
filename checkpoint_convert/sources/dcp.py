"""Folders of torch.distributed.checkpoint: from ``.metadata`` to a :class:`Manifest`."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE
from fsdp_migrate.checkpoint_convert.formats.dcp_items import load_item, open_value
from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_reader import (
    METADATA_FILE,
    MetadataFile,
    read_metadata,
)
from fsdp_migrate.checkpoint_convert.manifest.classify import (
    entry_path,
    find_parts,
    is_flattened,
    parameter_name,
    with_bare_paths,
)
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    BytesEntry,
    Entry,
    GroupOutline,
    Manifest,
    NameList,
    Part,
    Stack,
    Stored,
    TensorEntry,
)
from fsdp_migrate.checkpoint_convert.sources.composer import composer_evidence
from fsdp_migrate.checkpoint_convert.sources.lightning import lightning_evidence
from fsdp_migrate.checkpoint_convert.storage.folders import is_url, refuse_links
from fsdp_migrate.errors import CheckpointFormatError, CheckpointReadError, UnsafePickleError
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


FLAT_PARAMETER: Final = re.compile(r"(^|\.)_?flat_param(_\d+)?(\.|$)")
_PARAMS: Final = "params"
_LABELS: Final = "param_names"
# torch.nn.modules.batchnorm._NormBase: what it counts in each forward.
_BY_RANK: Final = (".running_mean", ".running_var")
_MAX_METADATA: Final = 1 << 30
_ZIP_START: Final = b"PK\x03\x04"
_FIRST_OF_REMOTE: Final = 16
# Checksums are those of this folder, and no output's.
_OWN: Final = frozenset({METADATA_FILE, CHECKSUMS_FILE})


def inspect_dcp(folder: Folder, files: Mapping[str, int]) -> Manifest:
    """Read what a folder of torch.distributed.checkpoint holds; data files are opened, not read.

    What its values ask for is another matter: see ``unlisted``.

    Raises:
        CheckpointFormatError: It is damaged, or does not fit its files.
    """
    where = f"{folder.url}/{METADATA_FILE}"
    if METADATA_FILE not in files:
        msg = (
            f"{where!r} is there, but is not listed among the {len(files)} files of its folder: somebody is "
            "writing or removing the checkpoint, or the service's lists lag behind. Try again in a minute."
        )
        raise CheckpointReadError(msg, path=where)
    size = files[METADATA_FILE]
    if size > _MAX_METADATA:
        msg = (
            f"{where!r} has {size} bytes; at most {_MAX_METADATA} are read, which is that of several million "
            "chunks. The file is damaged, or something else."
        )
        raise CheckpointFormatError(msg, path=where)
    data = folder.read(METADATA_FILE, 0, size)
    metadata = read_metadata(data, files, where=where)
    entries = with_bare_paths(metadata.entries)
    used = _used_files(entries, files)
    _check_files(folder, used, entries)
    parts = find_parts(entries)
    name_lists = tuple(read_name_lists(folder, entries, parts))
    evidence = composer_evidence(entry_path(entry) for entry in entries.values())
    stack: Stack = "torch" if evidence is None else "composer"
    if evidence is None:
        evidence = lightning_evidence(files, {entry_path(e)[0] for e in entries.values()})
        stack = "torch" if evidence is None else "lightning"
    extra = {n: size for n, size in files.items() if n not in used and n not in _OWN}
    return Manifest(
        source=folder.url,
        layout="dcp",
        stack=stack,
        evidence=f"`.metadata` of torch.distributed.checkpoint; {evidence or 'no framework of its own'}",
        entries=entries,
        files=used,
        extra_files=extra,
        parts=parts,
        name_lists=name_lists,
        torch_hint=_torch_hint(metadata),
        is_portable=_is_portable(metadata),
        has_paths=metadata.has_paths,
        version=metadata.version,
        save_id=metadata.save_id,
        findings=tuple(content_findings(entries, parts, name_lists, is_distributed=True)),
    )


def _used_files(entries: Mapping[str, Entry], files: Mapping[str, int]) -> dict[str, int]:
    used = {stored.file for entry in entries.values() for stored in _stored(entry)}
    return {name: files[name] for name in sorted(used)}


def _stored(entry: Entry) -> list[Stored]:
    if isinstance(entry, BytesEntry):
        return [entry.stored]
    return [chunk.stored for chunk in entry.chunks]


def _check_files(folder: Folder, used: Mapping[str, int], entries: Mapping[str, Entry]) -> None:
    """Check that no data file leads out of the folder, and that the first item of each is an archive.

    Of a service each file takes a request. Some of them show another format, and whoever reads the rest
    notices.
    """
    refuse_links(folder, [METADATA_FILE, *used])
    first: dict[str, Stored] = {}
    for entry in entries.values():
        for stored in _stored(entry):
            first.setdefault(stored.file, stored)
    most = _FIRST_OF_REMOTE if is_url(folder.url) else len(first)
    for name, stored in itertools.islice(first.items(), most):
        start = folder.read(name, stored.offset, min(4, stored.length))
        if start != _ZIP_START:
            msg = (
                f"`{name}` in {folder.url!r} holds {start!r} at byte {stored.offset}, expected an item of "
                "torch.save. The file is damaged, or was written in another serialization format."
            )
            raise CheckpointFormatError(msg, path=f"{folder.url}/{name}")


def read_name_lists(
    folder: Folder, entries: Mapping[str, Entry], parts: Sequence[Part]
) -> Iterator[NameList]:
    """Read the entries of optimizers that hold parameter names as values."""
    for part in parts:
        if part.kind != "optimizer":
            continue
        for key in part.keys:
            entry = entries[key]
            below = entry_path(entry)[len(part.prefix) :]
            is_whole = below == ("param_groups",)
            is_field = len(below) == 3 and below[2] in (_PARAMS, _LABELS) and below[0] == "param_groups"
            if isinstance(entry, BytesEntry) and (is_whole or is_field):
                yield _name_list(folder, entry)


def _name_list(folder: Folder, entry: BytesEntry) -> NameList:
    where = f"`{entry.key}` in {folder.url!r}"
    try:
        value = load_item(open_value(folder, entry, where=where))
    except UnsafePickleError as error:
        reason = error.global_name or "an opcode that is not allowed"
        return NameList(entry.key, None, reason=reason)
    if entry_path(entry)[-1] == _LABELS:
        return NameList(entry.key, (), tuple(_names_in(value, _LABELS)))
    return NameList(
        entry.key,
        tuple(_names_in(value, _PARAMS)),
        tuple(_labels_in(value)),
        groups=tuple(_groups_in(value)),
    )


def _groups_in(value: object) -> Iterator[GroupOutline]:
    """Yield what whole parameter groups consist of."""
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, dict):
            yield GroupOutline(tuple(_names_in(item.get(_PARAMS), _PARAMS)), tuple(map(str, item)))


def _names_in(value: object, field: str) -> Iterator[str]:
    """Yield the names in a list of them, or in ``field`` of whole parameter groups; numbers as text."""
    for item in value if isinstance(value, list | tuple) else ():
        # No deeper: a group can hold itself.
        names = item.get(field) if isinstance(item, dict) else [item]
        for name in names if isinstance(names, list | tuple) else ():
            if isinstance(name, str | int):
                yield str(name)


def _labels_in(value: object) -> Iterator[str]:
    """Yield the labels in whole parameter groups."""
    for item in value if isinstance(value, list | tuple) else ():
        if isinstance(item, dict):
            yield from _names_in(item.get(_LABELS), _LABELS)


def _torch_hint(metadata: MetadataFile) -> str:
    """Say which torch releases write metadata like this."""
    if 6 in metadata.property_sizes:
        return "2.15 or later"
    if metadata.version is not None:
        return "2.9 to 2.14"
    if metadata.has_modules:
        return "2.7 or 2.8"
    return "2.4 to 2.6" if metadata.has_storage_meta else "2.1 to 2.3"


def _is_portable(metadata: MetadataFile) -> bool:
    # torch 2.6 to 2.14 unpack 5 fields: "too many values to unpack (expected 5)".
    return metadata.property_sizes <= {5}


def content_findings(
    entries: Mapping[str, Entry],
    parts: Sequence[Part],
    name_lists: Sequence[NameList],
    *,
    is_distributed: bool,
) -> Iterator[Finding]:
    """Say what there is to say about the entries of a source; only distributed ones lost what is numbered."""
    flat = [key for key in entries if FLAT_PARAMETER.search(key)]
    if flat and is_distributed:
        yield make_finding(
            "FM223",
            flat[0],
            f"{counted(len(flat), 'flat parameter')}, as LOCAL_STATE_DICT saves them: their names, "
            "shapes and padding are not in the checkpoint, and plain slices of different ranks overwrote "
            "each other.",
            "Load it with the FSDP1 model that saved it, and save that with SHARDED_STATE_DICT.",
        )
    models = {
        name
        for part in parts
        if part.kind == "model"
        for key in part.keys
        if (name := parameter_name(part, entry_path(entries[key])))
    }
    if is_distributed:
        yield from _buffer_findings(entries, parts)
    lists = {names.key: names for names in name_lists}
    for part in parts:
        if part.kind == "optimizer":
            yield from _optimizer_findings(part, entries, models, lists, is_distributed=is_distributed)


def _buffer_findings(entries: Mapping[str, Entry], parts: Sequence[Part]) -> Iterator[Finding]:
    """Say of the statistics of BatchNorm that FSDP1 kept them by rank, and torch saves those of one."""
    for part in parts:
        keys = [key for key in part.keys if part.kind == "model" and key.endswith(_BY_RANK)]
        if keys:
            yield make_finding(
                "FM289",
                keys[0],
                f"{len(keys)} of them. FSDP1 does not average them over ranks, and "
                "torch.distributed.checkpoint keeps one of several equal names.",
                "A resumed FSDP1 run would have started from the same. Use SyncBatchNorm where ranks should "
                "agree.",
            )


def _optimizer_findings(
    part: Part,
    entries: Mapping[str, Entry],
    models: set[str],
    lists: Mapping[str, NameList],
    *,
    is_distributed: bool,
) -> Iterator[Finding]:
    paths = {key: entry_path(entries[key]) for key in part.keys}
    states = {
        name
        for key, path in paths.items()
        if isinstance(entries[key], TensorEntry) and (name := parameter_name(part, path))
    }
    listed = {n for key in part.keys if key in lists for n in lists[key].names or ()}
    numbers = {name for name in states or listed if name.isdigit()}
    is_numbered = bool(numbers) and numbers == (states or listed) and not numbers <= models
    if is_numbered and is_distributed:
        yield make_finding(
            "FM222",
            part.name,
            "its state is kept by parameter number, as `optimizer.state_dict()` gives it. Every rank's "
            "own piece then has the same key, and torch.distributed.checkpoint keeps one of them: the "
            "others are lost.",
            "Save it with FSDP.optim_state_dict or "
            "torch.distributed.checkpoint.state_dict.get_state_dict, or convert with "
            "`weights_only` (--weights-only).",
        )
    if any(path[len(part.prefix) :] == ("param_groups",) for path in paths.values()):
        yield make_finding("FM215", part.name, "saved by torch 2.3 or earlier.")
    if any(is_flattened(part, path) for path in paths.values()):
        yield make_finding(
            "FM216",
            part.name,
            "saved with `flatten_optimizer_state_dict=True`.",
            "Load it with the same option.",
        )
