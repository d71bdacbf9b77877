"""From what a source was found to hold to a :class:`Manifest`: the one way, whatever its layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE
from fsdp_migrate.checkpoint_convert.formats.dcp_items import place_tensor
from fsdp_migrate.checkpoint_convert.formats.file_names import holds_side_parts
from fsdp_migrate.checkpoint_convert.formats.flatten import flatten_state
from fsdp_migrate.checkpoint_convert.formats.sharded_values import ShardedValue
from fsdp_migrate.checkpoint_convert.formats.torch_file import read_saved_file
from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, find_parts
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import (
    BytesEntry,
    Chunk,
    Entry,
    Framework,
    InlineValue,
    Manifest,
    Stored,
    TensorEntry,
)
from fsdp_migrate.checkpoint_convert.sources.adapter_findings import truncated_adapter_findings
from fsdp_migrate.checkpoint_convert.sources.composer import composer_evidence
from fsdp_migrate.checkpoint_convert.sources.content_findings import (
    FLAT_PARAMETER,
    FLAT_PIECES,
    FLAT_PIECES_HINT,
    empty_optimizer_findings,
    form_findings,
    group_findings,
    is_fsdp1s,
    key_findings,
    no_tensor_findings,
    overwritten_findings,
)
from fsdp_migrate.checkpoint_convert.sources.equal_moments import look_for_equal_moments
from fsdp_migrate.checkpoint_convert.sources.lightning import (
    FABRICS,
    FABRICS_MODULE,
    META_FILE,
    START,
    file_evidence,
    folder_evidence,
    is_fabrics,
)
from fsdp_migrate.checkpoint_convert.sources.name_lists import read_name_lists
from fsdp_migrate.checkpoint_convert.sources.unlisted import (
    beside_findings,
    unlisted_findings,
    wrapped_names_in,
    wrapped_part_findings,
)
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


# Where what is not the same on every rank stands, by the rank.
BY_RANK: Final = "ranks"


@dataclass
class Contents:
    """What a source was found to hold, on its way to a manifest.

    Attributes:
        layout: How it is laid out.
        evidence: How that was recognised.
        torch_hint: The torch releases that can have written it.
        framework: Who wrote it, where its names tell; otherwise its entries do.
        entries: Everything it holds, by key.
        files: The size of each file that entries lie in.
        own_files: Files that hold no entry and no output gets.
        findings: What its reader has to say about it.
        places: For each entry of a distributed checkpoint in a folder below: that folder, and the key there.
        is_portable: Whether every torch from 2.6 can read its metadata.
    """

    layout: str
    evidence: str
    torch_hint: str = ""
    framework: Framework | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    own_files: frozenset[str] = frozenset()
    findings: list[Finding] = field(default_factory=list)
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    is_portable: bool = True

    @property
    def is_distributed(self) -> bool:
        """Tell whether it is a distributed checkpoint as a whole, and not one that has some as components."""
        return self.layout == "dcp"

    @property
    def is_relinkable(self) -> bool:
        """Tell whether every tensor lies in data files that another distributed checkpoint can share."""
        if self.is_distributed or not self.places:
            return self.is_distributed and META_FILE not in self.files
        return all(
            one.raw is None for e in self.entries.values() if isinstance(e, TensorEntry) for one in e.items
        )


def leaf_entries(leaves: Mapping[str, tuple[Path, object]], *, file: str, where: str) -> dict[str, Entry]:
    """Return the entries of the leaves of a state that was read from one file.

    Raises:
        CheckpointFormatError: It is damaged; see ``place_tensor``.
    """
    return {key: leaf_entry(key, path, leaf, file=file, where=where) for key, (path, leaf) in leaves.items()}


def leaf_entry(key: str, path: Path, leaf: object, *, file: str, where: str) -> Entry:
    """Return the entry of one leaf.

    Raises:
        CheckpointFormatError: It is a part of a sharded tensor, which its rank alone saved here.
    """
    if isinstance(leaf, ShardedValue):
        msg = f"{where}: `{key}` is one rank's part of a {leaf.kind}, but this is no rank's file."
        raise CheckpointFormatError(msg)
    if isinstance(leaf, TensorValue):
        stored = place_tensor(leaf, where=f"{where}: `{key}`")
        chunk = Chunk((0,) * len(leaf.shape), leaf.shape, stored)
        return TensorEntry(key, path, leaf.dtype, leaf.shape, (chunk,))
    return BytesEntry(key, path, Stored(file, 0, 0), InlineValue(leaf))


def moved_entry(entry: Entry, prefix: Path) -> Entry:
    """Return an entry under a path; what stands by rank stays so: ``ranks.1.<prefix>...``."""
    path = entry_path(entry)
    kept = 2 if path[0] == BY_RANK and len(path) > 2 else 0
    changes: dict[str, Any] = {"path": (*path[:kept], *prefix, *path[kept:])}
    changes["key"] = join_path(changes["path"])
    return replace(entry, **changes) if prefix else entry


def build_manifest(
    folder: Folder, source: str, files: Mapping[str, int], contents: Contents, options: SourceOptions
) -> Manifest:
    """Put a manifest together.

    Args:
        folder: Where the files are.
        source: What the user named.
        files: Every file there; those that hold no entry are carried along.
        contents: What they hold.
        options: How the user wants it read.
    """
    framework, evidence = _recognise_framework(contents, files, folder)
    if evidence == FABRICS:
        _take_side_parts(contents, files, folder, asked_for=options.side_parts)
    entries = contents.entries
    parts = find_parts(entries)
    name_lists = tuple(read_name_lists(folder, entries, parts))
    # Checksums are those of this folder, and no output's.
    known = contents.files.keys() | contents.own_files | {CHECKSUMS_FILE}
    extra = {name: size for name, size in files.items() if name not in known}
    refused = any(finding.fidelity == "refused" for finding in contents.findings)
    findings = [
        *contents.findings,
        *(
            overwritten_findings(entries, parts, name_lists)
            if contents.is_distributed
            else _flat_findings(contents)
        ),
        *form_findings(entries, parts),
        # What is refused was left out of the entries.
        *(() if refused else no_tensor_findings(entries)),
        *(() if refused else empty_optimizer_findings(entries, parts, name_lists)),
        *group_findings(entries, parts, name_lists, framework),
        *unlisted_findings(folder, entries, trusted=options.trust_pickle),
        *key_findings(entries),
        *truncated_adapter_findings(entries),
        *look_for_equal_moments(folder, entries, parts),
        *beside_findings(folder, extra),
        *(wrapped_part_findings(entries, parts) if holds_side_parts(contents.layout, contents.files) else ()),
    ]
    return Manifest(
        source=source,
        layout=contents.layout,
        framework=framework,
        evidence=f"{contents.evidence}; {evidence}",
        entries=entries,
        files=contents.files,
        extra_files=extra,
        parts=parts,
        name_lists=name_lists,
        torch_hint=contents.torch_hint,
        findings=tuple(findings),
        is_portable=contents.is_portable,
        is_relinkable=contents.is_relinkable,
        places=contents.places,
    )


def _recognise_framework(
    contents: Contents, files: Mapping[str, int], folder: Folder
) -> tuple[Framework, str]:
    """Say who wrote a state, and by what it was recognised."""
    if contents.framework is not None:
        return contents.framework, f"the names of {contents.layout}"
    paths = [entry_path(entry) for entry in contents.entries.values()]
    evidence = composer_evidence(paths)
    if evidence is not None:
        return "composer", evidence
    tops = {path[0] for path in paths}
    if contents.is_distributed and META_FILE in files:
        start = folder.read(META_FILE, 0, min(files[META_FILE], START))
        if is_fabrics(start):
            return "torch", FABRICS
    evidence = folder_evidence(files, tops) if contents.is_distributed else file_evidence(tops)
    return ("torch", "no framework of its own") if evidence is None else ("lightning", evidence)


def _take_side_parts(
    contents: Contents, files: Mapping[str, int], folder: Folder, *, asked_for: bool
) -> None:
    """Take what Fabric keeps beside the data as entries; unasked where FSDP1's prefixes are in its names."""
    try:
        saved = read_saved_file(folder, META_FILE, files[META_FILE])
    except (CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError):
        return  # what is said of such a file `beside_findings` says
    wrapped = wrapped_names_in(saved.value)
    # A script's own file is copied as it is; and a flat parameter in it has no name to be given.
    is_fabrics_own = any(FABRICS_MODULE in name.split(".") for name in wrapped)
    is_flat = any(FLAT_PARAMETER.search(name) for name in wrapped)
    if not (is_fabrics_own or asked_for) or is_flat or saved.unlisted or not isinstance(saved.value, dict):
        return
    where = f"'{folder.url}/{META_FILE}'"
    leaves = flatten_state(saved.value, pickle_size=saved.pickle_size, where=where)
    if leaves.keys() & contents.entries.keys():
        return
    contents.entries = {**contents.entries, **leaf_entries(leaves, file=META_FILE, where=where)}
    contents.files = {**contents.files, META_FILE: files[META_FILE]}


def _flat_findings(contents: Contents) -> Iterator[Finding]:
    """Refuse flat parameters that nothing has refused or taken apart."""
    # Those of distributed checkpoints are lost, which `overwritten_findings` says.
    own = [key for key in contents.entries if key not in contents.places]
    flat = [key for key in own if FLAT_PARAMETER.search(key)] or _rank_pieces(contents, own)
    if flat and not any(finding.code == "FM238" for finding in contents.findings):
        text = f"{len(flat)} of them, {FLAT_PIECES}."
        yield make_finding("FM238", flat[0], text, FLAT_PIECES_HINT)


def _rank_pieces(contents: Contents, keys: Sequence[str]) -> list[str]:
    """Return the parameters of FSDP1's model that are one rank's, as `use_orig_params` shows them.

    All have one dimension then, and one that lies on another rank has no elements.
    """
    tensors = [
        each for key in keys if is_fsdp1s(key) and isinstance(each := contents.entries[key], TensorEntry)
    ]
    is_pieces = all(len(each.shape) == 1 for each in tensors) and any(each.shape == (0,) for each in tensors)
    return [each.key for each in tensors] if is_pieces else []
