"""Which files of a project a sharded model may come to: those that shard one, and what imports lead to."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Module, parts_of
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.rules.unfollowed import may_find


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_SHARDS: Final = re.compile(
    r"\b(?:FSDPStrategy|FullyShardedDataParallel|FullyShardedDataParallelPlugin|ModelParallelStrategy"
    r"|fully_shard|prepare_fully_shard)\b|\bDistributedType\.FSDP\b|\bACCELERATE_USE_FSDP\b"
    r"|\bfsdp(?:_config)?=(?!None|False|['\"]['\"])|\bstrategy=['\"]fsdp"
)
_IMPORT: Final = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
_FARTHEST: Final = 4


def with_reach(
    project: Project, links: Mapping[Path, Links], by_frameworks: Iterable[Path] = ()
) -> dict[Path, Links]:
    """Tell the files that a sharded model may come to, where they save, load, clip or copy anything.

    ``by_frameworks``: those whose models frameworks shard, as a config or a launch line asks.
    """
    near = [path for path in _reached(project, by_frameworks) if may_find(project.texts[path])]
    return {**links, **{path: replace(links.get(path, NOTHING), is_near=True) for path in near}}


def _reached(project: Project, by_frameworks: Iterable[Path]) -> set[Path]:
    """Return the files that shard a model, those that import them, and what all these import; no tests."""
    sharding = {path for path, text in project.texts.items() if _SHARDS.search(text)}
    found = {path for path in sharding.union(by_frameworks) if not _is_a_test(path)}
    for step in (_importing, _imported):
        latest = found
        for _ in range(_FARTHEST):
            latest = {path for path in step(project, latest) if path not in found and not _is_a_test(path)}
            found = found | latest
    return found


def _imported(project: Project, paths: set[Path]) -> Iterator[Path]:
    for path in paths:
        yield from _imports(project, path)


def _importing(project: Project, paths: set[Path]) -> Iterator[Path]:
    names = {path.parent.name if path.stem == "__init__" else path.stem for path in paths}
    if not names:
        return
    words = "|".join(map(re.escape, sorted(names)))
    pattern = re.compile(
        rf"\bimport\b[^#\n]*\b(?:{words})\b|\bfrom\b[^#\n]*\b(?:{words})\b|\bfrom \.+ import\b"
    )
    for path, text in project.texts.items():
        if pattern.search(text) and not paths.isdisjoint(_imports(project, path)):
            yield path


def _imports(project: Project, path: Path) -> Iterator[Path]:
    """Yield the files that a file imports, by its text: hundreds are asked, and parsing takes long."""
    here = Module(path, parts_of(path), ast.Module([], []))
    for written in _written(project.texts[path]):
        yield from project.paths(here, written) or project.paths(here, written.rpartition(".")[0])


def _written(text: str) -> Iterator[str]:
    for start, names, whole in _IMPORT.findall(text):
        if whole:
            yield from (each.split()[0] for each in whole.split(",") if each.split())
        else:
            yield from (f"{start}.{name}" for name in re.findall(r"\w+|\*", names))


def _is_a_test(path: Path) -> bool:
    return path.name.startswith("test_") or path.name.endswith("_test.py") or "tests" in path.parts
