"""LightningModules that a Trainer of another file trains: the strategy there, and the hook in their own file.

Either without the other does not shard. So the files with the Trainers are looked at first, and a class is
given a hook only where its strategy will be written. Under another strategy the hook does nothing.
"""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.analysis import analyse
from fsdp_migrate.source.lightning_modules import HARMLESS, HOOKS, MODULE, OLD_HOOK
from fsdp_migrate.source.project import Definition, Place, dotted
from fsdp_migrate.source.python.lightning_models import asking_for_fsdp1
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.python.links import Links


_NOT_WHOLE = (
    "`{}` of {} has a configure_model (put the lines of the hook at its end, and write no second `def`), or "
    "inherits from a class that is not seen"
)
_OLD_NAME = (
    "`{}` of {} has a configure_sharded_model: call it configure_model, which ModelParallelStrategy asks for "
    "(Lightning stops where a class has both), and put the lines of the hook at its end; where it shards "
    "already, put their arguments and mesh into its call of prepare_fully_shard"
)
_TWO = "several Trainers would give `{}` of {} several hooks"
_NOT_WRITTEN = "`{}` of {} cannot be given a hook"
_DEEPEST = 5


def homes_of_modules(project: Project) -> set[Path]:
    """Return the files of the LightningModules that are made where a Trainer trains by FSDP1."""
    trainers = [path for path in asking_for_fsdp1(project.texts) if ".fit(" in project.texts[path]]
    found = _Hooks(project, {}, trainers)
    modules = filter(None, map(project.module, trainers))
    owners = [owner for module in modules for _, owner in found.modules(module)]
    return {each.module.path for owner in owners for each in found.with_bases(owner)}


def with_lightning(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Return what each file is told of by the others, with the LightningModules that one has for another."""
    trainers = [path for path in asking_for_fsdp1(project.texts) if ".fit(" in project.texts[path]]
    return _Hooks(project, dict(links), trainers).told() if trainers else links


def _shown(owner: Definition, project: Project) -> str:
    """Return a class with its file, below the folder that holds the whole project."""
    home = owner.module.path
    # Relative and absolute paths have nothing in common.
    near = [path.parent for path in project.texts if path.is_absolute() == home.is_absolute()]
    return f"`{owner.name}` ({home.relative_to(os.path.commonpath(near)).as_posix()})"


@dataclass(eq=False)
class _Hooks:
    project: Project
    links: dict[Path, Links]
    trainers: list[Path]
    _owners: dict[tuple[Path, str], Definition] = field(default_factory=dict)

    def told(self) -> dict[Path, Links]:
        """Return the links."""
        for module in self.project.parsed(self.trainers):
            found = dict(self.modules(module))
            if found:
                self._owners.update({(module.path, written): owner for written, owner in found.items()})
                self._tell(module.path, {written: self._reason(owner) for written, owner in found.items()})
                homes = {written: _shown(owner, self.project) for written, owner in found.items()}
                self.links[module.path] = replace(self.links[module.path], lightning_homes=homes)
        for home in {owner.module.path for owner in self._owners.values()}:
            self.links[home] = replace(self.links.get(home, NOTHING), is_trained=True)
        hooks: dict[str, set[str]] = {}
        for path, written, code in self._wanted():
            hooks.setdefault(self._owners[path, written].key, set()).add(code)
        for key, codes in hooks.items():
            self._give(next(each for each in self._owners.values() if each.key == key), codes)
        return self.links

    def _tell(self, path: Path, modules: dict[str, str]) -> None:
        before = self.links.get(path, NOTHING)
        self.links[path] = replace(before, lightning={**before.lightning, **modules})

    def modules(self, module: Module) -> Iterator[tuple[str, Definition]]:
        """Yield the LightningModules of other files that a file makes, as its imports write them."""
        place = Place(module, "")
        for node in walked(module.tree):
            text = dotted(node.func) if isinstance(node, ast.Call) else None
            while text:
                found = self.project.named(text, place)
                is_class = found is not None and isinstance(found.node, ast.ClassDef)
                if found is not None and is_class and found.module is not module:
                    if self._is_module(found):
                        yield self.project.qualified(text, place) or text, found
                    break
                text = text.rpartition(".")[0]  # Lit.load_from_checkpoint(...)

    def _bases(self, owner: Definition) -> Iterator[tuple[str, Definition | None]]:
        assert isinstance(owner.node, ast.ClassDef)
        place = Place(owner.module, "")
        for base in owner.node.bases:
            node = base.value if isinstance(base, ast.Subscript) else base  # Generic[T]
            text = dotted(node) or "?"
            found = self.project.named(text, place)
            is_own = found is not None and found is not owner and isinstance(found.node, ast.ClassDef)
            yield self.project.qualified(text, place), found if is_own else None

    def with_bases(self, owner: Definition, depth: int = 0) -> Iterator[Definition]:
        """Yield a class, and those of the project that it derives from."""
        yield owner
        for _, base in self._bases(owner) if depth < _DEEPEST else ():
            yield from self.with_bases(base, depth + 1) if base is not None else ()

    def _is_module(self, owner: Definition, depth: int = 0) -> bool:
        return depth < _DEEPEST and any(
            MODULE.match(name) or (base is not None and self._is_module(base, depth + 1))
            for name, base in self._bases(owner)
        )

    def _is_whole(self, owner: Definition, depth: int = 0) -> bool:
        """Tell whether all that a class inherits is seen, and no hook of this name is among it."""
        if depth == _DEEPEST or any(f"{owner.name}.{hook}" in owner.module.definitions for hook in HOOKS):
            return False
        return all(
            self._is_whole(base, depth + 1)
            if base is not None
            else bool(MODULE.match(name) or HARMLESS.match(name))
            for name, base in self._bases(owner)
        )

    def _reason(self, owner: Definition) -> str:
        """Return why a class can be given no hook, or nothing."""
        name, home = owner.node.name, owner.module.path
        if f"{owner.name}.{OLD_HOOK}" in owner.module.definitions:
            return _OLD_NAME.format(name, home.name)
        if not self._is_whole(owner):
            return _NOT_WHOLE.format(name, home.name)
        return ""

    def _wanted(self) -> Iterator[tuple[Path, str, str]]:
        """Yield the hooks that go with the strategies that will be written, and for which class."""
        for path in self.trainers:
            if any(not reason for reason in self.links.get(path, NOTHING).lightning.values()):
                for hook in self._hooks_of(path):
                    yield path, *hook

    def _hooks_of(self, path: Path) -> list[tuple[str, str]]:
        try:
            _, found = analyse(self.project.texts[path], str(path), self.links[path])
        except (SourceError, RecursionError):
            return []
        return [each.hook for _, each in found if each.hook is not None and each.edits]

    def _give(self, owner: Definition, codes: set[str]) -> None:
        """Give a class its hook; or say to the files with its Trainers why not."""
        home, name = owner.module.path, owner.name
        before = self.links.get(home, NOTHING)
        after = replace(before, hooks={**before.hooks, name: min(codes)})
        reason = _TWO if len(codes) > 1 else "" if self._is_written(home, after) else _NOT_WRITTEN
        if not reason:
            self.links[home] = after
            return
        for (path, written), each in self._owners.items():
            if each.key == owner.key:
                self._tell(path, {written: reason.format(name, home.name)})

    def _is_written(self, path: Path, links: Links) -> bool:
        """Tell whether every hook that a file is to have will be written into it."""
        try:
            _, found = analyse(self.project.texts[path], str(path), links)
        except (SourceError, RecursionError):
            return False
        return sum(each.code == "FM429" and bool(each.edits) for _, each in found) >= len(links.hooks)
