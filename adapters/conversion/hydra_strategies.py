"""A strategy of Lightning's that several files of Hydra make: what one makes, others add arguments to."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.one_look import kept_in_a_look
from fsdp_migrate.adapters.conversion.project_imports import ROOT
from fsdp_migrate.adapters.conversion.text import read_documents
from fsdp_migrate.adapters.document.nodes import effective
from fsdp_migrate.adapters.engine.base import mappings_of, plain_values
from fsdp_migrate.adapters.engine.torch_objects import target_of
from fsdp_migrate.adapters.lightning import LIGHTNING_KEYS
from fsdp_migrate.errors import ConfigError, NothingToConvertError
from fsdp_migrate.findings import Finding, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_PACKAGE = re.compile(r"^#[ \t]*@package[ \t]+([\w.]+)", re.MULTILINE)
_STRATEGY = re.compile(r"(?:\A|\.)(FSDP|ModelParallel)Strategy\Z")
_KEPT = frozenset({"process_group_backend", "timeout"})
_ANYONES = _KEPT | {
    *("accelerator", "parallel_devices", "cluster_environment", "checkpoint_io", "precision_plugin"),
}
_REFUSED = frozenset(key.name for key in LIGHTNING_KEYS) - _KEPT
_MAKES = re.compile(r"\b(?:FSDP|ModelParallel)Strategy\b")
_ADDS = re.compile(rf"\b(?:{'|'.join(sorted(_REFUSED - _ANYONES))})\b")
_FARTHEST = 3
_CONFIGS = re.compile(r"conf\Z|configs?\Z|hydra", re.IGNORECASE)
_MOST_FILES = 300
_MOST_FOLDERS = 200
_MOST_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class _Part:
    """What a file of Hydra's has at one place of the whole config: a strategy, or arguments for one."""

    path: Path
    inner: str
    place: tuple[str, ...]
    names: tuple[str, ...]
    is_strategy: bool
    is_fsdp2: bool = False


def said_of_others(path: Path, text: str, strategies: Iterable[str]) -> list[Finding]:
    """Return what to say of other files that add arguments to the strategies of a file.

    Args:
        path: The file that makes them.
        text: What it holds.
        strategies: Where they stand in it.
    """
    told = set(strategies)
    found = []
    for own, other in _pairs(path.absolute(), text, is_strategy=True):
        if own.inner not in told:
            continue
        at = ".".join(own.place)
        message = f"{_from_here(other.path, path)} adds {named(other.names, 8)} to it, at `{at}`: {_STOPS}"
        hint = "Move them from there into this file, and convert it then: the hook has them too."
        found.append(make_finding("FM356", at, message, hint))
    return list(dict.fromkeys(found))


def adds_to_another(path: Path, text: str) -> NothingToConvertError | None:
    """Return the error that says of which file's strategy a file has arguments; None where it has none."""
    for own, other in _pairs(path.absolute(), text, is_strategy=False):
        name = _from_here(other.path, path)
        command = f"`fsdp-migrate config {shlex.quote(name)}`"
        how = f"Move them into that file, and convert it then, {command}: the hook has them too."
        if other.is_fsdp2:
            how = "Take them out, and give them to `prepare_fully_shard` in the hook `configure_model`."
        at = ".".join(own.place)
        msg = f"It adds {named(own.names, 8)} to the strategy that {name} makes, at `{at}`: {_STOPS} {how}"
        return NothingToConvertError(msg, names_fsdp=True)
    return None


_STOPS = "FSDPStrategy takes them, and ModelParallelStrategy stops at them."


def _pairs(path: Path, text: str, *, is_strategy: bool) -> Iterator[tuple[_Part, _Part]]:
    """Yield what a file has at a place, with what another one has there: of a strategy its arguments."""
    has_own, has_other = (_MAKES, _ADDS) if is_strategy else (_ADDS, _MAKES)
    if has_own.search(text) is None:
        return
    for root in path.parents[:_FARTHEST]:
        # By their words first: a project has hundreds of files, and each asks for those of all.
        files = [file for file in _files(root) if file != path][:_MOST_FILES]
        texts = {file: _read(file) for file in files if _says(has_other, file)}
        parts = _parts(path, text, root) if texts else ()
        own = [part for part in parts if part.is_strategy is is_strategy and part.place]
        others = [
            (mine, other)
            for file, found in texts.items()
            for other in _parts(file, found, root)
            for mine in own
            if other.place == mine.place
            and other.is_strategy is not is_strategy
            and (_may_choose(file, path, root) if is_strategy else _may_choose(path, file, root))
        ]
        if others:
            yield from others
            return
        if _ends_at(root):
            return


