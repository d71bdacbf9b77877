"""Files with words of FSDP by which nothing shards: an import that nothing reads, ``fsdp=args.fsdp``.

How such a file is started decides whether its models are sharded.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project
    from fsdp_migrate.source.sharding_files import ShardingFiles


_HOME: Final = "torch.distributed.fsdp"
_ASKED: Final = "fsdp"


class _Read(NamedTuple):
    """What a file reads by names, attributes, imports and texts, and whether it sets ``fsdp`` itself."""

    names: frozenset[str]
    own: frozenset[str]
    """The names that it imports from torch itself."""
    sets_fsdp: bool


_UNREADABLE: Final = _Read(frozenset(), frozenset(), sets_fsdp=True)


@dataclass(eq=False)
class LeftWords:
    """Answers so for a project. Reads only."""

    project: Project
    sharding: ShardingFiles
    _read: dict[Path, _Read] = field(default_factory=dict, repr=False)

    def are_all_of(self, path: Path) -> bool:
        """Tell whether a file has no other words of FSDP.

        Another file may read what this one imports, or say what is handed on; then it has.
        """
        module = self.project.module(path)
        if module is None or any(each.startswith(_HOME) for each in module.stars):
            return False
        telling = self.sharding.telling(module)
        handed_on = [each for each in telling if isinstance(each, ast.keyword)]
        is_seen = all(isinstance(each, (ast.Import, ast.ImportFrom, ast.keyword)) for each in telling)
        if not is_seen or not all(map(_is_handed_on, handed_on)):
            return False
        names = frozenset(_imported([*telling, *_imports_of_fsdp(module)]))
        files = self.project.holding({*names, *([_ASKED] if handed_on else [])})
        read = {each: self._of(each) for each in files}
        return not any(
            (each.sets_fsdp and (handed_on or each is _UNREADABLE))
            or not names.isdisjoint(each.names if home == path else each.names - each.own)
            for home, each in read.items()
        )

    def _of(self, path: Path) -> _Read:
        if path not in self._read:
            module = self.project.module(path)
            self._read[path] = _UNREADABLE if module is None else _read_in(module)
        return self._read[path]


def _read_in(module: Module) -> _Read:
    nodes = list(walked(module.tree))
    own = _imported(_imports_of_fsdp(module))
    names = (name for node in nodes for name in _names_in(node))
    return _Read(frozenset(names), frozenset(own), any(map(_sets_fsdp, nodes)))


def _names_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node reads: by a text too, or as another file's."""
    if isinstance(node, ast.ImportFrom):
        is_torchs = not node.level and (node.module or "").startswith(_HOME)
        yield from () if is_torchs else (each.name for each in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value
    elif isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr


def _imports_of_fsdp(module: Module) -> list[ast.ImportFrom]:
    """Return the imports of anything of torch's FSDP, as they stand there."""
    every = (each for each in walked(module.tree) if isinstance(each, ast.ImportFrom))
    return [each for each in every if (each.module or "").startswith(_HOME)]


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that imports give."""
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((each.asname or each.name).split(".")[0] for each in node.names)


def _is_handed_on(node: ast.keyword) -> bool:
    """Tell whether an argument is that of the same name of others: ``fsdp=training_args.fsdp``."""
    return isinstance(node.value, ast.Attribute) and node.value.attr == node.arg


def _sets_fsdp(node: ast.AST) -> bool:
    """Tell whether a node sets ``fsdp``, or makes an option of it."""
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else ""
        return text == _ASKED or f"--{_ASKED}" in text
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.startswith(_ASKED) and isinstance(getattr(node, "ctx", None), ast.Store)
