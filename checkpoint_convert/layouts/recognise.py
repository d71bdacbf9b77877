"""What lies at a path: a folder of torch.distributed.checkpoint, or something else, which is then named."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.item_values import TensorValue
from fsdp_migrate.checkpoint_convert.items import load_item
from fsdp_migrate.checkpoint_convert.metadata_reader import METADATA_FILE
from fsdp_migrate.checkpoint_convert.storage import (
    Folder,
    Location,
    is_url,
    local_path,
    open_folder,
)
from fsdp_migrate.checkpoint_convert.torch_zip import TorchZip
from fsdp_migrate.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    UnsafePickleError,
    UnsupportedFeatureError,
)


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_RANK_FILE: Final = re.compile(r"(^|[_\-.])rank[_\-]?\d+\.(pt|pth|bin)$")
_LEGACY_MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Far enough for save_folder/run/ep0-ba2, and not through the whole of somebody's disk.
_LOOK_DEPTH: Final = 3
_ONE_FILE: Final = (
    "One-file checkpoints are not converted yet. Load it with torch.load and save it with "
    "torch.distributed.checkpoint.save, and convert that folder."
)


def open_checkpoint(src: Location) -> tuple[Folder, Mapping[str, int]]:
    """Open a folder that holds a distributed checkpoint.

    Returns:
        The folder, and the size of every file in it.

    Raises:
        CheckpointNotFoundError: There is nothing at ``src``.
        CheckpointFormatError: What is there is no checkpoint, or an incomplete one.
        UnsupportedFeatureError: What is there is a checkpoint of another kind. The message says which.
    """
    if not is_url(src) and local_path(src).is_file():
        raise describe_file(local_path(src))
    folder = open_folder(src)
    if folder.has(METADATA_FILE):
        return folder, folder.files()
    folder.close()
    raise _describe_folder(os.fspath(src), folder.files(_LOOK_DEPTH))


def describe_file(path: Path) -> Exception:
    """Say what a single file is, as the error that refuses it."""
    if path.name == METADATA_FILE or path.suffix == ".distcp":
        msg = (
            f"{str(path)!r} is one file of a distributed checkpoint. Name its folder instead: "
            f"{str(path.parent)!r}."
        )
        return CheckpointFormatError(msg, path=path)
    with path.open("rb") as file:
        start = file.read(16)
    if start.startswith(b"PK\x03\x04"):
        what = _describe_archive(path)
    elif start.startswith(_LEGACY_MAGIC[:14]):
        what = "a file of torch.save in the format before torch 1.6"
    elif path.suffix == ".safetensors":
        what = _describe_safetensors(path)
    else:
        msg = (
            f"{str(path)!r} is no checkpoint: it starts with {start!r}. Expected the folder that "
            "torch.distributed.checkpoint.save or Composer wrote, with `.metadata` in it."
        )
        return CheckpointFormatError(msg, path=path)
    msg = f"{str(path)!r} is {what}, not a distributed checkpoint. {_ONE_FILE}"
    return UnsupportedFeatureError(msg, feature="one-file checkpoints")


def _describe_archive(path: Path) -> str:
    with path.open("rb") as file:

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        try:
            value = load_item(TorchZip(read, 0, path.stat().st_size, where=repr(str(path))))
        except UnsafePickleError as error:
            return f"a file of torch.save that holds `{error.global_name}`"
        except (CheckpointFormatError, UnsupportedFeatureError):
            return "a zip archive that torch.save did not write"
    return f"a file of torch.save with {_describe_content(value)}"


def _describe_content(value: object) -> str:
    if isinstance(value, TensorValue):
        return "one tensor"
    if not isinstance(value, dict):
        return f"one {type(value).__name__}"
    names = [str(name) for name in value]
    if value and all(isinstance(item, TensorValue) for item in value.values()):
        return f"a full state dict of {len(names)} tensors ({_some(names)})"
    return f"a dict of {_some(names)}"


def _describe_safetensors(path: Path) -> str:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            names = list(file.keys())
    except SafetensorError as error:
        return f"a damaged safetensors file ({error})"
    return f"a safetensors file of {len(names)} tensors ({_some(names)})"


def _describe_folder(url: str, files: Mapping[str, int]) -> Exception:
    if not files:
        return CheckpointFormatError(f"{url!r} is an empty folder.", path=url)
    inner = sorted({name.rpartition("/")[0] for name in files if name.endswith("/" + METADATA_FILE)})
    if inner:
        return _describe_parent(url, inner)
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
        msg = f"{url!r} holds {kind}, not a distributed checkpoint. Such folders are not converted yet."
        return UnsupportedFeatureError(msg, feature=kind)
    msg = (
        f"{url!r} holds no checkpoint: there is no `.metadata` among its {len(files)} files "
        f"({_some(list(files))})."
    )
    return CheckpointFormatError(msg, path=url)


def _describe_parent(url: str, inner: list[str]) -> Exception:
    if len(inner) == 1:
        msg = f"{url!r} is not a checkpoint itself; it holds one. Use {url.rstrip('/')}/{inner[0]}."
    else:
        msg = (
            f"{url!r} is not a checkpoint itself; it holds {len(inner)}: {_some(inner, 12)}. Name the one "
            "that you mean."
        )
    return CheckpointFormatError(msg, path=url)


def _other_kind(names: list[str]) -> str | None:
    ranks = [name for name in names if _RANK_FILE.search(name)]
    if ranks:
        return f"one file per rank ({_some(sorted(ranks))})"
    if any(name.endswith(".safetensors") for name in names):
        config = "config.json" in names
        return "a Hugging Face model in safetensors" if config else "safetensors files"
    weights = [name for name in names if name.endswith((".pt", ".pth", ".bin", ".ckpt"))]
    if weights:
        return f"one-file checkpoints ({_some(sorted(weights))})"
    return None


def _some(names: list[str], count: int = 4) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:count])
    return f"{shown} and {len(names) - count} more" if len(names) > count else shown
