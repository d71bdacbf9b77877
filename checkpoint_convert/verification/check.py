"""Is one checkpoint whole in itself? Its checksums, its metadata, and every stored item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.arguments import FUNCTION, NOTHING, PATH, check_arguments, instance_of
from fsdp_migrate.checkpoint_convert.formats.checksums import CHECKSUMS_FILE, checksum_problems
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.sources.read import read_manifest
from fsdp_migrate.checkpoint_convert.storage.errors import within_limits
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.checkpoint_convert.verification.item_check import ItemsCheck, check_items
from fsdp_migrate.errors import CheckpointFormatError, CheckpointNotFoundError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress
    from fsdp_migrate.findings import Finding


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What checking one checkpoint found.

    Attributes:
        source: The checkpoint.
        damages: What is wrong, by file or entry; empty if nothing is.
        entries: How many entries its metadata lists, each held against the files.
        items: How many stored items and files were read.
        nbytes: The bytes that agree with a checksum of their own.
        unprotected: The bytes that have none.
        hashed_files: How many files were held against ``SHA256SUMS``; None where there is no such file.
        findings: What there is to say about it.
    """

    source: str
    damages: Mapping[str, str]
    entries: int
    items: int
    nbytes: int
    unprotected: int
    hashed_files: int | None
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Tell whether nothing is wrong."""
        return not self.damages

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "source": self.source,
            "is_whole": self.is_whole,
            "damages": dict(self.damages),
            "entries": self.entries,
            "items": self.items,
            "nbytes": self.nbytes,
            "unprotected": self.unprotected,
            "hashed_files": self.hashed_files,
            "findings": [finding.as_dict() for finding in self.findings],
        }


@within_limits("check the checkpoint")
def check_checkpoint(
    src: Location, *, progress: Progress | None = None, options: SourceOptions | None = None
) -> CheckReport:
    """Check one checkpoint in itself, and read all of it for that. Nothing is changed or executed.

    Where it has ``SHA256SUMS``, as ``checksums=True`` writes it, every file is held against that. Then its
    metadata is held against its files, and every stored item is read: it has to be where the metadata says,
    agree with its checksum, and hold what the metadata says. Files of torch.save have such checksums;
    ``.metadata``, safetensors and the format of torch.save before 1.6 have none, and the report says how many
    bytes these are.

    Args:
        src: A checkpoint of any kind that :func:`inspect_checkpoint` reads.
        progress: Called with a :class:`ProgressEvent` now and then.
        options: As for :func:`inspect_checkpoint`.

    Raises:
        CheckpointError: It is so damaged that nothing tells what it holds, or is no checkpoint.

    Example:
        >>> report = check_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp")
        >>> report.is_whole, report.unprotected
        (True, 0)
    """
    check_arguments(PATH, src=src)
    check_arguments(instance_of(SourceOptions) | NOTHING, options=options)
    check_arguments(FUNCTION | NOTHING, progress=progress)
    folder = open_folder(src)
    try:
        hashed, damages = hash_damages(folder, progress)
    finally:
        folder.close()
    try:
        manifest = read_manifest(src, options)
    except (CheckpointFormatError, CheckpointNotFoundError) as error:
        if not damages:
            raise
        return CheckReport(str(src), {**damages, str(src): str(error)}, 0, 0, 0, 0, hashed, ())
    check = check_manifest(manifest, progress)
    # The report says itself what was read.
    said = {"FM270"} if hashed is None else {"FM270", "FM271"}
    findings = [*manifest.findings, *(f for f in check.findings if f.code not in said)]
    return CheckReport(
        source=manifest.source,
        damages={**damages, **{key: str(error) for key, error in check.damages.items()}},
        entries=len(manifest.entries),
        items=check.items,
        nbytes=check.nbytes,
        unprotected=0 if hashed is not None else check.unprotected,
        hashed_files=hashed,
        findings=tuple(findings),
    )


def hash_damages(folder: Folder, progress: Progress | None) -> tuple[int | None, dict[str, str]]:
    """Hold a folder against its ``SHA256SUMS``: how many files it lists, and what is wrong with which.

    Raises:
        CheckpointFormatError: The file itself is damaged.
    """
    if not folder.has(CHECKSUMS_FILE):
        return None, {}
    problems = checksum_problems(folder, progress)
    damages = {f"{folder.url}/{name}": text for name, text in problems.items()}
    return len(folder.files()) - 1, damages


def check_manifest(manifest: Manifest, progress: Progress | None) -> ItemsCheck:
    """Read every stored item of a checkpoint that was inspected."""
    folder = open_folder(manifest.source)
    try:
        return check_items(folder, manifest, progress)
    finally:
        folder.close()
