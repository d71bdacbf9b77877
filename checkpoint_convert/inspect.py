"""What is this checkpoint, and what does it hold?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.layouts.dcp import inspect_dcp
from fsdp_migrate.checkpoint_convert.layouts.numbers import name_numbers
from fsdp_migrate.checkpoint_convert.layouts.recognise import Source, open_source
from fsdp_migrate.checkpoint_convert.layouts.tree import build_manifest
from fsdp_migrate.checkpoint_convert.source_options import SourceOptions
from fsdp_migrate.checkpoint_convert.storage import refuse_links


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.metadata import Manifest
    from fsdp_migrate.checkpoint_convert.progress import Progress
    from fsdp_migrate.checkpoint_convert.storage import Location


def inspect_checkpoint(
    src: Location,
    *,
    deep: bool = False,
    options: SourceOptions | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Say what a checkpoint is and what it holds. Nothing is changed, and nothing of it is executed.

    The metadata is held against the files: every item inside its file, every tensor covered exactly once by
    its chunks, every path inside the folder.

    Args:
        src: A folder that torch.distributed.checkpoint or Composer wrote, a file of torch.save or
            safetensors, a folder of such files that belong together, or an fsspec URL of one of these.
        deep: Also read every stored item, which is all of the data: its structure, its checksum, and whether
            it is what the metadata says.
        options: What the source does not say itself: the model, or the names behind numbers.
        progress: Called with a :class:`ProgressEvent` now and then where ``deep`` was asked for.

    Raises:
        CheckpointNotFoundError: There is nothing at ``src``.
        CheckpointFormatError: It is damaged, incomplete, unsafe to read, or no checkpoint.
        UnsupportedFeatureError: It is a checkpoint of a kind that cannot be converted yet.

    Example:
        >>> inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp").stack
        'torch'
    """
    source, options = open_source(src), options or SourceOptions()
    folder = source.folder
    try:
        stamps = folder.stamps(source.files)
        manifest = replace(_read(source, options), stamps=stamps, outline=options.model)
        refuse_links(folder, manifest.files)
        if deep:
            from fsdp_migrate.checkpoint_convert.deep import inspect_items

            manifest = inspect_items(folder, manifest, progress)
    finally:
        folder.close()
    return manifest


def _read(source: Source, options: SourceOptions) -> Manifest:
    if source.read is None:
        return inspect_dcp(source.folder, source.files)
    contents = source.read(options)
    name_numbers(contents, options)
    return build_manifest(source.folder, source.url, source.files, contents, options)
