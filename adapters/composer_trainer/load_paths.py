"""What a Composer ``load_path`` is: a folder or a file, here or in an object store, and of which model."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.checkpoint_convert.formats.dcp_metadata_reader import read_metadata
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.checkpoint_convert.sources.symlinks import SUFFIX, follow_symlink_file
from fsdp_migrate.errors import CheckpointMismatchError, CheckpointNotFoundError
from fsdp_migrate.findings import Finding, counted, listed, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import nn


log = logging.getLogger(__name__)

Kind = Literal["full", "sharded"]
_MODEL, _SCALER, _OPTIMIZERS = ("state", "model"), ("state", "scaler"), ("optimizers",)
_SHOWN = 6
_PROPERTIES = 5
"""The fields of a tensor's properties that torch 2.6 to 2.14 can read; torch 2.15 writes six."""


@dataclass(frozen=True)
class Found:
    """What is to be loaded in place of a path, how, and what there is to say.

    ``kind`` None leaves it to the config; ``scaler_names`` None, to Composer. ``is_read``: this package
    reads it, in place of torch.
    """

    path: str
    kind: Kind | None = None
    scaler_names: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()
    is_read: bool = False


class _Blanks(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return f"{{{key}}}"


def fill_in(path: str, run_name: str | None) -> str:
    """Fill in what Composer fills in before it loads: the run's name, and the numbers of rank 0.

    Example:
        >>> fill_in("{run_name}/ep0-ba3-rank{rank}.pt", "fox")
        'fox/ep0-ba3-rank0.pt'
    """
    numbers = dict.fromkeys(("rank", "local_rank", "node_rank"), 0)
    try:
        return path.format_map(_Blanks(numbers, **({} if run_name is None else {"run_name": run_name})))
    except (ValueError, IndexError, AttributeError):  # braces that are no placeholders
        return path


def find_local(path: str, run_name: str | None) -> Path:
    """Return where a path leads here: placeholders filled in, links and Composer's ``.symlink`` followed.

    Raises:
        CheckpointError: A ``.symlink`` file leads nowhere.
    """
    found = Path(fill_in(path, run_name)).resolve()
    if found.name.endswith(SUFFIX) and found.is_file():
        return Path(follow_symlink_file(str(found))).resolve()
    return found


def look_in_store(
    store: Any,
    path: str,
    run_name: str | None,
    model: nn.Module | None,
    read: Callable[[str], Found] | None = None,
) -> Found:
    """Look at a checkpoint in one of Composer's object stores: its metadata is fetched, no tensor is.

    Args:
        store: Composer's ``ObjectStore`` or ``LoggerDestination``.
        path: The name of the checkpoint there.
        run_name: The name of the run, for the placeholder.
        model: The model that it is held against; None: against none.
        read: Looks at a URL of what does not load as it is; None: such a checkpoint is refused.

    Raises:
        CheckpointError: It is damaged, of another model, or would have to be converted.
    """
    name = fill_in(path, run_name)
    with tempfile.TemporaryDirectory() as folder:
        if name.endswith(SUFFIX):
            text = _fetch(store, name, Path(folder, "symlink")) or name.encode()
            name = text.decode("utf-8", "replace").strip()
        name = name.rstrip("/").removesuffix(f"/{METADATA_FILE}")
        data = _fetch(store, f"{name}/{METADATA_FILE}", Path(folder, METADATA_FILE))
    if data is None:
        _check_there(store, name)
        return Found(path, "full")
    metadata = read_metadata(data, _AnyFile(), where=f"{name}/{METADATA_FILE}")
    paths = [entry.path for entry in metadata.entries.values() if entry.path is not None]
    # What torch before 2.15 cannot read, and optimizers at the root, as Composer saved with torch before 2.3.
    if metadata.property_sizes - {_PROPERTIES} or any(each[:1] == _OPTIMIZERS for each in paths):
        return _read_behind(store, name, read)
    tensors = [each for each in metadata.entries.values() if isinstance(each, TensorEntry)]
    if model is not None and tensors:
        compare_models(model_shapes((each.path, each.shape) for each in tensors), model, name)
    return Found(name, "sharded", scaler_names(paths))


def _read_behind(store: Any, name: str, read: Callable[[str], Found] | None) -> Found:
    """Return what a store's URL leads to, where fsspec opens it.

    Raises:
        CheckpointMismatchError: It does not, or this is not wanted.
    """
    why, cause = "because it is not here", None
    if read is not None and hasattr(store, "get_uri"):
        url = str(store.get_uri(name))
        try:
            return read(url)
        except CheckpointMismatchError:
            raise
        except Exception as error:  # whatever the library of a store raises
            why, cause = f"{why}, and {url!r} cannot be read ({type(error).__name__}: {error})", error
    msg = (
        f"{name!r} in {type(store).__name__} does not load into FSDP2 as it is, and is not converted on the "
        f"way, {why}. Convert it first: `fsdp-migrate convert URL OUT`, and load OUT."
    )
    raise CheckpointMismatchError(msg, path=name) from cause


class _AnyFile(dict[str, int]):
    """The sizes of files that were not fetched: any is large enough."""

    def __missing__(self, name: str) -> int:
        return 2**62

    def __contains__(self, name: object) -> bool:
        return True


def _check_there(store: Any, name: str) -> None:
    """Check that an object is there; where it cannot be asked for without fetching it, Composer will.

    Raises:
        CheckpointNotFoundError: It is not.
    """
    if hasattr(store, "get_object_size"):
        try:
            store.get_object_size(name)
        except FileNotFoundError as error:
            msg = f"{name!r} is not in {type(store).__name__}, neither as a file nor as a folder: {error}"
            raise CheckpointNotFoundError(msg, path=name) from error


def _fetch(store: Any, name: str, target: Path) -> bytes | None:
    """Return what an object store has by a name, or None."""
    try:
        if hasattr(store, "download_object"):
            store.download_object(object_name=name, filename=str(target))
        else:
            store.download_file(remote_file_name=name, destination=str(target))
    except FileNotFoundError:
        return None
    return target.read_bytes()


def model_shapes(tensors: Iterable[tuple[Any, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's model by name, of the paths and shapes of all of its tensors."""
    depth = len(_MODEL)
    return {
        ".".join(map(str, path[depth:])): tuple(shape)
        for path, shape in tensors
        if path is not None and path[:depth] == _MODEL
    }


def compare_models(found: Mapping[str, tuple[int, ...]], model: nn.Module, source: str) -> None:
    """Compare the tensors of a checkpoint with the model's, by name and shape.

    Raises:
        CheckpointMismatchError: One is missing in the checkpoint, or has another shape there.
    """
    expected = shapes_of(model)
    missing = [name for name in expected if name not in found]
    other = [name for name, shape in expected.items() if name in found and tuple(found[name]) != shape]
    if not missing and not other:
        return
    parts = [
        f"`{name}` has shape {list(found[name])} there and {list(expected[name])} here" for name in other
    ]
    parts += [f"`{name}` {list(expected[name])} is missing there" for name in missing]
    msg = (
        f"{source!r} was not saved by this model: {listed(parts, _SHOWN, between='; ')}. It holds "
        f"{counted(len(found), 'tensor')}: {named(found, 3)}. Build the model "
        "that saved it, or leave entries out by `load_ignore_keys`."
    )
    raise CheckpointMismatchError(msg, path=source)


def unused_finding(found: Iterable[str], model: nn.Module) -> tuple[Finding, ...]:
    """Say which tensors of a checkpoint's model this model has no place for."""
    expected = shapes_of(model)
    unused = [name for name in found if name not in expected]
    if not unused:
        return ()
    text = (
        f"{named(unused, _SHOWN)}: not loaded, as under FSDP1, because this model has nothing of that name."
    )
    hint = "Build the model that saved it, if you want to keep them: the next checkpoint will not have them."
    return (make_finding("FM419", "load_path", text, hint),)


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters and buffers by the names that checkpoints have for them."""
    return {
        _plain(name): tuple(value.shape)
        for name, value in model.state_dict().items()
        if hasattr(value, "shape")
    }


def _plain(name: str) -> str:
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def scaler_names(paths: Iterable[Any]) -> tuple[str, ...]:
    """Return the names under which a checkpoint has the state of a gradient scaler, of all of its paths."""
    depth = len(_SCALER)
    names = [str(path[depth]) for path in paths if path[:depth] == _SCALER and path[depth:]]
    return tuple(dict.fromkeys(names))
