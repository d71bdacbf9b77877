"""Which files of a project a sharded model may come to: those that shard one, and what imports lead to."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.python.links import NOTHING


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links


_SHARDS: Final = re.compile(
    r"\b(?:FSDPStrategy|FullyShardedDataParallel|FullyShardedDataParallelPlugin|ModelParallelStrategy"
    r"|fully_shard|prepare_fully_shard)\b|\bDistributedType\.FSDP\b|\bACCELERATE_USE_FSDP\b"
    r"|\bfsdp(?:_config)?=(?!None|False|['\"]['\"])|\bstrategy=['\"]fsdp"
)
_DOES: Final = re.compile(
    r"\.(?:clip_grad_norm_|load_state_dict|no_sync|save_pretrained|state_dict)\(|\bclip_grad_norm_\("
    r"|\bdeepcopy\(|\bget_peft_model_state_dict\("
)
_FARTHEST: Final = 4


def with_reach(project: Project, links: Mapping[Path, Links]) -> dict[Path, Links]:
    """Tell the files that a sharded model may come to, where they save, load, clip or copy anything."""
    near = [path for path in _reached(project) if _DOES.search(project.texts[path])]
    return {**links, **{path: replace(links.get(path, NOTHING), is_near=True) for path in near}}


def _reached(project: Project) -> set[Path]:
    """Return the files that shard a model, those that import them, and what all these import; no tests."""
    found = {path for path, text in project.texts.items() if _SHARDS.search(text) and not _is_a_test(path)}
    for step in (_importing, _imported):
        latest = found
        for _ in range(_FARTHEST):
            latest = {path for path in step(project, latest) if path not in found and not _is_a_test(path)}
            found = found | latest
    return found


def _imported(project: Project, paths: set[Path]) -> Iterator[Path]:
    for path in paths:
        module = project.module(path)
        yield from _imports(project, module) if module is not None else ()


def _imports(project: Project, module: Module) -> Iterator[Path]:
    for written in (*module.imports.values(), *module.stars):
        yield from project.paths(module, written) or project.paths(module, written.rpartition(".")[0])


def _importing(project: Project, paths: set[Path]) -> Iterator[Path]:
    names = {path.parent.name if path.stem == "__init__" else path.stem for path in paths}
    if not names:
        return
    # Many files are no candidates, and are not parsed.
    words = "|".join(map(re.escape, sorted(names)))
    pattern = re.compile(
        rf"^\s*(?:from|import)\s[^#\n]*\b(?:{words})\b|^\s*from\s+\.+\s+import\b", re.MULTILINE
    )
    for path, text in project.texts.items():
        module = project.module(path) if pattern.search(text) else None
        if module is not None and not paths.isdisjoint(_imports(project, module)):
            yield path


def _is_a_test(path: Path) -> bool:
    return path.name.startswith("test_") or path.name.endswith("_test.py") or "tests" in path.parts
