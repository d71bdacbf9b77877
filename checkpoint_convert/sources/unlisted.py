"""Which classes and functions the values of a checkpoint ask for that are on no list, and files beside it.

Whoever loads a value without ``weights_only`` executes what it asks for, and ``dcp.load`` does: so every
value that torch would unpickle is looked into, also where its bytes are not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import asked_for, open_item
from fsdp_migrate.checkpoint_convert.formats.torch_file import read_saved_file
from fsdp_migrate.checkpoint_convert.formats.torch_values import Record
from fsdp_migrate.checkpoint_convert.formats.whole_files import SAVED_SUFFIXES
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry
from fsdp_migrate.checkpoint_convert.sources.content_findings import FLAT_PARAMETER, is_fsdp1s
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, counted, listed, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Part
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_OPCODE: Final = "an opcode that is not allowed"
_UNREAD: Final = (
    "Leave it out with `weights_only` (--weights-only), or carry it over unread with `trust_pickle` "
    "(--trust-pickle): nothing of it is executed here, but whoever loads the output executes it."
)
# `trust_pickle` cannot carry these over, and so is not offered.
_WHOLE_MODULE: Final = (
    "It holds objects of torch's own classes, as a module that was pickled whole does: load it in a program "
    "that has its class, and save its `state_dict()` in its place. Or leave it out with `weights_only` "
    "(--weights-only)."
)


def unlisted_in(value: object) -> set[str]:
    """Return the classes in a value that are on no list."""
    kinds = (item if isinstance(item, type) else type(item) for item in _walk(value))
    return {kind.name for kind in kinds if issubclass(kind, Record) and not kind.is_listed}


def wrapped_names_in(value: object) -> list[str]:
    """Return the keys in a value, and the texts in its lists, that are names as FSDP1's model shows them.

    Example:
        >>> wrapped_names_in({"ema": {"_fsdp_wrapped_module.up.weight": 1, "down.weight": "a note"}})
        ['_fsdp_wrapped_module.up.weight']
    """
    texts = dict.fromkeys(item for item in _walk(value) if isinstance(item, str))
    return [text for text in texts if is_fsdp1s(text)]


def _walk(value: object) -> Iterator[object]:
    """Yield a value and all that it holds, in its order, each container once."""
    seen: set[int] = set()
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        yield item
        if not isinstance(item, list | tuple | dict | Record) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Record):
            held: list[object] = [item.arguments, item.state, item.items, item.entries]
        else:
            held = [*item.keys(), *item.values()] if isinstance(item, dict) else list(item)
        pending += reversed(held)


def unlisted_findings(folder: Folder, entries: Mapping[str, Entry], *, trusted: bool) -> Iterator[Finding]:
    """Yield a finding for each value that asks for something that is on no list.

    Args:
        folder: The checkpoint.
        entries: What it holds.
        trusted: Whether the user wants them carried over all the same.

    Raises:
        CheckpointFormatError: A value is damaged.
    """
    for entry in entries.values():
        if not isinstance(entry, BytesEntry):
            continue
        names = _names(folder, entry)
        if not names:
            continue
        text = f"it asks for {listed(name if name == _OPCODE else f'`{name}`' for name in names)}"
        # A tensor that torch keeps in an object of its own would no longer be one, once it is written anew.
        is_changed = entry.inline is not None and any(name.startswith("torch.") for name in names)
        if trusted and not is_changed:
            yield make_finding("FM209", entry.key, f"{text}. `trust_pickle` (--trust-pickle) was asked for.")
        else:
            yield make_finding(
                "FM230",
                entry.key,
                f"{text}, which is not on the list of what may be read.",
                _WHOLE_MODULE if is_changed else _UNREAD,
            )


def _names(folder: Folder, entry: BytesEntry) -> Sequence[str]:
    if entry.inline is not None:
        return sorted(unlisted_in(entry.inline.value))
    where = f"`{entry.key}` in '{folder.url}/{entry.stored.file}'"
    try:
        return asked_for(open_item(folder, entry.stored, where=where))
    except UnsafePickleError as error:
        return [error.global_name or _OPCODE]


def beside_findings(folder: Folder, files: Mapping[str, int]) -> Iterator[Finding]:
    """Yield findings for files beside a checkpoint that ask for unlisted classes, or hold FSDP1's names."""
    for name, size in files.items():
        if not name.endswith(SAVED_SUFFIXES) or folder.leads_outside(name):
            continue
        wrapped: Sequence[str] = ()
        try:
            saved = read_saved_file(folder, name, size)
            names: Sequence[str] = sorted(saved.unlisted)
            wrapped = wrapped_names_in(saved.value)
        except UnsafePickleError as error:
            names = [error.global_name or _OPCODE]
        except (CheckpointFormatError, UnsupportedFeatureError):
            continue
        if names:
            text = f"it asks for {named(names)}, and opening it without `weights_only` executes that."
            yield make_finding("FM285", name, text)
        if wrapped:
            yield _wrapped_finding(name, wrapped)


def wrapped_part_findings(entries: Mapping[str, Entry], parts: Sequence[Part]) -> Iterator[Finding]:
    """Yield a finding for each part beside model and optimizer whose names are as FSDP1's model showed them.

    Whoever reads such a file whole, as ``fabric.load`` and ``torch.load`` do, is given them as they stand.
    """
    for part in parts:
        paths = [entry_path(entries[key]) for key in part.keys if part.kind == "other"]
        wrapped = wrapped_names_in([list(path) for path in paths])
        if wrapped:
            shown = "and FSDP2's does not" if len(wrapped) > 1 else "and FSDP2's not"
            text = (
                f"it holds {counted(len(wrapped), 'name')} that FSDP1's model showed, {shown}: "
                f"{named(wrapped)}. `fabric.load` and `torch.load` give them back as they stand, and code "
                "that looks weights up by them stops."
            )
            hint = (
                "Convert it: the wrappers' parts are taken out there, too. Of a file the folder that is "
                "written holds one of the same name, of Fabric's folder its `meta.pt`: `fabric.load` takes "
                "them. So does `load_checkpoint`, with `extra`. Or take them out where your code reads them."
            )
            yield make_finding("FM280", part.name, text, hint)


def _wrapped_finding(name: str, wrapped: Sequence[str]) -> Finding:
    text = f"it holds names that FSDP1's model showed, and FSDP2's does not: {named(wrapped)}."
    hint = "Take the wrappers' parts out of the names where your code reads them, before it looks them up."
    if any(FLAT_PARAMETER.search(each) for each in wrapped):
        text += " A flat parameter there is the piece of the rank that wrote the file: the others are lost."
        hint += " What was flat has to be made anew."
    return make_finding("FM280", name, text, hint)
