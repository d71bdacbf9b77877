"""Which modules a project tells FSDP to ignore: their parameters stay plain tensors, whole on each rank.

Where Accelerate's plugin is told so, its FSDP2 shards them all the same if rank 0 loads for all.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.files import SETTINGS, find_sources
from fsdp_migrate.source.ignored_states import tells_to_ignore
from fsdp_migrate.source.loaded_by_rank_0 import loads_so, read, says_so
from fsdp_migrate.source.models_given import parsed
from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.project import Module, Project


_NAME: Final = "ignored_modules"
_NAMES: Final = frozenset({_NAME, "ignored_parameters", "ignored_states"})
_FRAMEWORKS: Final = frozenset({"FSDPStrategy", "FullyShardedDataParallelPlugin"})
"""What has others shard: Accelerate's FSDP2 shards modules all the same that it is told to ignore."""
_SHARDS: Final = frozenset({"FSDP", "FullyShardedDataParallel", "prepare_fully_shard"})
_WEIGHTS: Final = frozenset({"bias", "weight"})
"""What nearly each module has."""
_ASKS: Final = frozenset({"isinstance", "issubclass"})
_SAME: Final = frozenset({"list", "set", "tuple"})
_COMPREHENSIONS: Final = (ast.GeneratorExp, ast.ListComp, ast.SetComp)
_DEEPEST: Final = 3


def ignored_attributes(project: Project) -> frozenset[str]:
    """Return the attributes of models that every call which shards in a project tells FSDP to ignore.

    None where one of these calls ignores nothing, or what is not seen: there the same module may be sharded.

    Example:
        >>> from pathlib import Path
        >>> from fsdp_migrate.source.project import Project
        >>> files = {Path("a.py"): "FSDP(net, ignored_modules=[net.tables])"}
        >>> ignored_attributes(Project(files | {Path("b.py"): "class Net: self.tables = []"}))
        frozenset({'tables'})
    """
    if not any(map(tells_to_ignore, project.texts.values())):
        return frozenset()
    modules = list(project.parsed(project.holding(_SHARDS | _FRAMEWORKS)))
    places = [(module, node) for module in modules for node in _sharding(module)]
    found = [_Ignored(project, module).of(node) for module, node in places]
    names = frozenset.intersection(*found) if found else frozenset()
    return frozenset(name for name in names - _WEIGHTS if _classes_with(project, name) == 1)


def _sharding(module: Module) -> Iterator[ast.AST]:
    """Yield the calls of what shards, and where it is handed on: ``partial(FSDP, ...)``, ``cls = FSDP``."""
    for node in walked(module.tree):
        values: Iterable[ast.expr | None] = ()
        if isinstance(node, ast.Call) and last_name(node.func) not in _ASKS:
            values = (node.func, *node.args, *(each.value for each in node.keywords))
        elif isinstance(node, (ast.AnnAssign, ast.Assign, ast.Return)):
            values = (node.value,)
        elif isinstance(node, ast.Dict):
            values = node.values
        if any(_name(module, each) in _SHARDS | _FRAMEWORKS for each in values):
            yield node


def _name(module: Module, value: ast.expr | None) -> str:
    """Return what a name stands for, by its last word."""
    if isinstance(value, ast.Name):
        return module.imports.get(value.id, value.id).rpartition(".")[2]
    return value.attr if isinstance(value, ast.Attribute) else ""


def _classes_with(project: Project, name: str) -> int:
    """Return how many classes set an attribute of that name: of several not each may be ignored."""
    modules = project.parsed(project.holding([name]))
    classes = (node for each in modules for node in walked(each.tree) if isinstance(node, ast.ClassDef))
    return sum(any(_sets(node, name) for node in ast.walk(owner)) for owner in classes)


def _sets(node: ast.AST, name: str) -> bool:
    is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return is_set and isinstance(node, ast.Attribute) and dotted(node) == f"self.{name}"


