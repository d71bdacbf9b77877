"""Full state dicts: one file of ``torch.save`` or safetensors, or several with an index."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.flatten import (
    entries_of,
    flatten_state,
    lost_containers,
    plain_objects,
)
from fsdp_migrate.checkpoint_convert.formats.safetensors_reader import read_safetensors
from fsdp_migrate.checkpoint_convert.formats.sharded_values import ShardedValue
from fsdp_migrate.checkpoint_convert.formats.torch_file import SavedFile, read_saved_file
from fsdp_migrate.checkpoint_convert.formats.torch_values import Record, describe_type
from fsdp_migrate.checkpoint_convert.sources.contents import Contents, leaf_entries
from fsdp_migrate.checkpoint_convert.sources.rank_files import rank_of
from fsdp_migrate.checkpoint_convert.sources.rank_merge import RankState, merge_findings, merge_states, settle
from fsdp_migrate.checkpoint_convert.storage.compressed import UnpackedFolder
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    UnsafePickleError,
    UnsupportedFeatureError,
)
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


INDEX_SUFFIX: Final = ".index.json"
_MAX_INDEX: Final = 256 << 20
# model-00001-of-00003.safetensors
_PIECE: Final = re.compile(
    r"^(?P<stem>.*?)[-_.](?P<number>\d{2,})-of-(?P<count>\d{2,})\.(?P<kind>safetensors|bin|pt|pth)$"
)


def read_state_file(folder: Folder, name: str, size: int) -> SavedFile:
    """Read a file of torch.save that holds a state.

    Raises:
        CheckpointFormatError: It is damaged.
        UnsafePickleError: It is one object of somebody's own class.
        UnsupportedFeatureError: It holds something else than a state.
    """
    saved = read_saved_file(folder, name, size)
    if entries_of(saved.value) is not None:
        return saved
    where = f"'{folder.url}/{name}'"
    if isinstance(saved.value, Record) and not saved.value.is_listed:
        msg = (
            f"{where} holds one object of `{saved.value.name}`, not a state dict. Nothing of it was "
            "executed. Load it in a program that has its class, and save its `state_dict()`."
        )
        raise UnsafePickleError(msg, global_name=saved.value.name)
    msg = f"{where} holds a {describe_type(saved.value)}, not a state dict."
    raise UnsupportedFeatureError(msg, feature="files without a state dict")


def saved_file_contents(folder: Folder, name: str, size: int) -> Contents:
    """Return what a single file of torch.save holds."""
    saved = read_state_file(folder, name, size)
    where = f"'{folder.url}/{name}'"
    contents = Contents("file", f"`{name}` is {describe_form(saved)}", files={name: size})
    if isinstance(folder, UnpackedFolder):
        contents.evidence += ", which was packed"
        if folder.others:
            text = f"{len(folder.others)} of them: {named(other[:60] for other in folder.others)}."
            contents.findings.append(make_finding("FM241", name, text))
    contents.torch_hint = "before 1.6, or with its format" if saved.form == "legacy" else ""
    contents.findings += plain_findings(saved.value, name)
    leaves = flatten_state(saved.value, pickle_size=saved.pickle_size, where=where)
    # A run of one rank saves sharded tensors, too; of those of more ranks the merge says what is missing.
    if any(isinstance(leaf, ShardedValue) for _, leaf in leaves.values()):
        merged = merge_states(folder, [RankState(rank_of(name) or 0, name, leaves)])
        settle(merged, folder)
        contents.entries = merged.entries
        contents.findings += merge_findings(merged, name, 1)
    else:
        contents.entries = leaf_entries(leaves, file=name, where=where)
    return contents


def plain_findings(value: object, name: str) -> list[Finding]:
    """Say which objects in a state were taken for the plain values in them, and which mappings for dicts."""
    found: list[Finding] = []
    kept = " Loading them into an existing state keeps the containers of that state."
    for code, kinds, end in (
        ("FM277", plain_objects(value), " Functions of the class are not kept."),
        ("FM286", lost_containers(value), kept),
    ):
        if kinds:
            text = ", ".join(f"{count} of `{kind}`" for kind, count in kinds.items())
            found.append(make_finding(code, name, f"{text}.{end}"))
    return found


def describe_form(saved: SavedFile) -> str:
    """Say what a file is."""
    old = " in the format before torch 1.6" if saved.form == "legacy" else ""
    return f"a file of torch.save{old}"


def safetensors_contents(folder: Folder, names: Mapping[str, int]) -> Contents:
    """Return what safetensors files hold together."""
    contents = Contents("safetensors", "")
    for name, size in names.items():
        entries, notes = read_safetensors(folder, name, size)
        for entry in entries:
            _add(contents, entry.key, name, folder)
            contents.entries[entry.key] = entry
        contents.files[name] = size
        dropped = {key: text for key, text in notes.items() if (key, text) != ("format", "pt")}
        if dropped:
            text = f"{len(dropped)} of them: {named(key[:40] for key in dropped)}."
            contents.findings.append(make_finding("FM232", name, text))
    contents.evidence = f"{_count(names)} of safetensors"
    return contents


def indexed_contents(folder: Folder, index: str, files: Mapping[str, int]) -> Contents:
    """Return what the files hold that an index lists.

    Raises:
        CheckpointNotFoundError: A file is missing.
        CheckpointFormatError: The index is damaged, or says something else than the files.
    """
    where = f"'{folder.url}/{index}'"
    weights = _read_index(folder, index, files[index], where)
    names = list(dict.fromkeys(weights.values()))
    missing = [name for name in names if name not in files]
    if missing:
        count = f"{len(missing)} of {len(names)} files are missing"
        msg = f"{where} lists `{missing[0]}`, which is not there ({count})."
        raise CheckpointNotFoundError(msg, path=f"{folder.url}/{missing[0]}")
    _check_listed(folder, index, names, files)
    contents = pieces_contents(folder, {name: files[name] for name in names})
    unlisted = [key for key in contents.entries if key not in weights]
    absent = [key for key in weights if key not in contents.entries]
    if absent:
        msg = f"{where} lists `{absent[0]}` in `{weights[absent[0]]}`, which does not hold it."
        raise CheckpointFormatError(msg, path=where.strip("'"))
    for key, entry in contents.entries.items():
        found = entry.items[0].file
        if weights.get(key, found) != found:
            msg = f"{where} lists `{key}` in `{weights[key]}`, and it is in `{found}`."
            raise CheckpointFormatError(msg, path=where.strip("'"))
    # Files can hold what their index does not list; nothing is left out for that.
    contents.evidence = f"`{index}` lists {_count(names)}"
    if unlisted:
        contents.evidence += f"; they hold {counted(len(unlisted), 'tensor')} that it does not list"
    contents.files[index] = files[index]
    return contents


def _check_listed(folder: Folder, index: str, names: Sequence[str], files: Mapping[str, int]) -> None:
    """Check that an index names every piece of the files that it lists one of.

    Raises:
        CheckpointFormatError: It leaves one out, with all that is in it.
    """
    kinds = [_kind_of_piece(name) for name in names]
    beside = [name for name in files if name not in names and _kind_of_piece(name) in {*kinds} - {None}]
    short = [kind for kind in kinds if kind is not None and kinds.count(kind) < int(kind[1])]
    if beside or short:
        lost = f"`{beside[0]}`, which is there," if beside else f"some of {short[0][1]} pieces"
        where = f"{folder.url}/{index}"
        msg = f"{where!r} lists {_count(list(names))} and leaves out {lost}: what is in them would be lost."
        raise CheckpointFormatError(msg, path=where)


def _kind_of_piece(name: str) -> tuple[str, str, str] | None:
    """Return what the name of a numbered piece has in common with those of the others."""
    match = _PIECE.match(name)
    return None if match is None else (match["stem"], match["count"], match["kind"])


def pieces_contents(folder: Folder, names: Mapping[str, int]) -> Contents:
    """Return what several files hold together, each a part of one state dict."""
    if all(name.endswith(".safetensors") for name in names):
        return safetensors_contents(folder, names)
    contents = Contents("files", f"{_count(names)} of torch.save")
    for name, size in names.items():
        saved = read_state_file(folder, name, size)
        contents.findings += plain_findings(saved.value, name)
        where = f"'{folder.url}/{name}'"
        leaves = flatten_state(saved.value, pickle_size=saved.pickle_size, where=where)
        found = leaf_entries(leaves, file=name, where=where)
        for key, entry in found.items():
            _add(contents, key, name, folder)
            contents.entries[key] = entry
        contents.files[name] = size
    return contents


def find_indexes(names: Mapping[str, int]) -> list[str]:
    """Return the indexes among the files of a folder."""
    return [name for name in names if name.endswith(INDEX_SUFFIX) and "/" not in name]


def find_pieces(folder_url: str, names: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the numbered pieces among the files of a folder, by what their names have in common.

    Raises:
        CheckpointNotFoundError: Pieces are missing.
    """
    found: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for name in names:
        match = _PIECE.match(name)
        if match and "/" not in name:
            stem = f"{match['stem']}.{match['kind']}"
            found.setdefault(stem, {})[int(match["number"])] = name
            counts[stem] = max(counts.get(stem, 0), int(match["count"]))
    for stem, pieces in found.items():
        if len(pieces) != counts[stem]:
            msg = f"{folder_url!r} holds {len(pieces)} of {counted(counts[stem], 'file')} of `{stem}`."
            raise CheckpointNotFoundError(msg, path=folder_url)
    return {stem: {pieces[n]: names[pieces[n]] for n in sorted(pieces)} for stem, pieces in found.items()}


