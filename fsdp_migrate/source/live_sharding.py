"""Whether a project may shard any model by FSDP1, or only has functions for it that nothing calls."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.named_at_run import NamedAtRun
from fsdp_migrate.source.project import Place, dotted, is_a_test, last_name
from fsdp_migrate.source.python.made_by_others import is_made_by_others
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.project import Definition, Module
    from fsdp_migrate.source.sharding_files import ShardingFiles


# Words of what may shard otherwise than by a call of the class.
# Bounds keep a long file from being read again from each of its lines.
_OTHERWISE: Final = re.compile(
    r"\b(?:enable_wrap|getattr\([^)\n]{0,500}fsdp|prepare_fully_shard)\b", re.IGNORECASE
)
_OWN: Final = frozenset({catalog.FSDP, "fully_shard"})
# How these are launched may stand in no file of the project.
_FRAMEWORKS: Final = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:accelerate|axolotl|composer|lightning|lightning_fabric|trl)\b"
    r"|^[ \t]*(?:from|import)[ \t]+pytorch_lightning\b"
    r"|^[ \t]*from[ \t]+transformers\b[^\n(]{0,500}(?:\([^)]{0,2000})?Trainer\b"
    r"|\btransformers\.\w*Trainer\b",
    re.MULTILINE,
)
_ASKS: Final = frozenset({"isinstance", "issubclass"})


@dataclass(eq=False)
class LiveSharding:
    """Answers whether anything runs that makes a model of FSDP1's. Reads only."""

    callers: Callers
    sharding: ShardingFiles
    around: Iterable[str | os.PathLike[str]] = ()
    """The files and folders that were given, where configs may name functions."""
    _names: set[str] = field(default_factory=set, repr=False)
    _is_called_in_vain: bool = False

    def is_any(self) -> bool:
        """Tell whether a model may be FSDP1's: not where the class is called in vain, everywhere.

        By functions that nothing calls, in projects that shard by FSDP2 themselves, or never calls any more.
        """
        texts = self.callers.project.texts
        if is_made_by_others(list(texts.values())):
            return True
        made = [path for path, text in texts.items() if catalog.FSDP in text and not is_a_test(path)]
        if not made or any(self._shards_otherwise(path) for path in texts):
            return True
        is_made = any(map(self._makes, made)) or not self._is_called_in_vain
        return is_made or self._is_handed_on(made)

    def is_only_asked_for(self) -> bool:
        """Tell whether the class is only asked for, in tests too, and of the project's models."""
        texts = self.callers.project.texts
        made = [path for path, text in texts.items() if catalog.FSDP in text]
        modules = [self.callers.project.module(path) for path in made]
        is_seen = all(module is not None and not module.stars for module in modules)
        return is_seen and not any(map(self._uses, filter(None, modules))) and not self._is_handed_on(made)

    def _uses(self, module: Module) -> bool:
        above = self.callers.around(module).above
        asked = list(self._references(module))
        if any(not _only_asks(node, above.get(id(node)), above) for node in asked):
            return True
        given_out = (each for each in module.definitions.values() if self._is_for_users(each))
        return any(node in asked for each in given_out for node in walked(each.node))

    def _is_for_users(self, function: Definition) -> bool:
        """Tell whether nothing in the project calls a function of a file: who has such models may."""
        if isinstance(function.node, ast.ClassDef) or "." in function.name or not function.node.args.args:
            return False
        return self.callers.of(function) == []

    def _shards_otherwise(self, path: Path) -> bool:
        text = self.callers.project.texts[path]
        found = (pattern.search(text) for pattern in (_OTHERWISE, _FRAMEWORKS))
        is_otherwise = any(each is not None for each in found)
        return (is_otherwise or self.sharding.shards(path, _OWN)) and not is_a_test(path)

    def _makes(self, path: Path) -> bool:
        """Tell whether a file may make a model of the class."""
        module = self.callers.project.module(path)
        if module is None or module.stars:
            return True
        above, places, never = self.callers.around(module)
        for node in self._references(module):
            around = above.get(id(node))
            if _only_asks(node, around, above):
                continue
            place = places.get(id(around)) if isinstance(around, ast.Call) and around.func is node else None
            if id(node) not in never and (place is None or not self._is_vain(place)):
                return True
            self._is_called_in_vain = True
        return False

    def _references(self, module: Module) -> Iterator[ast.expr]:
        for node in walked(module.tree):
            text = dotted(node) if isinstance(node, (ast.Attribute, ast.Name)) else None
            written = self.callers.project.qualified(text, Place(module, "")) if text is not None else ""
            if isinstance(node, ast.expr) and catalog.fsdp1_name(written) == catalog.FSDP:
                self._names.add((text or "").split(".")[-1])
                yield node

    def _is_vain(self, place: Place) -> bool:
        """Tell whether a function that gives what it makes is called by nothing."""
        function = place.module.definitions.get(place.scope)
        node = function.node if function is not None else None
        if function is None or isinstance(node, ast.ClassDef) or node is None:
            return False
        gives = any(isinstance(each, ast.Return) and each.value is not None for each in ast.walk(node))
        if not gives or not node.args.args or self.callers.of(function) != []:
            return False
        is_vain = self.callers.is_named_in_vain(function) or self._shards_by_fsdp2
        return is_vain and not self._named.may_be(function)

    @functools.cached_property
    def _named(self) -> NamedAtRun:
        return NamedAtRun(self.callers, self.around)

    @property
    def _shards_by_fsdp2(self) -> bool:
        """Whether the project calls, for itself, what shards by FSDP2."""
        project = self.callers.project
        for path in project.holding(catalog.FSDP2_FUNCTIONS):
            module = project.module(path) if not is_a_test(path) else None
            calls = self.callers.calls_in(module) if module is not None else ()
            for call, place in calls:
                name = last_name(call.func)
                function = place.module.definitions.get(place.scope)
                is_run = function is None or self.callers.of(function) != []
                if name in catalog.FSDP2_FUNCTIONS and is_run:
                    return True
        return False

    def _is_handed_on(self, made: list[Path]) -> bool:
        """Tell whether a file uses the class by a name that it has of another file of the project."""
        names = "|".join(map(re.escape, sorted(self._names | {catalog.FSDP})))
        pattern = re.compile(rf"\b(?:{names})\(")
        texts = self.callers.project.texts
        others = (path for path in texts if path not in made and not is_a_test(path))
        return any(pattern.search(texts[path]) for path in others)


def _only_asks(node: ast.expr, above: ast.AST | None, around: dict[int, ast.AST]) -> bool:
    """Tell whether the class is only asked for, or one of its functions is: it makes no model there."""
    if isinstance(above, (ast.Tuple, ast.BinOp)):
        above = around.get(id(above))
    if isinstance(above, ast.Attribute):
        return above.attr in catalog.CLASS_FUNCTIONS
    if isinstance(above, ast.Call):
        return above.func is not node and dotted(above.func) in _ASKS
    if isinstance(above, (ast.arg, ast.AnnAssign)):
        return above.annotation is node
    return isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)) and above.returns is node
