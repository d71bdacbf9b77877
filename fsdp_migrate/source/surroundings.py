"""What stands around the sources of a repository: configs with FSDP settings, and checkpoints.

Checkpoints are recognised by names and first bytes, so that a look at a repository stays quick and loads no
torch; ``fsdp-migrate inspect`` reads them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.errors import ConfigError, FindingsError, FSDPMigrateError
from fsdp_migrate.source.files import NEVER, find_sources


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_CONFIGS = frozenset({".json", ".yaml", ".yml"})
_MAX_CONFIG = 1_000_000
_SPEAKS_OF_FSDP = re.compile(
    rb"fsdp|FSDP|FullyShardedDataParallel|full_shard|transformer_layer_cls_to_wrap|use_orig_params"
    rb"|limit_all_gathers|backward_prefetch|sync_module_states"
)
_NOTHING = "there is nothing to convert"

_COMPOSER = re.compile(r"^(ep\d+-ba\d+|latest-rank\d+.*)$")
_PER_RANK = re.compile(r"(^|[._-])rank[._-]?\d+([._-]|$)")
_WHOLE = frozenset({".bin", ".ckpt", ".pt", ".pth"})
_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class ConfigFound:
    """A config that speaks of FSDP. ``state``: what ``fsdp-migrate config`` would do with it."""

    path: str
    stack: str
    state: Literal["changes", "fsdp2", "refused", "unclear", "broken"]
    message: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {"path": self.path, "stack": self.stack, "state": self.state, "message": self.message}


@dataclass(frozen=True)
class CheckpointFound:
    """What looks like a checkpoint, and of which layout.

    Attributes:
        path: The folder or the file.
        layout: How it is laid out.
        nbytes: How large it is.
        read_by: The places in sources and scripts that name it.
        target: Where its conversion belongs: apart, so that nothing takes it for the newest of the old run.
        is_converted: Whether there is something at the target already.
        is_latest: Whether none of the same run is newer.
    """

    path: str
    layout: str
    nbytes: int = 0
    read_by: tuple[str, ...] = ()
    target: str = ""
    is_converted: bool = False
    is_latest: bool = True

    @property
    def is_full(self) -> bool:
        """Tell whether it is a full state, which the functions for full states read as it is."""
        return self.layout.startswith("full state")

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {
            "path": self.path,
            "layout": self.layout,
            "nbytes": self.nbytes,
            "read_by": list(self.read_by),
            "target": self.target,
            "is_converted": self.is_converted,
            "is_latest": self.is_latest,
        }


def find_configs(paths: Iterable[str | os.PathLike[str]]) -> list[ConfigFound]:
    """Return the YAML and JSON files at and below paths that speak of FSDP; ``.gitignore`` is respected.

    Nothing is written. A file that cannot be read or parsed is returned with the reason.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_configs(["fsdp_migrate/source"])
        []
    """
    files = (path for path in find_sources(paths, _CONFIGS) if path.suffix in _CONFIGS)
    return [found for path in files if _may_be_config(path) and (found := _look_at(path)) is not None]


def _may_be_config(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _MAX_CONFIG and _speaks_of_fsdp(path)
    except OSError:
        return False


def _speaks_of_fsdp(path: Path) -> bool:
    return _SPEAKS_OF_FSDP.search(path.read_bytes()) is not None


def _look_at(path: Path) -> ConfigFound | None:
    from fsdp_migrate.config_files import convert_config_file

    try:
        report = convert_config_file(path)
    except FindingsError as error:
        return ConfigFound(str(path), "", "refused", str(error).partition("\n")[0])
    except ConfigError as error:
        message = " ".join(str(error).split()).removeprefix(f"{str(path)!r}: ")
        if _NOTHING in message:
            return None
        unclear = "Nothing in it configures" in message or "nothing to convert" in message
        return ConfigFound(str(path), "", "unclear" if unclear else "broken", message)
    except (FSDPMigrateError, RecursionError) as error:
        return ConfigFound(str(path), "", "refused", " ".join(str(error).split())[:300])
    stacks = ", ".join(dict.fromkeys(block.stack for block in report.conversion.blocks))
    return ConfigFound(str(path), stacks, "changes" if report.is_changed else "fsdp2")


def find_checkpoints(paths: Iterable[str | os.PathLike[str]]) -> list[CheckpointFound]:
    """Return what looks like checkpoints at and below paths; also where ``.gitignore`` names them.

    Example:
        >>> [each.layout for each in find_checkpoints(["tests/checkpoint/data/torch-2.13.0/plain.dcp"])]
        ['distributed checkpoint (DCP)']
    """
    from fsdp_migrate.source.checkpoint_runs import placed

    found = {
        each.path: each
        for path in map(Path, paths)
        for each in (_below(path) if path.is_dir() else _of_file(path))
    }
    return placed([found[path] for path in sorted(found)])


def _below(root: Path) -> Iterator[CheckpointFound]:
    for folder, folders, files in os.walk(root):
        layout = _layout_of(Path(folder), files)
        if layout is not None:
            folders.clear()
            yield CheckpointFound(str(Path(folder)), layout)
            continue
        folders[:] = sorted(name for name in folders if name not in NEVER)
        for name in sorted(files):
            yield from _of_file(Path(folder, name))


def _layout_of(folder: Path, files: list[str]) -> str | None:
    """Return the layout of a folder that is a checkpoint as a whole, or None."""
    if ".metadata" in files:
        composer = "Composer's " if _COMPOSER.match(folder.name) else ""
        return f"{composer}distributed checkpoint (DCP)"
    if any(name.endswith(".distcp") for name in files):
        return "distributed checkpoint (DCP) without its .metadata"
    ranks = [n for n in files if Path(n).suffix in _WHOLE and _PER_RANK.search(Path(n).stem)]
    if len(ranks) > 1 and all(_is_checkpoint(folder / name) for name in ranks):
        return f"one file for each of {len(ranks)} ranks"
    if any(name.endswith((".safetensors.index.json", ".bin.index.json")) for name in files):
        return "full state in several files"
    return None


def _of_file(path: Path) -> Iterator[CheckpointFound]:
    if path.suffix == ".safetensors":
        yield CheckpointFound(str(path), "full state (safetensors)")
    elif path.suffix in _WHOLE and _is_checkpoint(path):
        yield CheckpointFound(str(path), "full state (torch.save)")


def _is_checkpoint(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4).startswith(_STARTS) if path.is_file() else False
    except OSError:
        return False
