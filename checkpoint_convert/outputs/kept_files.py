"""What stays of a Hugging Face model's folder when its weights are replaced."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE
from fsdp_migrate.checkpoint_convert.storage.model_files import MODEL_CONFIG, is_text_of_model


if TYPE_CHECKING:
    from collections.abc import Collection


_WEIGHTS: Final = re.compile(
    rf"model(?:-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|{CHECKSUMS_FILE}"
)


def is_weights(name: str) -> bool:
    """Tell whether a file of a model's folder is of its weights, or says what they are.

    Example:
        >>> is_weights("model-00001-of-00002.safetensors"), is_weights("adapter_model.safetensors")
        (True, False)
    """
    return _WEIGHTS.fullmatch(name) is not None


def is_model_folder(path: Path) -> bool:
    """Tell whether a folder is one of a model, of which only the weights are replaced.

    Without a ``config.json`` it is one where it holds nothing but what a conversion writes and copies there.
    """
    if not path.is_dir() or path.is_symlink():
        return False
    return (path / MODEL_CONFIG).is_file() or not unknown_files(path)


def unknown_files(path: Path) -> list[str]:
    """Return what is in a folder and no conversion for Hugging Face writes; all files where weights lack."""
    names = sorted(
        p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_symlink() or not p.is_dir()
    )
    if not any(is_weights(name) and name.endswith(".safetensors") for name in names):
        return names
    return [name for name in names if not is_weights(name) and not is_text_of_model(name)]


def take_over_others(old: Path, new: Path, written: Collection[str]) -> list[str]:
    """Bring what is beside the weights into a new folder: configuration, tokenizer, licence.

    Args:
        old: The folder that is going to be replaced; it is not changed.
        new: The folder that replaces it.
        written: The files that are in the new one, and stay.

    Returns:
        The names of the files that were brought.
    """
    found: list[str] = []
    for base, folders, names in os.walk(old):
        # os.walk has links to folders among the folders, and does not go into them.
        links = [name for name in folders if Path(base, name).is_symlink()]
        for path in (Path(base, name) for name in (*names, *links)):
            name = path.relative_to(old).as_posix()
            if name in written or is_weights(name):
                continue
            target = new / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # A process that was killed, and is gone on with, may have brought it.
            target.unlink(missing_ok=True)
            try:
                # A link and no move: the old folder stays whole until the new one takes its place.
                os.link(path, target, follow_symlinks=False)
            except OSError:
                shutil.copy2(path, target, follow_symlinks=False)
            found.append(name)
    return sorted(found)
