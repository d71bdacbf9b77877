"""What a checkpoint holds: entries, the chunks they are stored in, and the parts they belong to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.item_views import ItemView
    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline
    from fsdp_migrate.findings import Finding


PartKind = Literal["model", "optimizer", "other"]
Framework = Literal["torch", "composer", "lightning", "accelerate", "torchtitan", "hf"]


# Chunks and their places are named tuples, not dataclasses: a checkpoint can have millions, and they are
# made three times faster.
class StoredRecord(NamedTuple):
    """Bytes of a file with the CRC-32 that was stored with them."""

    position: int
    size: int
    crc: int


class RawElements(NamedTuple):
    """How elements lie in bytes that are no item: ``strides`` are None where they follow each other.

    Otherwise they are counted in elements, and the first one is element ``start`` of the bytes. ``record`` is
    what they are a part of, where a checksum was stored.
    """

    strides: Shape | None = None
    start: int = 0
    record: StoredRecord | None = None


class Stored(NamedTuple):
    """Where an item lies: ``length`` bytes at ``offset`` of ``file``, which is relative to the checkpoint.

    With ``raw`` these are a chunk's elements themselves. Otherwise they are an archive of torch.save, as in
    ``.distcp`` files; only those are ever written. With ``view`` the chunk is a part of the archive's tensor,
    or that tensor with other dimensions.
    """

    file: str
    offset: int
    length: int
    raw: RawElements | None = None
    view: ItemView | None = None


class Chunk(NamedTuple):
    """One box of a tensor and the item that holds it."""

    offsets: Shape
    sizes: Shape
    stored: Stored


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor: its flat key, the path that torch's planner made the key of, and its chunks.

    ``path`` is None where the checkpoint does not record it.
    """

    key: str
    path: Path | None
    dtype: str
    shape: Shape
    chunks: tuple[Chunk, ...]
    requires_grad: bool = False
    memory_format: int = 0

    @property
    def items(self) -> tuple[Stored, ...]:
        """Return where it lies."""
        return tuple([chunk.stored for chunk in self.chunks])

    @property
    def nbytes(self) -> int:
        """Return the size of the whole tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def is_float(self) -> bool:
        """Tell whether a cast of floating-point weights applies to it."""
        return DTYPES[self.dtype].is_float


@dataclass(frozen=True, slots=True)
class InlineValue:
    """A value that the safe reader found in a larger pickle; what stands for what says ``torch_values``."""

    value: object


@dataclass(frozen=True, slots=True)
class BytesEntry:
    """A value that is not a tensor, stored as one item; or ``inline``, and then ``stored`` names its file."""

    key: str
    path: Path | None
    stored: Stored
    inline: InlineValue | None = None

    @property
    def items(self) -> tuple[Stored, ...]:
        """Return where it lies."""
        return (self.stored,)


Entry = TensorEntry | BytesEntry


@dataclass(frozen=True, slots=True)
class Part:
    """A group of entries under one path: a model, an optimizer, or something else.

    ``prefix`` is the path that the entries of the part have in common. ``module_prefix`` tells that every
    parameter name in it starts with ``module.``.
    """

    kind: PartKind
    prefix: Path
    keys: tuple[str, ...]
    module_prefix: bool = False

    @property
    def name(self) -> str:
        """Return the path as text; ``(root)`` where the parameters have no common top name."""
        return ".".join(map(str, self.prefix)) or "(root)"


class GroupOutline(NamedTuple):
    """The parameters of a parameter group, and the names of its settings."""

    names: tuple[str, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NameList:
    """The parameter names that a ``params`` or ``param_groups`` item holds.

    ``labels`` are those of ``param_names``, which torch takes as the caller gave them. ``names`` is None
    where the item asks for a class outside the allow-list, and ``reason`` says which. ``groups`` are those of
    whole ``param_groups``, and ``value`` is all of these.
    """

    key: str
    names: tuple[str, ...] | None
    labels: tuple[str, ...] = ()
    reason: str | None = None
    groups: tuple[GroupOutline, ...] = ()
    value: InlineValue | None = None


Merged = tuple[str, tuple[Entry, ...]]
"""A key, and the entries that must hold the same value: one of them stands for all."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a map of parameters made of a checkpoint.

    Attributes:
        rules: All that the map says, as text: the same text makes the same of the same checkpoint.
        joined: For each tensor that several entries, or parts of one, make up: the keys of these, in order.
        merged: The entries of which one stands for all, such as the steps of the experts of a layer.
        world_size: How many ways the most divided tensor was divided before.
    """

    rules: str
    joined: Mapping[str, tuple[str, ...]]
    merged: tuple[Merged, ...]
    world_size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint is and what it holds.

    Attributes:
        source: Where it lies.
        layout: How it is laid out; ``"dcp"`` is a folder of torch.distributed.checkpoint.
        framework: Who wrote it.
        evidence: How layout and framework were recognised.
        entries: Everything it holds, by key, in the order of the file.
        files: The size of each data file that entries lie in.
        extra_files: Other files in the folder, with their sizes.
        parts: The entries by model, optimizer and the rest.
        name_lists: The parameter names that entries hold as values.
        torch_hint: The torch releases that can have written it.
        is_portable: Whether every torch from 2.6 can read its metadata.
        findings: What there is to say about it.
        stamps: What tells each of its files from one that takes its place later.
        changes: When the system noted the last change of each of its files, and how many names each has.
        seen: What was read to inspect it, here on this machine: file, offset and length, and a digest.
        outline: The model that was given with it.
        keeps_module: Whether the model's own names begin with ``module.``, which is then no prefix of DDP's.
        is_relinkable: Whether an output can share its data files; only those of distributed checkpoints.
        places: For each entry of a distributed checkpoint in a folder below: that folder, and the key there.
        added: The keys of entries that are in no file of it, and that a conversion adds.
        ties: The key of each further name of a tied parameter of a model, with the key of the first.
        mapped: What a map of parameters made of it, where one was applied.
    """

    source: str
    layout: str
    framework: Framework
    evidence: str
    entries: Mapping[str, Entry]
    files: Mapping[str, int]
    extra_files: Mapping[str, int]
    parts: tuple[Part, ...]
    name_lists: tuple[NameList, ...] = ()
    torch_hint: str = ""
    is_portable: bool = True
    findings: tuple[Finding, ...] = ()
    is_relinkable: bool = True
    stamps: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    seen: Mapping[tuple[str, int, int], bytes] = field(default_factory=dict, repr=False, compare=False)
    outline: ModelOutline | None = None
    keeps_module: bool = False
    places: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    mapped: Mapped | None = None

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """Return the tensors."""
        return tuple(e for e in self.entries.values() if isinstance(e, TensorEntry))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors)

    @property
    def world_size(self) -> int:
        """Return how many ways its most divided tensor is divided; what a map joins does not count."""
        if self.mapped is not None:
            return self.mapped.world_size
        return max((len(entry.chunks) for entry in self.tensors), default=1)

    def part_of(self) -> dict[str, Part]:
        """Return the part of each key."""
        return {key: part for part in self.parts for key in part.keys}

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "source": self.source,
            "layout": self.layout,
            "framework": self.framework,
            "evidence": self.evidence,
            "torch_hint": self.torch_hint,
            "is_portable": self.is_portable,
            "nbytes": self.nbytes,
            "world_size": self.world_size,
            "files": dict(self.files),
            "extra_files": dict(self.extra_files),
            "parts": [self._part_as_dict(part) for part in self.parts],
            "entries": [_entry_as_dict(entry) for entry in self.entries.values()],
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def _part_as_dict(self, part: Part) -> dict[str, Any]:
        entries = [self.entries[key] for key in part.keys]
        tensors = [entry for entry in entries if isinstance(entry, TensorEntry)]
        return {
            "kind": part.kind,
            "name": part.name,
            "tensors": len(tensors),
            "values": len(entries) - len(tensors),
            "nbytes": sum(entry.nbytes for entry in tensors),
            "dtypes": sorted({entry.dtype for entry in tensors}),
            "chunks": sum(len(entry.chunks) for entry in tensors),
            "whole": sum(len(entry.chunks) == 1 for entry in tensors),
            "ways": max((len(entry.chunks) for entry in tensors), default=1),
        }


def _entry_as_dict(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, BytesEntry):
        return {"key": entry.key, "kind": "value"}
    return {
        "key": entry.key,
        "kind": "tensor",
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "chunks": len(entry.chunks),
    }
