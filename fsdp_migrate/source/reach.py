"""Which files of a project a sharded model may come to: those that shard one, and what imports lead to."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.fsdp2_alone import FSDP2Alone
from fsdp_migrate.source.left_words import LeftWords
from fsdp_migrate.source.live_sharding import LiveSharding
from fsdp_migrate.source.plain_places import PlainPlaces
from fsdp_migrate.source.project import Module, is_a_test, parts_of
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.rules.unfollowed import may_find
from fsdp_migrate.source.runs_without_fsdp import RunsWithoutFSDP
from fsdp_migrate.source.sharding_files import ShardingFiles
from fsdp_migrate.source.without_group import with_tests_without_group


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
_MEGATRON: Final = re.compile(r"^[ \t]*(?:from|import)[ \t]+megatron\b", re.MULTILINE)
_BY_NAME: Final = re.compile(r"\bimport_module\(\s*f?['\"]([\w.]+?)(\.\{|['\"])")
# A method of torch's name, which modules of functions have, too: `nn.utils.clip_grad_norm_(...)`.
_CLIPS: Final = re.compile(r"(?<!utils)\.clip_grad_norm_\(")
_ANY_MODULE: Final = re.compile(
    r"\btrust_remote_code\b|\bimport_module\(|\b__import__\(|\bspec_from_file_location\b|\brunpy\b"
)
_FARTHEST: Final = 4


def with_reach(
    project: Project,
    links: Mapping[Path, Links],
    by_frameworks: Iterable[Path] = (),
    around: Iterable[str | os.PathLike[str]] = (),
) -> dict[Path, Links]:
    """Tell the files that a sharded model may come to, where they save, load, clip or copy anything.

    ``by_frameworks``: those whose models frameworks shard, as a config or a launch line asks.
    ``around``: the files and folders that were given, where configs may name functions.
    """
    by_frameworks = [*by_frameworks]
    links = with_tests_without_group(project, links)
    sharding = ShardingFiles(project)
    plain = PlainPlaces(project, sharding)
    if not by_frameworks and FSDP2Alone(plain.callers, sharding, around).holds():
        asking = (path for path, text in project.texts.items() if catalog.FSDP in text)
        return {**links, **{each: replace(links.get(each, NOTHING), fsdp2_alone=True) for each in asking}}
    if not by_frameworks and sharding.is_of_others():
        speaking = (path for path, text in project.texts.items() if "fsdp" in text.lower())
        return {**links, **{each: replace(links.get(each, NOTHING), other_fsdp=True) for each in speaking}}
    every = _reached(project, sharding, by_frameworks, around)
    reached = (path for path in every if may_find(project.texts[path]))
    near = [path for path in reached if not _is_megatrons(project.texts[path])]
    others = (path for path in project.texts if path not in every and not is_a_test(path)) if every else ()
    far = [path for path in others if _CLIPS.search(project.texts[path])]
    if (near or far) and not by_frameworks and not LiveSharding(plain.callers, sharding, around).is_any():
        return dict(links)
    told = {
        path: replace(
            links.get(path, NOTHING),
            is_near=True,
            plain=plain.of(path),
            above_sharding=plain.above_sharding(path),
        )
        for path in near
    }
    return {**links, **told, **{each: replace(links.get(each, NOTHING), is_far=True) for each in far}}


def _is_megatrons(text: str) -> bool:
    """Tell whether a file is about Megatron's models alone, which shards them itself."""
    return _MEGATRON.search(text) is not None and "fsdp" not in text.lower()


def _reached(
    project: Project,
    files: ShardingFiles,
    by_frameworks: Collection[Path],
    around: Iterable[str | os.PathLike[str]],
) -> set[Path]:
    """Return the files that shard a model, those that import them, and what all these import; no tests."""
    sharding = {path for path in project.texts if files.shards(path)}
    found = {path for path in sharding.union(by_frameworks) if not is_a_test(path)}
    if not found:
        return found
    imports = imports_in(project)
    runs = RunsWithoutFSDP(project, around, imports)
    if runs.are_any():
        left = LeftWords(project, files)
        found = found - runs.alone(path for path in found.difference(by_frameworks) if left.are_all_of(path))
    latest = found
    for _ in range(_FARTHEST):
        latest = {path for path, those in imports.items() if path not in found and those & latest}
        found = found | latest
    latest = found
    for _ in range(_FARTHEST):
        latest = {each for path in latest for each in imports.get(path, ()) if each in imports} - found
        found = found | latest
    return found


def imports_in(project: Project) -> dict[Path, set[Path]]:
    """Return by file of a project those that it imports; no tests."""
    return {path: set(imports_of(project, path)) for path in project.texts if not is_a_test(path)}


