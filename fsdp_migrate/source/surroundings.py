"""What stands around the sources of a repository: configs with FSDP settings, and checkpoints.

Checkpoints are recognised as ``fsdp-migrate inspect`` recognises them, and not read beyond that: a look at a
repository stays quick, and loads no torch.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fsdp_migrate.adapters.conversion.dockerfiles import is_dockerfile
from fsdp_migrate.adapters.conversion.one_look import one_look
from fsdp_migrate.adapters.conversion.project_imports import text_if_there
from fsdp_migrate.checkpoint_convert.formats.file_names import METADATA_FILE
from fsdp_migrate.errors import (
    CheckpointError,
    ConfigError,
    FindingsError,
    FSDPMigrateError,
    NothingToConvertError,
)
from fsdp_migrate.findings import listed
from fsdp_migrate.left_comments import looks_for_them
from fsdp_migrate.source.asked_around import is_accelerates
from fsdp_migrate.source.copied_trainers import left_to_copies
from fsdp_migrate.source.files import (
    CONFIGS,
    MAYBE_CONFIGS,
    NEVER,
    SHELL,
    SUFFIXES,
    find_sources,
)
from fsdp_migrate.source.launchers import find_launches, wanted_elsewhere
from fsdp_migrate.source.saved_files import SAVED, is_data, is_lightnings, is_saved
from fsdp_migrate.text_files import newest_backup


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fsdp_migrate.source.checkpoint_outlooks import Outlook
    from fsdp_migrate.source.launchers import LaunchFound


_MAX_CONFIG = 1_000_000
_SPEAKS_OF_FSDP = re.compile(
    rb"fsdp|FSDP|FullyShardedDataParallel|full_shard|transformer_layer_cls_to_wrap|use_orig_params"
    rb"|limit_all_gathers|backward_prefetch|sync_module_states"
)
# What is not read: settings and tasks, and no package that has FSDP in its name.
_IN_TOML = re.compile(
    rb"--(?:use[_-])?fsdp\b|^[ \t]*\[?[\w.]*\bfsdp_config\b|^[ \t]*(?:fsdp_)?sharding_strategy\s*="
    rb"|^[ \t]*strategy\s*=\s*['\"]fsdp|^[ \t]*distributed_type\s*=\s*['\"]FSDP|\bACCELERATE_USE_FSDP\b",
    re.MULTILINE,
)
_NAMED_FILE = re.compile(r"--fsdp_config[= ]\s*[\"']?(?:[^\s\"']*/)?([^\s\"'/]+\.json)\b")
_PREPARES = re.compile(rb"^[^#\n]*\bprepare_fully_shard\b", re.MULTILINE)
# A project's own choice, `name: fsdp2`, beside one of FSDP1: there is nothing to convert in it.
_SAYS_FSDP2 = re.compile(
    r"^[ \t]*(?:name|strategy|type|mode|backend)[ \t]*:[ \t]*['\"]?fsdp2['\"]?[ \t]*(?:#.*)?$", re.MULTILINE
)
_COMPOSER = re.compile(r"^(ep\d+-ba\d+|latest-rank\d+.*)$")
_ENDS = (*SAVED, ".safetensors", ".safetensors.index.json", ".bin.index.json")
_META = "meta.pt"
# A folder with a repository is copied in so many seconds.
_COPYING = 30.0
_MOST_NAMED = 6
_SHARD_THEMSELVES = frozenset({"accelerate", "axolotl", "hf", "lightning"})
"""What shards by its settings. Composer's stay as they are where its callback is added."""
_STILL_ASK = (
    "These settings still ask for FSDP1, and have to be FSDP2's{}, by `fsdp-migrate config FILE`: {}."
)
_WITH_TURNED = " A model of FSDP1 comes to lines that are turned without an error, and they do nothing."
_INCOMPLETE = "incomplete or ambiguous"
_WITHOUT_METADATA = "distributed checkpoint (DCP) without its .metadata"
# And the bytes of checkpoints in a second, where a disk or a network is slow.
_COPIED = 50e6
_ONE_FILE = frozenset({"file", "safetensors"})
# Folders with what tests read, and no run starts from; one that is given is looked through.
_FIXTURES = frozenset({"fixtures", "test_data", "testdata", "tests"})


