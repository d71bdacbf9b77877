"""Read a source into a :class:`Manifest`, whatever its layout."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.formats.pickle_reader import paused_gc
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.sources.contents import build_manifest
from fsdp_migrate.checkpoint_convert.sources.detect import Source, open_source
from fsdp_migrate.checkpoint_convert.sources.optimizer_names import name_numbers
from fsdp_migrate.checkpoint_convert.sources.tied_tensors import find_tied_keys
from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder, refuse_links


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


def read_manifest(src: Location, options: SourceOptions | None = None) -> Manifest:
    """Return what a source holds."""
    with reading_source(src, options) as (_, manifest):
        return manifest


@contextlib.contextmanager
def reading_source(src: Location, options: SourceOptions | None = None) -> Iterator[tuple[Folder, Manifest]]:
    """Open a source, and say what it holds; its folder is open in the block."""
    source, options = open_source(src), options or SourceOptions()
    folder = source.folder
    try:
        # Before the manifest is made: what changes from here on differs from these.
        stamps, changes = folder.stamps(source.files), folder.changes(source.files)
        with paused_gc(), _noting(folder) as seen:
            manifest = replace(_read(source, options), stamps=stamps, changes=changes, outline=options.model)
            ties, findings = find_tied_keys(folder, manifest)
            manifest = replace(manifest, ties=ties, findings=(*manifest.findings, *findings), seen=seen)
        # Of the files that it consists of. Others that lead outside are left out of the output, and named.
        refuse_links(folder, manifest.files)
        yield folder, manifest
    finally:
        folder.close()


def _noting(folder: Folder) -> AbstractContextManager[dict[tuple[str, int, int], bytes]]:
    return folder.noting() if isinstance(folder, LocalFolder) else contextlib.nullcontext({})


def _read(source: Source, options: SourceOptions) -> Manifest:
    contents = source.read(options)
    # Of the numbered optimizer in a distributed checkpoint one rank's state is left, whatever its names.
    if not contents.is_distributed:
        name_numbers(contents, options)
    return build_manifest(source.folder, source.url, source.files, contents, options)
