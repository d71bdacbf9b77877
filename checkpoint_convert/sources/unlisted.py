"""Which classes and functions the values of a checkpoint ask for that are on no list.

Whoever loads a value without ``weights_only`` executes what it asks for, and ``dcp.load`` does: so every
value that torch would unpickle is looked into, also where its bytes are not changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.dcp_items import asked_for, open_item
from fsdp_migrate.checkpoint_convert.formats.torch_file import read_saved_file
from fsdp_migrate.checkpoint_convert.formats.torch_values import Record
from fsdp_migrate.checkpoint_convert.formats.whole_files import SAVED_SUFFIXES
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError, UnsupportedFeatureError
from fsdp_migrate.findings import Finding, listed, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    found: set[str] = set()
    seen: set[int] = set()
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, type) and issubclass(item, Record):
            found |= set() if item.is_listed else {item.name}
        if not isinstance(item, list | tuple | dict | Record) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Record):
            found |= set() if item.is_listed else {item.name}
            pending += [item.arguments, item.state, item.items, item.entries]
        elif isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        else:
            pending += item
    return found


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
    """Yield a finding for each file beside a checkpoint that asks for something that is on no list."""
    for name, size in files.items():
        if not name.endswith(SAVED_SUFFIXES) or folder.leads_outside(name):
            continue
        try:
            names: Sequence[str] = sorted(read_saved_file(folder, name, size).unlisted)
        except UnsafePickleError as error:
            names = [error.global_name or _OPCODE]
        except (CheckpointFormatError, UnsupportedFeatureError):
            continue
        if names:
            text = f"it asks for {named(names)}, and opening it without `weights_only` executes that."
            yield make_finding("FM285", name, text)