@dataclass(frozen=True)
class ConfigFound:
    """A config that speaks of FSDP. ``state``: what ``fsdp-migrate config`` would do with it.

    ``fsdp1_copy`` is the copy of FSDP1's settings that was kept beside one that is FSDP2's.
    ``holds_arguments``: of no framework, but with FSDP1's arguments for code of its own.
    ``lacks_version``: HF Trainer's without ``version``, by which transformers runs FSDP2 from 5.10 on.
    ``is_named``: HF Trainer's, by a launch line that names it, and not by what stands in it.
    ``needs_code``: a source that reads it is to be changed. ``is_switch``: it has switches of code alone.
    ``is_own``: code of the project is seen to look its keys up.
    ``wanted``: what is to be written into the file that it names, which says it of FSDP1 itself.
    """

    path: str
    framework: str
    state: Literal["changes", "elsewhere", "fsdp2", "unused", "refused", "unclear", "broken"]
    message: str = ""
    fsdp1_copy: str = ""
    holds_arguments: bool = False
    lacks_version: bool = False
    is_named: bool = False
    needs_code: bool = False
    wanted: str = ""
    is_switch: bool = False
    is_own: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {
            "path": self.path,
            "framework": self.framework,
            "state": self.state,
            "message": self.message,
            "fsdp1_copy": self.fsdp1_copy,
            "holds_arguments": self.holds_arguments,
        }


@dataclass(frozen=True)
class CheckpointFound:
    """What looks like a checkpoint, and of which layout.

    Attributes:
        path: The folder or the file.
        layout: How it is laid out.
        nbytes: How large it is.
        read_by: The places in sources and scripts that name it to read it.
        target: Where its conversion belongs: apart, so that nothing takes it for the newest of the old run.
        is_converted: Whether there is something at the target already.
        is_latest: Whether none of the same run is newer.
        before: The one before it, of the same run.
        is_lightnings: Whether Lightning's Trainer saved it.
        saved: When it was saved last, in seconds.
        is_fsdp2s: Whether it was saved after FSDP1 was gone from the sources and configs, or converted.
        beside: The files of the other ranks.
        outlook: What its head says; None where that was not read, or is more than yes or no.
        is_export: Whether it is weights alone that lie apart from what runs go on from.
    """

    path: str
    layout: str
    nbytes: int = 0
    read_by: tuple[str, ...] = ()
    target: str = ""
    is_converted: bool = False
    is_latest: bool = True
    before: str = ""
    is_lightnings: bool = False
    saved: float = 0.0
    is_fsdp2s: bool = False
    beside: tuple[str, ...] = ()
    outlook: Outlook | None = None
    is_export: bool = False

    @property
    def is_full(self) -> bool:
        """Tell whether it is a full state, also of two files, which its script reads as it is."""
        return self.layout.startswith(("full state", "model and optimizer apart, in a file each"))

    @property
    def is_published(self) -> bool:
        """Tell whether ``from_pretrained`` reads weights that are there."""
        return "safetensors" in self.layout or any(Path(self.path).glob("model*.safetensors"))

    @property
    def is_incomplete(self) -> bool:
        """Tell whether it cannot be read as it lies there, as its layout says."""
        return self.layout.startswith(_INCOMPLETE) or self.layout == _WITHOUT_METADATA

    @property
    def is_of_ranks(self) -> bool:
        """Tell whether each rank saved a file of its own."""
        return self.layout == _title("ranks")

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
            "is_fsdp2s": self.is_fsdp2s,
            "is_export": self.is_export,
            "needs_conversion": None if self.outlook is None else self.outlook.is_needed,
        }