def _ends_at(folder: Path) -> bool:
    """Tell whether a folder is that of Hydra's configs, or a project's: nothing above is read with them."""
    return bool(_CONFIGS.match(folder.name)) or any((folder / name).exists() for name in ROOT)


def _from_here(other: Path, path: Path) -> str:
    """Return a file's name as that of another file was given: absolute, or from this folder."""
    return str(other) if path.is_absolute() else os.path.relpath(other)


@kept_in_a_look
def _files(root: Path) -> list[Path]:
    """Return the YAML of a folder and those below it: so many folders at most, and none that is hidden."""
    found: list[Path] = []
    for count, (folder, folders, names) in enumerate(os.walk(root)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(folder) / name for name in sorted(names) if name.endswith((".yaml", ".yml"))]
        if count >= _MOST_FOLDERS or len(found) > _MOST_FILES:
            break
    return found


@kept_in_a_look
def _says(words: re.Pattern[str], path: Path) -> bool:
    return words.search(_read(path)) is not None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= _MOST_BYTES else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _parts(path: Path, text: str, root: Path) -> Iterator[_Part]:
    """Yield what stands in a file, by its places in the whole config whose folder is given."""
    try:
        documents = read_documents(text.removeprefix("\ufeff"), is_json=False)
    except ConfigError:
        return
    package = _package(path, text, root)
    for document in documents[:1]:
        for inner, mapping in mappings_of(document):
            target = target_of(plain_values(mapping))
            given = set(effective(mapping))
            names = tuple(name for name in effective(mapping) if name in _REFUSED)
            at, place = ".".join(inner) or ".", (*package, *inner)
            if target is not None and (made := _STRATEGY.search(target)):
                yield _Part(path, at, place, names, is_strategy=True, is_fsdp2=made[1] != "FSDP")
            elif target is None and given & (_REFUSED - _ANYONES):
                yield _Part(path, at, place, names, is_strategy=False)


def _package(path: Path, text: str, root: Path) -> tuple[str, ...]:
    """Return where in the whole config the contents of a file go."""
    group = path.parent.relative_to(root).parts
    said = _PACKAGE.search(text)
    if said is None:
        return group
    names = said[1].split(".")
    if names[0] == "_group_":
        return (*group, *names[1:])
    return tuple(names[1:] if names[0] == "_global_" else names)


def _may_choose(chooser: Path, chosen: Path, root: Path) -> bool:
    """Tell whether a file that adds to another's strategy may be read with it: it chooses no other file."""
    parts = chosen.parent.relative_to(root).parts
    # The folder of the configs may lie below: `c/trainer` of the project is `trainer` there.
    group = "(?:" + "|".join(re.escape("/".join(parts[at:])) for at in range(len(parts))) + "|(?!))"
    text = _read(chooser)
    chosen_of = rf"(?:^[ \t]*-|[\[,{{])\s*(?:override\s+)?/?{group}(?:@[\w.]+)?\s*:\s*[\"']?([\w./-]+)"
    options = re.findall(chosen_of, text, re.MULTILINE)
    if options:
        return chosen.stem in {option.removesuffix(".yaml").rpartition("/")[2] for option in options}
    if chooser.parent != chosen.parent:
        return True
    # Of one group's files one alone is chosen, unless one begins with another.
    begins = rf"(?:^[ \t]*-|[\[,])\s*[\"']?(?:/?{group}/)?{{}}(?:\.yaml)?[\"']?\s*(?=[,\]#]|$)"
    pairs = ((text, chosen.stem), (_read(chosen), chooser.stem))
    return any(re.search(begins.format(re.escape(stem)), each, re.MULTILINE) for each, stem in pairs)