def _add(contents: Contents, key: str, name: str, folder: Folder) -> None:
    if key in contents.entries:
        msg = f"`{key}` is in more than one file of {folder.url!r}; the second is `{name}`."
        raise CheckpointFormatError(msg, path=f"{folder.url}/{name}")


def _read_index(folder: Folder, index: str, size: int, where: str) -> dict[str, str]:
    if size > _MAX_INDEX:
        raise CheckpointFormatError(f"{where} has {size} bytes; at most {_MAX_INDEX} are read.")
    try:
        weights = json.loads(folder.read(index, 0, size))["weight_map"]
        is_map = all(isinstance(name, str) for name in weights.values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{where} is no index of weights: {type(error).__name__}: {str(error)[:100]}."
        raise CheckpointFormatError(msg, path=where.strip("'")) from error
    for name in weights.values() if is_map else ("",):
        if not name or name.startswith(("/", "\\")) or ".." in name.split("/") or "\0" in name:
            msg = f"{where} names the file {str(name)[:80]!r}, which lies outside the checkpoint."
            raise CheckpointFormatError(msg, path=where.strip("'"))
    return dict(weights)


def _count(names: Mapping[str, int] | list[str]) -> str:
    return f"{len(names)} {'file' if len(names) == 1 else 'files'}"
