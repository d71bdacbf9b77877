"""Is a single file a checkpoint? By its first bytes, whatever it is called, and its list of parts."""

from __future__ import annotations

import json
import mimetypes
import re
import zipfile
from typing import TYPE_CHECKING

from fsdp_migrate.source.files import SETTINGS, SUFFIXES


if TYPE_CHECKING:
    from pathlib import Path


SAVED = (".bin", ".ckpt", ".pt", ".pth", ".th", ".pth.tar", ".pt.tar")
"""What files of torch.save end in, as a rule."""

# What torch.save keeps of each tensor beside the pickle.
_STORAGE = re.compile(r"(?:\A|/)data/\d+\Z")
# The pickle is the first part, where TorchScript begins with tensors. The name of the file stands before it,
# and before that the header of a part.
_PICKLE = re.compile(rb"PK\x03\x04.{26}[^/]{1,255}/data\.pkl", re.DOTALL)
_VERSION = b"pytorch-lightning_version"
_START = 4096
_MAX_HEADER = 1_000_000
# A file of torch.save with one number in it is larger.
_SMALLEST = 256
_WEIGHTS = ("bias", "weight")
_WHOLE_NUMBERS = frozenset({"BOOL", "I16", "I32", "I64", "I8", "U16", "U32", "U64", "U8"})
_MEDIA = ("audio/", "image/", "text/", "video/")
# Of these there are many, or they are large, and none is opened to look what it begins with.
_OTHERS = (
    SUFFIXES
    | SETTINGS
    | {".npy", ".npz", ".safetensors"}
    | {end for end, kind in mimetypes.MimeTypes().types_map[True].items() if kind.startswith(_MEDIA)}
)


def is_saved(path: Path) -> bool:
    """Tell whether a file is one of torch.save, with tensors as far as its list of parts tells.

    One with a name that says nothing of it, such as ``epoch_2.opt``, is told by what it begins with.

    Example:
        >>> from pathlib import Path
        >>> is_saved(Path("README.md"))
        False
    """
    from fsdp_migrate.checkpoint_convert.formats.torch_file import is_saved_file

    # Composer's `save_filename` needs no ending.
    is_named = "." not in path.name or path.name.endswith(SAVED)
    if (not is_named and path.suffix.lower() in _OTHERS) or not path.is_file():
        return False
    try:
        if not is_named and path.stat().st_size < _SMALLEST:
            return False
        with path.open("rb") as stream:
            start = stream.read(_START)
            if not is_saved_file(start):
                return False
            # An archive of another kind may have many parts: its list is not read.
            if not is_named and start.startswith(b"PK") and not _PICKLE.match(start):
                return False
            if not zipfile.is_zipfile(stream):
                return True
            with zipfile.ZipFile(stream) as parts:
                return any(map(_STORAGE.search, parts.namelist()))
    except OSError:
        return False
    except zipfile.BadZipFile:
        return True  # `inspect` says what is wrong with it


def is_data(path: Path) -> bool:
    """Tell whether safetensors hold samples: single whole numbers, such as an index, and no weights.

    Example:
        >>> from pathlib import Path
        >>> is_data(Path("README.md"))
        False
    """
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            tensors = json.loads(stream.read(length)) if length <= _MAX_HEADER else {}
        if any(name.endswith(_WEIGHTS) for name in tensors):
            return False
        told = [(tensor.get("dtype"), tensor.get("shape")) for tensor in tensors.values()]
    except (AttributeError, OSError, ValueError, RecursionError):
        return False  # no safetensors: `inspect` says so
    return any(dtype in _WHOLE_NUMBERS and shape == [] for dtype, shape in told)


def is_lightnings(path: Path) -> bool:
    """Tell whether a file is one of Lightning's Trainer, by a name that stands before the tensors.

    Example:
        >>> from pathlib import Path
        >>> is_lightnings(Path("README.md"))
        False
    """
    with path.open("rb") as stream:
        return _VERSION in stream.read(_START)
