"""What lies at a path: a checkpoint of a known layout, or something else, which is then named."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.formats.torch_file import is_saved_file
from fsdp_migrate.checkpoint_convert.sources.dcp import dcp_contents
from fsdp_migrate.checkpoint_convert.sources.folder_layouts import FolderFiles, find_layout
from fsdp_migrate.checkpoint_convert.sources.framework_folders import (
    find_components,
    is_slice,
    refuse_tensor_parallel,
)
from fsdp_migrate.checkpoint_convert.sources.full_state import (
    INDEX_SUFFIX,
    safetensors_contents,
    saved_file_contents,
)
from fsdp_migrate.checkpoint_convert.sources.per_rank import find_rank_files, rank_contents
from fsdp_migrate.checkpoint_convert.sources.rank_files import find_counted, find_numbered, stem_of
from fsdp_migrate.checkpoint_convert.sources.symlinks import follow_symlink_file
from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location, is_url, local_path
from fsdp_migrate.checkpoint_convert.storage.fsspec import open_folder_at, open_parent
from fsdp_migrate.checkpoint_convert.storage.listing import BUSY_FILE
from fsdp_migrate.checkpoint_convert.storage.opening import unpacked
from fsdp_migrate.errors import CheckpointFormatError, CheckpointNotFoundError, UnsupportedFeatureError
from fsdp_migrate.findings import counted, named


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.sources.contents import Contents


# Names of files that may be those of ranks: they have a number, or are the first of those that have.
_ENDS_RANKED: Final = re.compile(r"\d|\.(?:pt|pth|bin|ckpt|th)$")
_STATE_FILE: Final = re.compile(r"\.(?:pt|pth|ckpt|safetensors)$|(?:^|/)pytorch_model[^/]*\.bin$")
# Far enough for save_folder/run/ep0-ba2, and not through the whole of somebody's disk.
_LOOK_DEPTH: Final = 3


@dataclass(frozen=True, slots=True)
class Source:
    """Something that can be read.

    Attributes:
        folder: Where its files are.
        url: What to open to get that folder again: the folder itself, or the one file.
        files: The size of every file in it.
        read: Reads what it holds.
    """

    folder: Folder
    url: str
    files: Mapping[str, int]
    read: Callable[[SourceOptions], Contents]


def open_source(src: Location) -> Source:
    """Open a checkpoint, whatever its layout.

    Raises:
        CheckpointNotFoundError: There is nothing at ``src``, or a part of it is missing.
        CheckpointFormatError: What is there is no checkpoint, or an incomplete one.
        UnsupportedFeatureError: What is there is a checkpoint of another kind. The message says which.
    """
    src = follow_symlink_file(src)
    url = os.fspath(src)
    if url.endswith(INDEX_SUFFIX) and not is_url(src) and local_path(src).is_file():
        index = local_path(src)
        return _open_folder(open_folder_at(index.parent), str(index.parent), index.name)
    folder = open_folder_at(src)
    is_file = getattr(folder, "only", None) is not None
    if is_file:
        family = _named_family(src)
        if family is not None:
            folder.close()
            return family
        folder = unpacked(folder, src)
        return _open_file(folder, url, folder.files(0))
    if folder.has(METADATA_FILE):
        files = folder.files()
        return Source(folder, folder.url, files, lambda _: dcp_contents(folder, files))
    return _open_folder(folder, url, None)


def _named_family(src: Location) -> Source | None:
    """Return the source of a rank's file that is there, with those of the other ranks; None if it is alone.

    Composer calls the one full file that it saves ``-rank0``.
    """
    url = os.fspath(src)
    parent, _, name = url.rpartition("/")
    # Of `s3://bucket-1` nothing is above.
    is_bucket = parent.endswith(":/")
    if is_bucket or not _ENDS_RANKED.search(name):
        return None
    refuse_tensor_parallel([name], url)
    folder = open_parent(parent or ".")
    files = folder.files(0)
    # The first slice alone could be a model: those beside it tell.
    refuse_tensor_parallel(filter(is_slice, files) if is_slice(name) else (), url)
    # Of another family a file may be missing.
    stem = stem_of(name)
    ranked = {found: size for found, size in files.items() if stem is not None and stem_of(found) == stem}
    if name not in ranked:
        counted_all = (*find_counted(files), *find_numbered(files))
        numbered = [f for f in counted_all if name in f.files.values()]
        ranked = {found: files[found] for family in numbered for found in family.files.values()}
    families = [f for f in find_rank_files(folder, ranked) if name in f.files.values()]
    if not families or (len(families[0].files) == 1):
        folder.close()
        return None
    own = {found: files[found] for found in families[0].files.values()}
    return Source(folder, folder.url, own, lambda options: rank_contents(folder, families, own, options))


def _open_file(folder: Folder, url: str, files: Mapping[str, int]) -> Source:
    ((name, size),) = files.items()
    try:
        refuse_tensor_parallel([name], url)
        kind = _kind_of_file(folder, url, name, size)
    except BaseException:
        folder.close()
        raise
    if kind == "safetensors":
        return Source(folder, url, files, lambda _: safetensors_contents(folder, files))
    return Source(folder, url, files, lambda _: saved_file_contents(folder, name, size))


def _kind_of_file(folder: Folder, url: str, name: str, size: int) -> str:
    if name == METADATA_FILE or name.endswith(".distcp"):
        msg = f"{url!r} is one file of a distributed checkpoint. Name its folder instead: {folder.url!r}."
        raise CheckpointFormatError(msg, path=url)
    # By its bytes first: a file of torch.save may have any name, one that ends in .safetensors too.
    start = folder.read(name, 0, min(size, 16))
    if is_saved_file(start):
        return "saved"
    if name.endswith(".safetensors"):
        return "safetensors"
    msg = (
        f"{url!r} is no checkpoint: it starts with {start!r}. Expected a file of torch.save or safetensors, "
        "or the folder that torch.distributed.checkpoint.save or Composer wrote, with `.metadata` in it."
    )
    raise CheckpointFormatError(msg, path=url)


def _open_folder(folder: Folder, url: str, index: str | None) -> Source:
    """Open a folder that holds no distributed checkpoint: pieces of one state, with or without an index."""
    try:
        files = folder.files(_LOOK_DEPTH)
        _refuse_half(url, files)
        refuse_tensor_parallel(files, folder.url)
        found = FolderFiles(folder, files, index)
        layout = find_layout(found)
    except BaseException:
        folder.close()
        raise
    read = layout.read if layout is not None else None
    if read is None:
        folder.close()
        raise _describe_folder(url, files)
    return Source(folder, folder.url, folder.files(), functools.partial(read, found))


def _refuse_half(url: str, files: Mapping[str, int]) -> None:
    """Refuse an output behind a URL whose first files would be taken for a checkpoint of their own."""
    if is_url(url) and BUSY_FILE in files:
        msg = (
            f"{url!r} is not whole: `{BUSY_FILE}` says that a conversion is writing it, or was killed. Wait "
            "for it, or continue it with `resume` (--resume). If it said that it was done, only that file "
            "could not be removed: remove it."
        )
        raise CheckpointFormatError(msg, path=f"{url}/{BUSY_FILE}")


def _describe_folder(url: str, files: Mapping[str, int]) -> Exception:
    if not files:
        return CheckpointFormatError(f"{url!r} is an empty folder.", path=url)
    inner = _checkpoints(files)
    if inner:
        return _describe_parent(url, inner, _with_states(files, inner))
    names = [name for name in files if "/" not in name]
    if any(name.endswith(".distcp") for name in files):
        msg = (
            f"{url!r} has {sum(n.endswith('.distcp') for n in files)} `.distcp` files, but no "
            "`.metadata`. Without it nothing tells what they hold: the save did not finish, or the file "
            "was not copied."
        )
        return CheckpointNotFoundError(msg, path=f"{url}/{METADATA_FILE}")
    kind = _other_kind(names)
    if kind is not None:
        msg = f"{url!r} holds {kind}, not a distributed checkpoint. Such folders are not converted as one."
        return UnsupportedFeatureError(msg, feature=kind)
    msg = (
        f"{url!r} holds no checkpoint: it has {counted(len(files), 'file')} ({named(list(files))}), none of "
        "them `.metadata`."
    )
    return CheckpointFormatError(msg, path=url)


def _checkpoints(files: Mapping[str, int]) -> list[str]:
    """Return the folders that are distributed checkpoints, or a framework's folder that consists of some."""
    found = {name.rpartition("/")[0] for name in files if name.endswith("/" + METADATA_FILE)}
    for parent in {folder.rpartition("/")[0] for folder in found} - {""}:
        start = f"{parent}/"
        own = {name.removeprefix(start): size for name, size in files.items() if name.startswith(start)}
        if find_components(own):
            found = {folder for folder in found if not folder.startswith(start)} | {parent}
    return sorted(found)