@dataclass(frozen=True, eq=False)
class _Ignored:
    """Answers for one file of a project which attributes are in what a call tells FSDP to ignore."""

    project: Project
    module: Module

    def of(self, call: ast.AST) -> frozenset[str]:
        """Return the attributes that a call tells FSDP to ignore in any case."""
        if not isinstance(call, ast.Call) or _name(self.module, call.func) in _FRAMEWORKS:
            return frozenset()
        given = [each.value for each in call.keywords if each.arg in _NAMES]
        for held in (each for each in call.args if isinstance(each, ast.Dict)):
            keys = [each.value if isinstance(each, ast.Constant) else None for each in held.keys]
            given += [value for key, value in zip(keys, held.values, strict=True) if key in _NAMES]
        return frozenset().union(*map(self._names, given))

    def _names(self, value: ast.expr, depth: int = 0) -> frozenset[str]:
        """Return the attributes in a list of modules, or of their parameters."""
        if depth > _DEEPEST:
            return frozenset()
        if isinstance(value, (ast.List, ast.Set, ast.Tuple)):
            return frozenset().union(*(self._names(each, depth) for each in value.elts))
        if isinstance(value, ast.Starred):
            return self._names(value.value, depth)
        if isinstance(value, _COMPREHENSIONS):
            return (
                frozenset() if any(each.ifs for each in value.generators) else self._names(value.elt, depth)
            )
        if isinstance(value, ast.Attribute):
            return frozenset({value.attr} if dotted(value) is not None else ())
        if isinstance(value, ast.Name):
            set_to = self._set_to(value.id)
            return self._names(set_to, depth + 1) if set_to is not None else frozenset()
        return self._of_call(value, depth) if isinstance(value, ast.Call) else frozenset()

    def _of_call(self, call: ast.Call, depth: int) -> frozenset[str]:
        """Return those of ``list(x)``, of ``x.parameters()``, and of a method that gives attributes."""
        if isinstance(call.func, ast.Name):
            is_same = call.func.id in _SAME and len(call.args) == 1
            return self._names(call.args[0], depth) if is_same else frozenset()
        if not isinstance(call.func, ast.Attribute) or call.args or call.keywords:
            return frozenset()
        if call.func.attr == "parameters":
            return self._names(call.func.value, depth)
        given = [self._names(each, depth + 1) for each in _given_by(self.project, call.func.attr)]
        return frozenset.intersection(*given) if given else frozenset()

    def _set_to(self, name: str) -> ast.expr | None:
        """Return what the one assignment of a name in this file gives it."""
        assigns = (node for node in walked(self.module.tree) if isinstance(node, ast.Assign))
        values = [each.value for each in assigns if any(dotted(target) == name for target in each.targets)]
        return values[0] if len(values) == 1 else None


def _given_by(project: Project, method: str) -> Iterator[ast.expr]:
    """Yield what methods of a name give in a project; of one that gives nothing, ``None``."""
    for module in project.parsed(project.holding([method])):
        for node in walked(module.tree):
            if isinstance(node, ast.FunctionDef) and node.name == method:
                lines = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
                yield from (each.value or ast.Constant(None) for each in lines)
                yield from () if lines else (ast.Constant(None),)


def find_ignored(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return where ``fsdp_plugin.ignored_modules`` is set, in a project that lets rank 0 load for all.

    Args:
        paths: Files and folders.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_ignored(["fsdp_migrate/source"])
        []
    """
    found = list(paths)
    sources = dict(read(find_sources(found)))
    setting = {path: lines for path, code in sources.items() if (lines := list(_lines(code)))}
    if not setting:
        return []
    if not says_so(sources.values()) and not loads_so(
        text for _, text in read(find_sources(found, SETTINGS))
    ):
        return []
    return [f"{path}:{line}" for path, lines in setting.items() for line in lines]


def _lines(code: str) -> Iterator[int]:
    """Yield the lines at which the attribute of a plugin is given something."""
    if _NAME not in code or "plugin" not in code:
        return
    for node in ast.walk(parsed(code)):
        if isinstance(node, ast.Assign):
            if any(_is_plugins(target) for target in node.targets) and not _is_none(node.value):
                yield node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and len(node.args) == 3:
            owner, name, value = node.args
            if _is_plugin(owner) and ast.unparse(name).strip("'\"") == _NAME and not _is_none(value):
                yield node.lineno


def _is_plugins(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == _NAME and _is_plugin(node.value)


def _is_plugin(node: ast.expr) -> bool:
    return ast.unparse(node).endswith("plugin")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