def find_configs(
    paths: Iterable[str | os.PathLike[str]], launches: Sequence[LaunchFound] = ()
) -> list[ConfigFound]:
    """Return the YAML and JSON files at and below paths that speak of FSDP; ``.gitignore`` is respected.

    Nothing is written. A file that cannot be read or parsed is returned with the reason. Of one that may be
    torch's or HF Trainer's, ``launches`` tell: they may name it.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_configs(["fsdp_migrate/source"])
        []
    """
    files = find_sources(paths, CONFIGS | MAYBE_CONFIGS | {".dockerfile", ".toml"})
    with one_look():
        found = [_look_at(path) for path in files if _may_be_config(path)]
        return _with_named([each for each in found if each is not None], launches)


def _may_be_config(path: Path) -> bool:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_CONFIG:
            return False
        if path.suffix == ".toml":
            return _IN_TOML.search(path.read_bytes()) is not None
        is_one = path.suffix in CONFIGS or is_dockerfile(path)
        return (is_one and _SPEAKS_OF_FSDP.search(path.read_bytes()) is not None) or is_accelerates(path)
    except OSError:
        return False


def _with_named(configs: Sequence[ConfigFound], launches: Sequence[LaunchFound]) -> list[ConfigFound]:
    """Return configs, those as HF Trainer's that may be torch's too, and that a launch line names."""
    trainers = {name for each in launches for name in _NAMED_FILE.findall(each.command)}
    return [
        (_look_at(Path(each.path), "hf") or each)
        if each.state == "unclear" and not each.is_own and Path(each.path).name in trainers
        else each
        for each in configs
    ]


def _look_at(path: Path, framework: str = "auto") -> ConfigFound | None:
    from fsdp_migrate.config_files import convert_config_file

    try:
        report = convert_config_file(path, framework=framework)
    except FindingsError as error:
        return ConfigFound(str(path), "", "refused", error.first_reason)
    except ConfigError as error:
        nothing = error if isinstance(error, NothingToConvertError) else None
        if nothing is not None and not nothing.names_fsdp:
            return None
        message = " ".join(str(error).split()).removeprefix(f"{str(path)!r}: ")
        if nothing is not None and _SAYS_FSDP2.search(text_if_there(path)):
            return ConfigFound(str(path), "", "fsdp2")
        state: Literal["unclear", "broken"] = "unclear" if nothing else "broken"
        told = nothing or NothingToConvertError(message, names_fsdp=True)
        holds, switch, own = told.holds_arguments, told.is_switch, told.is_own
        return ConfigFound(
            *(str(path), "", state, message), holds_arguments=holds, is_switch=switch, is_own=own
        )
    except (FSDPMigrateError, RecursionError) as error:
        return ConfigFound(str(path), "", "refused", " ".join(str(error).split())[:300])
    frameworks = ", ".join(dict.fromkeys(block.framework for block in report.conversion.blocks))
    copy = newest_backup(path) if report.state == "fsdp2" else None
    return ConfigFound(
        *(str(path), frameworks, report.state, report.left_to),
        fsdp1_copy="" if copy is None else str(copy),
        holds_arguments=frameworks == "torch" and report.state == "changes",
        lacks_version=frameworks == "hf" and report.state == "changes" and not report.has_version,
        is_named=framework != "auto",
        needs_code=bool(report.left_to) and any(block.code for block in report.conversion.blocks),
        wanted=wanted_elsewhere(report.conversion.findings),
    )