def imports_of(project: Project, path: Path) -> Iterator[Path]:
    """Yield the files that a file imports, by its text: all are asked, and parsing takes long."""
    text = project.texts[path]
    for written, is_name in written_imports(text):
        yield from _files(project, path, written, is_name=is_name)
    for name, end in _BY_NAME.findall(text):
        if end == ".{":  # `import_module(f"tasks.{name}")`: whatever stands in that folder
            names = tuple(name.split("."))
            yield from (each for each in project.texts if parts_of(each)[:-1][-len(names) :] == names)
        else:
            yield from _files(project, path, name, is_name=False)


class Imported:
    """Answers which files of a project those that train may come to import, by what imports are called.

    A file is taken for imported where the end of its path is what another's import begins with: it may be
    more than there are.
    """

    def __init__(self, texts: Mapping[Path, str], trains: Collection[Path]) -> None:
        """Read the imports of a project's files; ``trains``: those in which a framework trains."""
        self._importers: dict[Path, set[Path]] = {}
        by_name: dict[str, list[tuple[tuple[str, ...], Path]]] = {}
        for path in texts:
            parts = _module_parts(path)
            by_name.setdefault(parts[-1] if parts else "", []).append((parts, path))
        for path, text in texts.items():
            for written, _ in written_imports(text):
                for wanted in _may_mean(path, written):
                    for parts, other in by_name.get(wanted[-1], ()):
                        if parts[-len(wanted) :] == wanted and other != path:
                            self._importers.setdefault(other, set()).add(path)
        self._runs = self._above(trains)
        # A name that is known at run time alone, and code that lies beside a model's weights.
        self._may_be_any = any(_ANY_MODULE.search(texts.get(path, "")) for path in self._runs)

    def is_beside_runs(self, path: Path) -> bool:
        """Tell whether a run that trains may import a file; any may be that a run picks by its name."""
        return self._may_be_any or not self._above([path]).isdisjoint(self._runs)

    def _above(self, files: Collection[Path]) -> set[Path]:
        """Return some files, and all that import them, through others too."""
        found, waiting = set(files), list(files)
        while waiting:
            new = self._importers.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found


def _module_parts(path: Path) -> tuple[str, ...]:
    return path.parent.parts if path.stem == "__init__" else (*path.parent.parts, path.stem)


def _may_mean(path: Path, written: str) -> Iterator[tuple[str, ...]]:
    """Yield the modules that an import runs, by the ends of their paths: ``pkg``, then ``pkg.wrap``.

    ``from . import wrap`` and ``from ..wrap import shard`` are written alike here.
    """
    names = tuple(each for each in written.split(".") if each)
    dots = len(written) - len(written.lstrip("."))
    folders, counts = path.parent.parts, {dots, dots - 1} - {0, -1}
    bases = [folders[: len(folders) - count + 1] for count in counts] or [()]
    yield from ((*base, *names[:count]) for base in bases for count in range(1, len(names) + 1))


def _files(
    project: Project, path: Path, written: str, depth: int = 0, *, is_name: bool = True
) -> Iterator[Path]:
    """Yield the file that an imported name is of; of a package that hands it on, the one behind it.

    A whole package, ``import pkg``, leads nowhere: it imports all that it has.
    """
    here = Module(path, parts_of(path), ast.Module([], []))
    found = project.paths(here, written)
    if is_name and found and found[0].stem == "__init__" and depth < _FARTHEST and found[0] != path:
        # `from pkg import hooks`: whatever is handed on by it may be used.
        for inner, is_one in written_imports(project.texts[found[0]]):
            yield from _files(project, found[0], inner, depth + 1, is_name=is_one)
    if found:
        yield from (each for each in found if each.stem != "__init__")
        return
    start, _, name = written.rpartition(".")
    for each in project.paths(here, start):
        if each.stem != "__init__":
            yield each
            continue
        for inner, _ in written_imports(project.texts[each]) if depth < _FARTHEST else ():
            last = inner.rpartition(".")[2]
            if last == name and each != path:
                yield from _files(project, each, inner, depth + 1)
            elif last == "*":
                of_star = _files(project, each, inner, depth + 1)
                yield from (file for file in of_star if _defines(project.texts[file], name))


def _defines(text: str, name: str) -> bool:
    return re.search(rf"^(?:(?:async )?def|class) {re.escape(name)}\b", text, re.MULTILINE) is not None


def written_imports(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what a text imports, as it is written, ``.wrap.shard`` for ``from .wrap import shard``.

    Beside each stands whether it is a name of something, or the whole of it: ``import wrap``.
    """
    for start, names, whole in _IMPORT.findall(text):
        if whole:
            yield from ((each.split()[0], False) for each in whole.split(",") if each.split())
        else:
            listed = names.strip("() \t").split(",")
            yield from ((f"{start}.{each.split()[0]}", True) for each in listed if each.split())