def _with_states(files: Mapping[str, int], inner: list[str]) -> list[str]:
    """Return the folders beside distributed checkpoints that hold files of saved states, by their names."""
    folders = {name.rpartition("/")[0] for name in files if _STATE_FILE.search(name)} - {""}
    # What lies in a checkpoint, or around one, is of that one.
    return sorted(
        folder
        for folder in folders
        if not any(f"{folder}/".startswith(f"{one}/") or one.startswith(f"{folder}/") for one in inner)
    )


def _describe_parent(url: str, inner: list[str], beside: list[str]) -> Exception:
    if beside:
        msg = (
            f"{url!r} is not a checkpoint itself; it holds {named(inner, 12)}, and files of saved states in "
            f"{named(beside, 12)}. Name the one that you mean."
        )
    elif len(inner) == 1:
        msg = f"{url!r} is not a checkpoint itself; it holds one. Use {url.rstrip('/')}/{inner[0]}."
    else:
        msg = (
            f"{url!r} is not a checkpoint itself; it holds {len(inner)}: {named(inner, 12)}. Name the one "
            "that you mean."
        )
    return CheckpointFormatError(msg, path=url)


def _other_kind(names: list[str]) -> str | None:
    if any(name.endswith(".safetensors") for name in names):
        config = "config.json" in names
        return "a Hugging Face model in safetensors" if config else "safetensors files"
    weights = [name for name in names if name.endswith((".pt", ".pth", ".bin", ".ckpt"))]
    if weights:
        return f"{len(weights)} files ({named(sorted(weights))}), each of which `inspect` looks at by itself"
    return None
