"""Is it still the same source, and the same conversion?"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.execution.placement import DataItem
from fsdp_migrate.checkpoint_convert.storage.folders import LocalFolder, digest_of
from fsdp_migrate.errors import CheckpointFormatError
from fsdp_migrate.versions import own_version


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import NoReturn

    from fsdp_migrate.checkpoint_convert.execution.placement import Placement
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_TRIES: Final = 4
"""So often files are compared, where each time something was noted meanwhile."""


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
    is_same: Callable[[Collection[str]], bool] = lambda names: False,
) -> None:
    """Check that the files of a source are those that were inspected.

    Args:
        manifest: What was inspected.
        source: Where.
        linked: The files to which links are made, or removed that an earlier process made: the system notes
            that as a change.
        only: The files that count; without it all.
        is_same: Tells of files whose size, time and inode are as they were, while the system notes a change,
            whether they hold what was read of them. Who makes a link to a file and removes it, or changes
            who may read it, does that; so does who writes it, and puts the time back.

    Raises:
        CheckpointFormatError: One has another size, another time or another inode, or is gone; or the system
            notes a change, and what it holds is another or was not compared.
    """
    times: Mapping[str, tuple[int, int]] = {}
    for _ in range(_TRIES):
        last = times
        changed, found, times = _look(manifest, source, linked, only)
        if changed:
            how = "has changed since it was inspected" if changed[0] in found else "is gone"
            _refuse(manifest, changed, f"{how}{{}}. Is the checkpoint still being written, or being removed?")
        # Once more after the comparison: something may have happened meanwhile.
        if not times or times == last:
            return
        if not is_same(list(times)):
            break
    how = (
        "has changed since it was inspected{}: the system notes a change, though size and time are as they "
        "were. Was it written, or did a backup link it, or somebody change who may read it?"
    )
    _refuse(manifest, list(times), how)


def _look(
    manifest: Manifest, source: Folder, linked: Collection[str], only: Collection[str] | None
) -> tuple[list[str], Mapping[str, str], Mapping[str, tuple[int, int]]]:
    """Return what has changed, the stamps, and by their names the times of what may have changed."""
    names = {**manifest.files, **manifest.stamps}
    if only is not None:
        names = {name: names[name] for name in only if name in names}
    found = source.stamps(names, each=only is not None)
    changed = [name for name, stamp in manifest.stamps.items() if name in names and found.get(name) != stamp]
    sizes = [(name, size) for name, size in manifest.files.items() if name in names]
    changed += [n for n, size in sizes if n not in changed and (n not in found or _size(found[n]) != size)]
    times = source.changes(manifest.changes)
    # Who makes or removes a link to a file changes the time, and nothing else of it.
    noted = {
        name: times[name]
        for name, (time, links) in manifest.changes.items()
        if name in names
        and name not in changed
        and name not in linked
        and times.get(name, (time, links))[0] != time
        and times[name][1] == links
    }
    return changed, found, noted


def _refuse(manifest: Manifest, changed: Sequence[str], how: str) -> NoReturn:
    more = f", and {len(changed) - 1} more too" * (len(changed) > 1)
    where = f"`{changed[0]}` in {manifest.source!r}"
    msg = f"{where} {how.format(more)} Convert it when nothing changes it any more."
    raise CheckpointFormatError(msg, path=f"{manifest.source}/{changed[0]}")


def holds_what_was_seen(manifest: Manifest, source: Folder, names: Collection[str]) -> bool:
    """Tell whether files still hold what was read of them to inspect them; False where nobody can tell."""
    if type(source) is not LocalFolder:  # what was unpacked stays as it was, whatever becomes of the archive
        return False
    noted = {name for name, _, _ in manifest.seen}
    if not noted.issuperset(set(names) - manifest.extra_files.keys()):
        return False
    return all(
        digest_of(source.read(name, offset, length)) == seen
        for (name, offset, length), seen in manifest.seen.items()
        if name in names
    )


def _size(stamp: str) -> int:
    """Return the size that a stamp begins with."""
    return int(stamp.partition(":")[0])