def said_of_settings(
    paths: Iterable[str | os.PathLike[str]], *, is_changed: bool, sharding: Iterable[str] = ()
) -> str:
    """Say which configs and launch lines still ask a framework for FSDP1; nothing of none.

    Args:
        paths: The files and folders of the project.
        is_changed: Whether sources of it change.
        sharding: Those whose models are sharded by FSDP2 then: a copied Trainer reads its flags as they are.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> said_of_settings(["fsdp_migrate/source"], is_changed=True)
        ''
    """
    every = list(paths)
    _, launches = left_to_copies(sharding, [each for each in find_launches(every) if not each.is_shown])
    found: list[tuple[str, ConfigFound | LaunchFound]] = [
        *((each.path, each) for each in find_configs(every, launches)),
        *((each.place, each) for each in launches),
    ]
    places = [
        place
        for place, each in found
        if each.state in {"changes", "refused"} and _SHARD_THEMSELVES & {*each.framework.split(", ")}
    ]
    when = " with the sources" if is_changed else ""
    said = _STILL_ASK.format(when, listed(dict.fromkeys(places), _MOST_NAMED)) if places else ""
    return said + _WITH_TURNED if said and is_changed else said


def turned_at(
    paths: Iterable[str | os.PathLike[str]], checkpoints: Sequence[CheckpointFound] = ()
) -> float | None:
    """Return when ``rewrite`` or ``config`` last wrote a file and kept its copy, or None where nothing tells.

    In a folder that was copied as a whole all files are as young as the copies that were kept. In a small
    project every source may have been rewritten: what lies beside it is looked at too.

    Args:
        paths: The files and folders of the project.
        checkpoints: Its checkpoints, which take their time to be copied.

    Example:
        >>> turned_at(["fsdp_migrate/source"]) is None
        True
    """
    files = find_sources(paths, SUFFIXES | SHELL | CONFIGS)
    copies = [copy for copy in map(newest_backup, files) if copy is not None]
    if not copies:
        return None
    turned = max(map(_written, copies))
    beside = (each for folder in {copy.parent for copy in copies} for each in folder.iterdir())
    times = [*map(_written, files), *(_written(each) for each in beside if each.is_file())]
    oldest = min([*times, *(each.saved for each in checkpoints)])
    copying = _COPYING + sum(each.nbytes for each in checkpoints) / _COPIED
    return turned if oldest < turned - copying else None


def _written(path: Path) -> float:
    return path.stat().st_mtime


def call_prepare(paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether Python sources at and below paths name ``prepare_fully_shard``, as rewritten ones do.

    Example:
        >>> call_prepare(["examples"]), call_prepare(["fsdp_migrate/source/files.py"])
        (True, False)
    """
    return any(_names_prepare(path) for path in find_sources(paths, SUFFIXES))


def _names_prepare(path: Path) -> bool:
    try:
        return path.suffix in SUFFIXES and _PREPARES.search(path.read_bytes()) is not None
    except OSError:
        return False


def look_for_comments(paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether a source or config at and below paths names what stops a run at what ``rewrite`` left.

    Example:
        >>> look_for_comments(["examples"]), look_for_comments(["fsdp_migrate/source/files.py"])
        (True, False)
    """
    return any(_looks_for_comments(path) for path in find_sources(paths, SUFFIXES | CONFIGS))


def _looks_for_comments(path: Path) -> bool:
    try:
        is_small = path.stat().st_size <= _MAX_CONFIG
        return is_small and looks_for_them(path.read_text(errors="replace"))
    except OSError:
        return False


def find_checkpoints(paths: Iterable[str | os.PathLike[str]]) -> list[CheckpointFound]:
    """Return what looks like checkpoints at and below paths; also where ``.gitignore`` names them.

    What tests read is left out, and so are safetensors with data.

    Example:
        >>> [each.layout for each in find_checkpoints(["tests/checkpoint/data/torch-2.13.0/plain.dcp"])]
        ['distributed checkpoint (DCP)']
    """
    from fsdp_migrate.source.checkpoint_runs import placed

    roots = list(map(Path, paths))
    found = {
        each.path: each for path in roots for each in (_below(path) if path.is_dir() else _of_file(path))
    }
    return placed([found[path] for path in sorted(found)], roots)


def _below(root: Path) -> Iterator[CheckpointFound]:
    from fsdp_migrate.checkpoint_convert.sources.lightning import is_fabrics_file

    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in NEVER | _FIXTURES)
        found = _layout_of(Path(folder), folders, files)
        if found is None:
            for name in sorted(files):
                yield from _of_file(Path(folder, name))
            continue
        has_meta = {METADATA_FILE, _META}.issubset(files)
        is_trainers = has_meta and not is_fabrics_file(Path(folder, _META))
        yield CheckpointFound(str(Path(folder)), found.layout, is_lightnings=is_trainers)
        if found.is_deep:
            folders.clear()


