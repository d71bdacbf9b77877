"""What is this checkpoint, and what does it hold?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.layouts.dcp import inspect_dcp
from fsdp_migrate.checkpoint_convert.layouts.recognise import open_checkpoint


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.metadata import Manifest
    from fsdp_migrate.checkpoint_convert.storage import Location


def inspect_checkpoint(src: Location, *, deep: bool = False) -> Manifest:
    """Say what a checkpoint is and what it holds. Nothing is changed, and nothing of it is executed.

    The metadata is held against the files: every item inside its file, every tensor covered exactly once by
    its chunks, every path inside the folder.

    Args:
        src: A folder that torch.distributed.checkpoint or Composer wrote, or its fsspec URL.
        deep: Also read every stored item: its structure, its checksum, and whether it is what the
            metadata says.

    Raises:
        CheckpointNotFoundError: There is nothing at ``src``.
        CheckpointFormatError: It is damaged, incomplete, unsafe to read, or no checkpoint.
        UnsupportedFeatureError: It is a checkpoint of a kind that cannot be converted yet.

    Example:
        >>> inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp").stack
        'torch'
    """
    folder, files = open_checkpoint(src)
    try:
        stamps = folder.stamps(files)
        manifest = replace(inspect_dcp(folder, files), stamps=stamps)
        if deep:
            from fsdp_migrate.checkpoint_convert.deep import inspect_items

            manifest = inspect_items(folder, manifest)
    finally:
        folder.close()
    return manifest
