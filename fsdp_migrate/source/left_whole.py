"""Files in which nothing is turned, because each wrap that their runs come to is left to a person.

Such a run trains with FSDP1. Were its states, its clipping or its checks turned all the same, it would save
other keys than before, and not load what it saved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fsdp_migrate.left_comments import looks_for_them
from fsdp_migrate.source.files import find_sources
from fsdp_migrate.source.project import Project, is_a_test
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.reach import imports_in
from fsdp_migrate.source.rules import (
    accelerate_plugin,
    hf_arguments,
    launch_flags,
    lightning,
    plugin_settings,
    trainers,
)
from fsdp_migrate.source.still_fsdp1 import calls_ours, is_left_wrap, is_turned, still_fsdp1


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.uses import Found, Use


_BY_FRAMEWORKS: Final = frozenset(
    rule.NAME
    for rule in (accelerate_plugin, hf_arguments, launch_flags, lightning, plugin_settings, trainers)
)
_IMPORTS_OURS: Final = re.compile(r"^[ \t]*(?:from|import) fsdp_migrate\b", re.MULTILINE)
_STAYS: Final = (
    "stays as long as FSDP1 wraps the model. Once prepare_fully_shard is called, `rewrite` turns it: {}."
)
_AGAIN: Final = (
    " Then run `fsdp-migrate rewrite` again: until prepare_fully_shard is called, what else is done here "
    "with FSDP1's models stays as it was."
)


def is_left_whole(code: str, found: Sequence[tuple[str, Found]]) -> bool:
    """Tell whether a source, by itself, wraps models by FSDP1 alone and has more that would be turned."""
    return (
        any(is_left_wrap(rule, each) for rule, each in found)
        and any(each.edits for _, each in found)
        and not any(map(is_turned, (each for _, each in found)))
        and not any(rule in _BY_FRAMEWORKS for rule, _ in found)
        and not looks_for_them(code)
    )


def left_as_it_is(found: Sequence[tuple[str, Found]]) -> list[tuple[str, Found]]:
    """Return what was found in such a source, of which nothing is turned; its wraps' comments say so."""
    return [(rule, _left(rule, each)) for rule, each in found]


def _left(rule: str, found: Found) -> Found:
    if found.action == "rewritten":
        becomes = _STAYS.format(found.becomes.rstrip("."))
        return replace(found, action="kept", becomes=becomes, edits=(), needs=(), note="", hook=None)
    if is_left_wrap(rule, found):
        return replace(found, becomes=f"{found.becomes}{_AGAIN}")
    return found


def with_left_whole(
    uses: Sequence[Use], files: Sequence[Path], links: Mapping[Path, Links]
) -> dict[Path, Links]:
    """Return the links of the files in which nothing is to be turned: their runs wrap by FSDP1 alone.

    Args:
        uses: What was found in all files of a project, as if each were turned.
        files: These files.
        links: What they say of each other.
    """
    left = _left_whole(uses, files, links)
    named = (path for path in files if str(path) in left)
    return {path: replace(links.get(path, NOTHING), is_left_whole=True) for path in named}


def are_mixed(still: Sequence[Use], uses: Iterable[Use], paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether runs that still train with FSDP1 come to lines that are turned all the same.

    Args:
        still: What still shards with FSDP1.
        uses: What was found in all files of the project.
        paths: These files, or the folders that they are in.
    """
    turned = {use.path for use in uses if use.cell is None and use.action == "rewritten"}
    if not still:
        return False
    runs = _Runs.of(find_sources(paths))
    found = frozenset[str]().union(*(runs.around(path) for path in {use.path for use in still}))
    return any(path in turned or imports_ours(runs.texts.get(path, "")) for path in found)


def imports_ours(text: str) -> bool:
    """Tell whether a source imports fsdp_migrate, as rewritten ones do.

    Example:
        >>> imports_ours("from fsdp_migrate.runtime import full_state_dict")
        True
    """
    return _IMPORTS_OURS.search(text) is not None


def _left_whole(uses: Sequence[Use], files: Sequence[Path], links: Mapping[Path, Links]) -> frozenset[str]:
    wrapping = {use.path for use in still_fsdp1(uses) if not is_a_test(Path(use.path))}
    edited = {use.path for use in uses if use.cell is None and use.action == "rewritten"}
    if not wrapping or not edited:
        return frozenset()
    others = _of_others(uses, links)
    if not others:
        return frozenset(edited | wrapping)
    runs = _Runs.of(files)
    alone = [run for run in map(runs.around, wrapping) if run.isdisjoint(others)]
    found = frozenset[str]().union(*alone) - frozenset[str]().union(*map(runs.around, others))
    return found if found & edited else frozenset()


def _of_others(uses: Iterable[Use], links: Mapping[Path, Links]) -> set[str]:
    """Return the files that shard by FSDP2 once they are turned, or have a framework do so."""
    found = {use.path for use in uses if is_turned(use) or use.rule in _BY_FRAMEWORKS}
    found |= {str(path) for path, own in links.items() if own.frameworks or own.run_by_trainer}
    return found | {path for path in {use.path for use in uses} if calls_ours(path)}


@dataclass(frozen=True)
class _Runs:
    texts: Mapping[str, str]
    imports: Mapping[str, Collection[str]]

    @classmethod
    def of(cls, files: Iterable[Path]) -> _Runs:
        """Read what the files of a project import."""
        project = Project.read(path for path in files if path.suffix == ".py")
        texts = {str(path): text for path, text in project.texts.items()}
        return cls(texts, {str(path): {*map(str, those)} for path, those in imports_in(project).items()})

    def around(self, path: str) -> frozenset[str]:
        """Return the files that a run may come to which comes to this one: what imports it, and all below."""
        found = latest = {path}
        while latest:
            latest = {each for each, those in self.imports.items() if not latest.isdisjoint(those)} - found
            found = found | latest
        latest = found
        while latest:
            latest = {below for each in latest for below in self.imports.get(each, ())} - found
            found = found | latest
        return frozenset(found)
