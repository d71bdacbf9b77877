"""Which names of a model are one parameter: told by the model, by the files, or by the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, group_names, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_BLOCK: Final = 8 << 20


def find_ties(manifest: Manifest, model: Part, trained: frozenset[str]) -> dict[str, str]:
    """Return the keys of further names of tied parameters, each with the key of the first.

    With ``--model`` the model tells. In files of torch.save tied tensors share their bytes. Distributed
    checkpoints store them twice; there two names are one parameter if the optimizer knows the one and not
    the other, and both hold the same bits, which are then read and not all the same number.

    Args:
        manifest: The source.
        model: The part that is the model.
        trained: The names that the optimizer knows; empty where there is no optimizer.
    """
    entries = {
        key: entry
        for key in model.keys
        if isinstance(entry := manifest.entries[key], TensorEntry) and entry.nbytes
    }
    names = {parameter_name(model, entry_path(entry)) or key: key for key, entry in entries.items()}
    if manifest.outline is not None:
        aliases = manifest.outline.aliases
        return {
            names[alias]: names[first] for alias, first in aliases.items() if {alias, first} <= names.keys()
        }
    shared = _shared(entries)
    if not trained or shared:
        return shared
    return _same_bits(manifest, {name: entries[key] for name, key in names.items()}, trained)


def find_model_ties(manifest: Manifest) -> dict[str, str]:
    """Return the ties of every model of a source; what its optimizers know is looked up for it."""
    optimizers = [part for part in manifest.parts if part.kind == "optimizer"]
    groups = group_names(manifest, optimizers, {}) or []
    trained = frozenset(name for group in groups for name in group)
    found: dict[str, str] = {}
    for part in manifest.parts:
        if part.kind == "model":
            found.update(find_ties(manifest, part, trained))
    return found


def _shared(entries: Mapping[str, TensorEntry]) -> dict[str, str]:
    first: dict[object, str] = {}
    found: dict[str, str] = {}
    for key, entry in entries.items():
        place = (entry.shape, entry.dtype, tuple(chunk.stored for chunk in entry.chunks))
        if first.setdefault(place, key) != key:
            found[key] = first[place]
    return found


def _same_bits(
    manifest: Manifest, tensors: Mapping[str, TensorEntry], trained: frozenset[str]
) -> dict[str, str]:
    kinds: dict[object, list[TensorEntry]] = {}
    for name in trained & tensors.keys():
        kinds.setdefault((tensors[name].shape, tensors[name].dtype), []).append(tensors[name])
    found: dict[str, str] = {}
    folder = open_folder(manifest.source)
    try:
        for name, entry in tensors.items():
            known = kinds.get((entry.shape, entry.dtype), ())
            if name in trained or len(entry.shape) < 2 or not entry.is_float:
                continue
            first = next((other for other in known if _are_same(folder, entry, other)), None)
            if first is not None:
                found[entry.key] = first.key
    finally:
        folder.close()
    return found


def _are_same(folder: Folder, one: TensorEntry, other: TensorEntry) -> bool:
    box = (0,) * len(one.shape), one.shape
    left, right = (TensorSource(folder, _BLOCK).read(entry, box) for entry in (one, other))
    varies = False
    for mine, theirs in zip(left, right, strict=True):
        if bytes(mine) != bytes(theirs):
            return False
        varies = varies or len(set(memoryview(mine).cast("B")[:4096])) > 4
    return varies
