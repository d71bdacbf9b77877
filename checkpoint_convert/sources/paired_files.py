"""A model in one file and its optimizer in another, whatever they are called: what they hold tells."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path, find_parts, is_copy, parameter_name
from fsdp_migrate.checkpoint_convert.manifest.keys import strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry, InlineValue, Stored
from fsdp_migrate.checkpoint_convert.sources.contents import BY_RANK, Contents, moved_entry
from fsdp_migrate.checkpoint_convert.sources.full_state import saved_file_contents
from fsdp_migrate.checkpoint_convert.sources.per_rank import rank_contents, read_rank
from fsdp_migrate.errors import CheckpointFormatError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.sources.rank_files import RankFamily
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_MOST: Final = 32
_OF: Final = re.compile(r"\d+-of-\d+")


@dataclass(frozen=True)
class PairedFiles:
    """The files of one model, of its optimizer, and what lies beside them.

    Attributes:
        model: The file of the model.
        optimizer: The file of the optimizer, or the files of the ranks that saved a part of it.
        others: Files that hold neither, or copies of the weights, such as averages.
    """

    model: str
    optimizer: str | RankFamily
    others: tuple[str, ...]


def find_paired(
    folder: Folder, names: Sequence[str], families: Sequence[RankFamily], files: Mapping[str, int]
) -> PairedFiles | None:
    """Return what belongs together, or None where it is not one model and one optimizer that fit.

    They fit if the optimizer knows parameters of the model only, or numbers, and if the names of the files do
    not count differently: ``epoch_2.pt`` and ``optimizer_1.pt`` are not of one step.

    Args:
        folder: Where they lie.
        names: The files of torch.save that are not of ranks.
        families: Those that are.
        files: Every file, with its size.
    """
    if not 1 <= len(names) <= _MOST or len(names) + len(families) < 2 or len(families) > 1:
        return None
    held = {name: _held_by_file(folder, name, files[name]) for name in names}
    of_ranks = [(family, _held_by_rank(folder, family, files)) for family in families]
    models = [name for name, own in held.items() if own is not None and "model" in own]
    main = [name for name in models if not is_copy(name)]
    optimizers: list[tuple[str | RankFamily, dict[str, set[str]]]] = [
        *((name, own) for name, own in held.items() if own is not None and "optimizer" in own),
        *of_ranks,
    ]
    if len(main) != 1 or len(optimizers) != 1 or set(optimizers[0][1]) != {"optimizer"}:
        return None
    optimizer, own = optimizers[0]
    # Numbers say nothing of a model; that the files count alike has to do then.
    trained = {name for name in own["optimizer"] if not name.isdigit()}
    stem = optimizer if isinstance(optimizer, str) else optimizer.stem
    if not trained <= (held[main[0]] or {})["model"] or _counts(main[0]) != _counts(stem):
        return None
    others = [name for name, own in held.items() if own is not None and name not in (main[0], stem)]
    return PairedFiles(main[0], optimizer, tuple(others))


def _held_by_file(folder: Folder, name: str, size: int) -> dict[str, set[str]] | None:
    try:
        return _held(saved_file_contents(folder, name, size).entries)
    except (CheckpointFormatError, UnsupportedFeatureError):
        return None


def _held_by_rank(folder: Folder, family: RankFamily, files: Mapping[str, int]) -> dict[str, set[str]]:
    leaves = read_rank(folder, family.files[0], files[family.files[0]], 0).leaves
    nowhere, nothing = Stored("", 0, 0), InlineValue(None)
    return _held({key: BytesEntry(key, path, nowhere, nothing) for key, (path, _) in leaves.items()})


def _held(entries: Mapping[str, Entry]) -> dict[str, set[str]]:
    """Return the parameters of the models and of the optimizers in a state, by the kind."""
    found: dict[str, set[str]] = {}
    for part in find_parts(entries):
        if part.kind != "other":
            names = (parameter_name(part, entry_path(entries[key])) for key in part.keys)
            found.setdefault(part.kind, set()).update(strip_wrappers(name) for name in names if name)
    return found


def _counts(name: str) -> list[str]:
    # `-of-4` counts pieces or ranks; only other numbers, of epochs or steps, must agree.
    return re.findall(r"\d+", _OF.sub("", name.replace("*-of-", "0-of-")))


def paired_contents(
    folder: Folder, found: PairedFiles, files: Mapping[str, int], options: SourceOptions
) -> Contents:
    """Return what the files hold together.

    A bare state stands under ``model`` or ``optimizer``, and what neither is under the name of its file.

    Raises:
        CheckpointFormatError: A file is damaged.
        CheckpointMismatchError: Ranks contradict each other, or the model.
    """
    stem = found.optimizer if isinstance(found.optimizer, str) else found.optimizer.stem
    whole = Contents("states", f"`{found.model}` and `{stem}`: a model, and an optimizer that fits it")
    _join(whole, saved_file_contents(folder, found.model, files[found.model]), "model")
    if isinstance(found.optimizer, str):
        own = saved_file_contents(folder, found.optimizer, files[found.optimizer])
    else:
        own = rank_contents(folder, [found.optimizer], files, options)
    _join(whole, own, "optimizer")
    for name in found.others:
        _join(whole, saved_file_contents(folder, name, files[name]), None, stem=name.partition(".")[0])
    return whole


def _join(whole: Contents, own: Contents, role: str | None, stem: str = "") -> None:
    parts = [part for part in find_parts(own.entries) if part.kind != "other"]
    kept = {key for part in parts for key in part.keys} if role else set()
    is_bare = any(not part.prefix for part in parts)
    for key, entry in own.entries.items():
        if role is None:
            new = moved_entry(entry, (stem,))
        elif key in kept or entry_path(entry)[0] == BY_RANK:
            new = moved_entry(entry, (role,)) if is_bare else entry
        else:
            # Under a name of its own: beside its state each of the two files may have an `epoch`.
            new = moved_entry(entry, (f"{role}_info",)) if role != "model" or is_bare else entry
        whole.entries[new.key] = new
    whole.files.update(own.files)
    whole.findings += own.findings
    whole.torch_hint = whole.torch_hint or own.torch_hint