@dataclass(frozen=True)
class _Layout:
    """The layout of a folder as a whole, and whether what lies in folders below belongs to it."""

    layout: str
    is_deep: bool = False


def _layout_of(folder: Path, folders: list[str], files: list[str]) -> _Layout | None:
    """Return the layout of a folder that is a checkpoint as a whole, or None.

    What `inspect` takes for one is one here: its detection looks at the files in the folder itself, and one
    folder further for frameworks that keep model and optimizer in folders of their own.
    """
    if METADATA_FILE in files:
        composer = "Composer's " if _COMPOSER.match(folder.name) else ""
        return _Layout(f"{composer}distributed checkpoint (DCP)", is_deep=True)
    if any(name.endswith(".distcp") for name in files):
        return _Layout(_WITHOUT_METADATA, is_deep=True)
    own = _sizes(folder, files)
    below = {f"{name}/{inner}": size for name in folders for inner, size in _sizes(folder / name).items()}
    if not own and not below:
        return None
    # What reads checkpoints takes as long to load as the rest, and few repositories hold one.
    from fsdp_migrate.checkpoint_convert.sources.folder_layouts import FolderFiles, find_layout
    from fsdp_migrate.checkpoint_convert.storage.opening import open_folder

    opened = open_folder(folder)
    try:
        if title := FolderFiles(opened, own | below).components_title:
            return _Layout(_as_words(title), is_deep=True)
        found = find_layout(FolderFiles(opened, own))
    except CheckpointError as error:
        return _Layout(f"{_INCOMPLETE} ({' '.join(str(error).split())})")
    except FSDPMigrateError:
        return None
    finally:
        opened.close()
    # One file is reported as such: that is what a script names.
    if found is None or found.read is None or not _ONE_FILE.isdisjoint(found.names):
        return None
    return _Layout(_as_words(found.title))


def _sizes(folder: Path, names: Iterable[str] | None = None) -> dict[str, int]:
    """Return the files of a folder that may be of a checkpoint, with their sizes."""
    try:
        names = [path.name for path in folder.iterdir()] if names is None else names
        wanted = (name for name in names if name == METADATA_FILE or name.endswith(_ENDS))
        return {name: (folder / name).stat().st_size for name in wanted if (folder / name).is_file()}
    except OSError:
        return {}


def _title(layout: str) -> str:
    from fsdp_migrate.checkpoint_convert.sources.folder_layouts import layout_title

    return _as_words(layout_title(layout))


def _as_words(title: str) -> str:
    """Return a title as it stands within a sentence."""
    return title[0].lower() + title[1:]


def _of_file(path: Path) -> Iterator[CheckpointFound]:
    from fsdp_migrate.checkpoint_convert.sources.folder_layouts import BESIDE_MODELS

    if path.suffix == ".safetensors" and not is_data(path):
        yield CheckpointFound(str(path), _title("safetensors"))
    elif not BESIDE_MODELS.fullmatch(path.name) and is_saved(path):
        is_trainers = is_lightnings(path)
        layout = f"{_title('file')} of Lightning's Trainer" if is_trainers else _title("file")
        yield CheckpointFound(str(path), layout, is_lightnings=is_trainers)
