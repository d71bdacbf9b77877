"""Conversions of checkpoints that a Composer run was given: where they lie, and whether they still hold."""

from __future__ import annotations

import json
import logging
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from fsdp_migrate.checkpoint_convert import (
    SourceOptions,
    convert_checkpoint,
    inspect_checkpoint,
    plan_conversion,
)
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.errors import CheckpointError, CheckpointMismatchError, ConfigError, OutputError


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest


log = logging.getLogger(__name__)

Conversion = Literal["load", "convert", "error"]
CACHE_SUFFIX: Final = ".fsdp2"
"""What is appended to a checkpoint's name to name the folder of its conversion, beside it."""
TRUSTED: Final = SourceOptions(trust_pickle=True)
"""Composer's Trainer executes what it loads, whether it was converted or not."""
SOURCE_FILE: Final = "converted_from.json"
"""The file in a conversion that says of which files it was made."""


class ConversionCache:
    """Converts checkpoints into folders beside them, each once.

    Args:
        conversion: Whether to convert at all, and whether only what cannot be read straight.
        folder: Where conversions lie; None: each beside its source.

    Raises:
        ConfigError: ``conversion`` is none of its words.
    """

    def __init__(self, conversion: Conversion, folder: str | Path | None = None) -> None:
        if conversion not in get_args(Conversion):
            msg = f"`convert_checkpoints` is {conversion!r}; expected one of {get_args(Conversion)}."
            raise ConfigError(msg, field="convert_checkpoints")
        self.conversion = conversion
        self.folder = None if folder is None else Path(folder)

    def place(self, path: Path, manifest: Manifest) -> Path:
        """Return where the conversion of a checkpoint lies.

        That of one file per rank lies beside their folder, not in it among what it is made of.
        """
        source = Path(manifest.source).resolve()
        name = path.name + CACHE_SUFFIX
        if self.folder is not None:
            # Checkpoints of two runs often have the same name.
            return self.folder / f"{zlib.crc32(str(path).encode()):08x}-{name}"
        if source != path and source == path.parent:
            return source.with_name(f"{source.name}.{name}")
        return path.with_name(name)

    def is_made(self, path: Path, manifest: Manifest) -> bool:
        """Tell whether a conversion of a checkpoint is there, and of what it is now."""
        return self._holds(self.place(path, manifest), manifest)

    def convert(self, path: Path, manifest: Manifest) -> Path:
        """Return the conversion of a checkpoint; it is made unless one that holds is there.

        Raises:
            CheckpointMismatchError: There is none, and none may be made.
            OutputError: It cannot be written there.
            CheckpointError: The source cannot be converted.
        """
        target = self.place(path, manifest)
        if self.is_made(path, manifest):
            log.warning("%s does not load into FSDP2 as it is; its conversion %s is used.", path, target)
            return target
        if self.conversion == "error":
            msg = (
                f"{str(path)!r} does not load into FSDP2 as it is, and `convert_checkpoints` is 'error'. "
                f"Convert it: `fsdp-migrate convert {path} {target}`, and load that."
            )
            raise CheckpointMismatchError(msg, path=path)
        log.warning("%s does not load into FSDP2 as it is; it is converted to %s.", path, target)
        try:
            convert_checkpoint(str(path), target, overwrite=True, options=TRUSTED)
            # Last: a conversion without it is one that was left in the midst, or made by the command.
            Path(target, SOURCE_FILE).write_text(json.dumps(dict(manifest.stamps)), encoding="utf-8")
        except OSError as error:
            msg = (
                f"{str(path)!r} does not load into FSDP2 as it is, and its conversion cannot be written to "
                f"{str(target)!r}: {error} Give the callback a `cache_folder` that every node sees and that "
                f"can be written, or convert it: `fsdp-migrate convert {path} OUT`, and load OUT."
            )
            raise OutputError(msg, path=target) from error
        return target

    def _holds(self, target: Path, manifest: Manifest) -> bool:
        """Tell whether a conversion is there, whole, and of what the source is now."""
        if not Path(target, METADATA_FILE).is_file():
            return False
        try:
            if plan_conversion(inspect_checkpoint(str(target), options=TRUSTED)).action != "none":
                return False
        except CheckpointError as error:
            log.warning("The conversion %s is made again, because it is damaged: %s", target, error)
            return False
        try:
            noted = json.loads(Path(target, SOURCE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # Made by the command, or left before the note was written: it holds if it is the newer one.
            return Path(target, METADATA_FILE).stat().st_mtime_ns >= _last_change(manifest)
        return bool(noted == dict(manifest.stamps))


def _last_change(manifest: Manifest) -> int:
    """Return when the last of a source's files was written, in nanoseconds."""
    source = Path(manifest.source)
    if source.is_file():
        return source.stat().st_mtime_ns
    return max((source / name).stat().st_mtime_ns for name in manifest.stamps)
