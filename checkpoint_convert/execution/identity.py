"""Is it still the same source, and the same conversion?"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.execution.placement import DataItem
from fsdp_migrate.errors import CheckpointFormatError
from fsdp_migrate.versions import own_version


if TYPE_CHECKING:
    from collections.abc import Collection

    from fsdp_migrate.checkpoint_convert.execution.placement import Placement
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


def conversion_identity(
    plan: ConversionPlan, placement: Placement, metadata: bytes, *, checksums: bool
) -> str:
    """Return a text that is the same for two conversions that write the same bytes from the same source.

    Args:
        plan: The conversion.
        placement: Where everything goes.
        metadata: The metadata of the output, which says the same to torch.
        checksums: Whether checksums are written too.
    """
    digest = hashlib.sha256(metadata)
    digest.update(layout_digest(plan, placement).encode())
    parts = [
        own_version(),
        plan.manifest.source,
        plan.link,
        checksums,
        sorted(plan.manifest.stamps.items()),
        # What is linked gets another time by that.
        sorted((n, time) for n, (time, _) in plan.manifest.changes.items() if plan.action == "rewrite"),
        sorted(placement.taken.items()),
    ]
    digest.update(repr(parts).encode())
    return digest.hexdigest()


def layout_digest(plan: ConversionPlan, placement: Placement) -> str:
    """Return a text that is the same for two ranks that are about to write the same bytes.

    Machines may know the same file by other numbers, so what they see is compared by sizes.
    """
    parts = [
        own_version(),
        sorted(plan.manifest.files.items()),
        plan.extra_files,
        plan.manifest.mapped.rules if plan.manifest.mapped is not None else "",
        [(e.key, e.dtype, e.boxes) for e in plan.tensors if e.is_cast or e.is_rechunked],
    ]
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass"))
    for entry in plan.entries:
        digest.update(f"{entry.source.key}\0{entry.key}\0".encode("utf-8", "surrogatepass"))
    for name, items in placement.files.items():
        nbytes = sum(item.length for item in items)
        digest.update(f"{name}\0{len(items)}\0{nbytes}\0".encode("utf-8", "surrogatepass"))
        for item in items:
            if isinstance(item, DataItem):
                digest.update(item.data)
    return digest.hexdigest()


def check_unchanged(
    manifest: Manifest,
    source: Folder,
    linked: Collection[str] = (),
    *,
    only: Collection[str] | None = None,
) -> None:
    """Check that the files of a source are those that were inspected.

    Args:
        manifest: What was inspected.
        source: Where.
        linked: The files to which links are made, or removed that an earlier process made: the system notes
            that as a change.
        only: The files that count; without it all.

    Raises:
        CheckpointFormatError: One has another size, another time or another inode, or is gone. A time of
            change that was put back shows by the one that the system keeps.
    """
    names = {**manifest.files, **manifest.stamps}
    if only is not None:
        names = {name: names[name] for name in only if name in names}
    found = source.stamps(names, each=only is not None)
    changed = [name for name, stamp in manifest.stamps.items() if name in names and found.get(name) != stamp]
    times = source.changes(manifest.changes)
    # Who makes or removes a link to a file changes the time, and nothing else of it.
    changed += [
        name
        for name, (time, links) in manifest.changes.items()
        if name in names
        and name not in changed
        and name not in linked
        and times.get(name, (time, links))[0] != time
        and times[name][1] == links
    ]
    sizes = [(name, size) for name, size in manifest.files.items() if name in names]
    changed += [n for n, size in sizes if n not in changed and (n not in found or _size(found[n]) != size)]
    if changed:
        how = "has changed since it was inspected" if changed[0] in found else "is gone"
        more = f", and {len(changed) - 1} more too" * (len(changed) > 1)
        msg = (
            f"`{changed[0]}` in {manifest.source!r} {how}{more}. Is the checkpoint still being written, or "
            "being removed? Convert it when nothing changes it any more."
        )
        raise CheckpointFormatError(msg, path=f"{manifest.source}/{changed[0]}")


def _size(stamp: str) -> int:
    """Return the size that a stamp begins with."""
    return int(stamp.partition(":")[0])
