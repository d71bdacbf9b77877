"""Files that runs without FSDP alone come to, where a project's own commands start all of its runs.

A word of FSDP in such a file, as an import that nothing reads, is left from elsewhere.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.launched_otherwise import Starts, is_named


if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project


# Who is told of FSDP by the arguments of a script: Hugging Face's Trainer, and an Accelerator made of some.
_BY_ARGUMENTS: Final = re.compile(r"\bTrainingArguments\b|\bHfArgumentParser\b|\bAccelerator\(\s*\*\*")
# A config that its launch names may be called so, and a block of Accelerate's stand there empty.
_SAYS_NOTHING: Final = re.compile(
    r"--config[_-]file(?:[ ]*=[ ]*|[ ]+)\S+|^[ \t]*fsdp_config[ \t]*:[ \t]*(?:\{\}|null|~)?[ \t]*$",
    re.MULTILINE,
)
_FSDP: Final = re.compile(r"(?i)fsdp|fully_?shard|full_shard")


@dataclass(eq=False)
class RunsWithoutFSDP:
    """Answers which files only such runs come to. Reads only."""

    project: Project
    around: Iterable[str | os.PathLike[str]]
    imports: Mapping[Path, Collection[Path]]
    """By file those that it imports, tests left out."""

    @functools.cached_property
    def starts(self) -> Starts:
        """What the project's commands start."""
        texts = self.project.texts.values()
        return Starts.read(self.around, by_arguments=any(map(_BY_ARGUMENTS.search, texts)))

    def are_any(self) -> bool:
        """Tell whether commands start scripts without FSDP, and nothing around the sources speaks of it."""
        starts = self.starts
        return bool(starts.plain) and not starts.is_unclear and not any(map(_speaks_of_fsdp, starts.texts))

    def alone(self, files: Iterable[Path]) -> set[Path]:
        """Return those of some files, none of which shards a model itself, that no other run comes to.

        One that nothing starts is as those beside it, of the same folder: it is an earlier or a later one.
        """
        wanted = sorted(files) if self.are_any() else []
        above = {path: self._run_by(path) for path in wanted}
        every = {each for those in above.values() for each in those}
        plain = {each for each in every if self._is_plain(each)}
        others = {each for each in every - plain if self.starts.name(each) or self._is_named(each)}
        folders = {each.parent for each in plain}
        return {
            path
            for path, those in above.items()
            if not those & others
            and all(each in plain or each.parent in folders for each in self._tops(those))
        }

    def _run_by(self, path: Path) -> set[Path]:
        """Return the files that import a file, through others too, and that file itself."""
        found = latest = {path}
        while latest:
            latest = {each for each, those in self.imports.items() if each not in found and latest & {*those}}
            found = found | latest
        return found

    def _tops(self, files: set[Path]) -> set[Path]:
        """Return those that no other one imports; all of them where they import each other."""
        below = {each for path in files for each in self.imports.get(path, ()) if each != path}
        return files - below or files

    def _is_plain(self, path: Path) -> bool:
        is_one = path.resolve() in self.starts.plain - self.starts.others
        return is_one and self.starts.are_all_of(path) and not self._is_named(path)

    def _is_named(self, path: Path) -> bool:
        """Tell whether another source may run a file by its name, which a comment does not."""
        texts = self.project.texts.items()
        naming = (other for other, text in texts if other != path and is_named(path, text))
        return any(is_named(path, self._without_comments(each)) for each in naming)

    def _without_comments(self, path: Path) -> str:
        module = self.project.module(path)
        return self.project.texts[path] if module is None else ast.unparse(module.tree)


def _speaks_of_fsdp(text: str) -> bool:
    return _FSDP.search(_SAYS_NOTHING.sub("", text)) is not None
