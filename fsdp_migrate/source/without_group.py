"""Tests that run in one process without a process group, in which FSDP1 shards nothing."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import is_a_test, last_name


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


# What makes a process group, or starts processes that have one.
_MAKES: Final = frozenset(
    {
        *("Accelerator", "Fabric", "PartialState", "init_device_mesh", "init_distributed"),
        *("init_process_group", "initialize_distributed", "start_processes", "spawn"),
    }
)
_STARTS: Final = re.compile(
    r"torchrun|torch\.distributed\.(?:run|launch)|\blaunch\b|MultiProcess|FSDPTest|FSDP\("
)
_CALLED: Final = re.compile(r"\b(\w+)\(")
_FARTHEST: Final = 6
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def with_tests_without_group(project: Project, links: Mapping[Path, Links]) -> Mapping[Path, Links]:
    """Tell the tests to which models of the project come, and that call nothing which makes a group."""
    tests = [p for p, each in links.items() if each.is_linked and not each.frameworks and is_a_test(p)]
    tests = [path for path in tests if path in project.texts and not _STARTS.search(project.texts[path])]
    if not tests:
        return links
    makers = _makers(project)
    shared = [text for path, text in project.texts.items() if path.name == "conftest.py"]
    if any(_calls_one(text, makers) or _STARTS.search(text) for text in shared):
        return links
    alone = (path for path in tests if not _calls_one(project.texts[path], makers))
    return {**links, **{path: replace(links[path], without_group=True) for path in alone}}


def _calls_one(text: str, makers: set[str]) -> bool:
    return not makers.isdisjoint(_CALLED.findall(text))


def _makers(project: Project) -> set[str]:
    """Return the names of functions and classes that make a group, or call what does, by names alone."""
    makers = set(_MAKES)
    for _ in range(_FARTHEST):
        calling = [path for path, text in project.texts.items() if _calls_one(text, makers)]
        found = {name for path in calling for name in _calling(project, path, makers)}
        if found <= makers:
            break
        makers |= found
    return makers


def _calling(project: Project, path: Path, makers: set[str]) -> Iterator[str]:
    """Yield the functions of a file that call one of some names; for a constructor its class."""
    module = project.module(path)
    for name, definition in module.definitions.items() if module is not None else ():
        if not isinstance(definition.node, _FUNCTIONS):
            continue
        calls = (each for each in ast.walk(definition.node) if isinstance(each, ast.Call))
        if any(last_name(each.func) in makers for each in calls):
            *owners, last = name.split(".")
            yield owners[-1] if owners and last in {"__init__", "__post_init__"} else last
