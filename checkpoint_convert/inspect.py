"""What is this checkpoint, and what does it hold?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.arguments import FLAG, FUNCTION, NOTHING, PATH, check_arguments, instance_of
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.sources.read import reading_source
from fsdp_migrate.checkpoint_convert.storage.errors import within_limits


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.checkpoint_convert.storage.folders import Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


@within_limits("inspect the checkpoint")
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
        >>> inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp").framework
        'torch'
    """
    check_arguments(PATH, src=src)
    check_arguments(FLAG, deep=deep)
    check_arguments(instance_of(SourceOptions) | NOTHING, options=options)
    check_arguments(FUNCTION | NOTHING, progress=progress)
    with reading_source(src, options) as (folder, manifest):
        if not deep:
            return manifest
        from fsdp_migrate.checkpoint_convert.verification.item_check import inspect_items

        return inspect_items(folder, manifest, progress)
