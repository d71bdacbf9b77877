"""Whether a function may be called by its name as a text: of a config, or one that is put together."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.callers import Callers, only_asks, picks_nothing
from fsdp_migrate.source.config_words import configs_of
from fsdp_migrate.source.plain_doubts import Doubts
from fsdp_migrate.source.project import Place, dotted, is_a_test, last_name
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Definition, Module


# They give what a text names that they are given.
_BY_TEXT: Final = frozenset(
    {"get_method", "get_object", "import_string", "instantiate", "iter_entry_points", "locate"}
)
_IMPORTS: Final = frozenset({"__import__", "import_module"})
_WORDS: Final = (*sorted(_BY_TEXT | _IMPORTS), "__dict__", "entry_points", "getattr", "vars")
_PICKS: Final = 2


@dataclass(eq=False)
class NamedAtRun:
    """Answers whether a text may name a function to be called. Reads only."""

    callers: Callers
    around: Iterable[str | os.PathLike[str]] = ()
    """The files and folders that were given, where configs may be."""
    _doubts: Doubts = field(init=False, repr=False)
    _is_any: dict[bool, bool] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._doubts = Doubts(self.callers.project, self.callers)

    def may_be(self, function: Definition) -> bool:
        """Tell whether a text of the project names a function, or may be put together to name it."""
        is_method = function.owner is not None
        if is_method not in self._is_any:
            self._is_any[is_method] = any(self._picks_any(each, is_method) for each in self._modules(_WORDS))
        is_picked = self._doubts.is_picked(function) or self._doubts.is_given_out(function)
        return self._is_any[is_method] or is_picked or self._is_written(function.node.name)

    def _modules(self, words: Iterable[str]) -> Iterator[Module]:
        project = self.callers.project
        paths = (path for path in project.holding(words) if not is_a_test(path))
        yield from filter(None, map(project.module, paths))

    def _is_written(self, name: str) -> bool:
        """Tell whether a config, or a text of a source, has a function's name."""
        word = re.escape(name)
        # `lib.wrap`, `lib:wrap`, `from lib import wrap`, `wrap(net)`; not what an error says of it.
        named = re.compile(rf"[.:]{word}\b|\bimport\b.*\b{word}\b|\b{word}\(|\A\s*{word}\s*\Z")
        for module in self._modules([name]):
            above = self.callers.around(module).above
            for node in walked(module.tree):
                text = node.value if isinstance(node, ast.Constant) else None
                if not isinstance(text, str) or not named.search(text) or only_asks(node, above):
                    continue
                around = above.get(id(node))
                if isinstance(around, ast.JoinedStr) or not picks_nothing(around, above):
                    return True
        whole = re.compile(rf"\b{word}\b")
        return any(whole.search(text) for text in configs_of(self.around))

    def _picks_any(self, module: Module, is_method: bool) -> bool:
        """Tell whether a file picks functions of the project by texts of which nothing is known here."""
        above = self.callers.around(module).above
        for node in walked(module.tree):
            picked = _picked(node)
            if picked is not None and not isinstance(picked[1], ast.Constant):
                is_called = isinstance(around := above.get(id(node)), ast.Call) and around.func is node
                if self._has_functions(picked[0], module) or (is_method and is_called):
                    return True
            if isinstance(node, ast.Call) and self._imports_any(node):
                return True
        return False

    def _has_functions(self, node: ast.expr, module: Module) -> bool:
        """Tell whether an expression is a module, or a class, of the project."""
        if isinstance(node, ast.Call):
            return last_name(node.func) in _IMPORTS
        if isinstance(node, ast.Subscript):
            return dotted(node.value) == "sys.modules"
        text = dotted(node)
        if text is None:
            return False
        place = Place(module, "")
        is_defined = self.callers.project.named(text, place) is not None
        root = text.split(".")[0]
        return is_defined or (
            root in module.imports and self._is_own(self.callers.project.qualified(text, place), module)
        )

    def _is_own(self, written: str, module: Module) -> bool:
        return bool(self.callers.project.paths(module, written))

    def _imports_any(self, call: ast.Call) -> bool:
        name = last_name(call.func)
        if name == "entry_points":
            return True
        if name not in _BY_TEXT | _IMPORTS or not call.args:
            return False
        given = call.args[0]
        if not isinstance(given, ast.Constant):
            return True
        first = str(given.value).lstrip(".").split(".")[0]
        return name in _IMPORTS and any(first in path.parts or first == path.stem for path in self._paths())

    def _paths(self) -> Iterable[Path]:
        return self.callers.project.texts


def _picked(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return of what something is picked, and by which name: ``getattr(lib, name)``, ``vars(lib)[name]``."""
    if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) >= _PICKS:
        return node.args[0], node.args[1]
    owner, name = _looked_up(node)
    if isinstance(owner, ast.Attribute) and owner.attr == "__dict__":
        return owner.value, name
    is_vars = isinstance(owner, ast.Call) and dotted(owner.func) == "vars" and bool(owner.args)
    return (owner.args[0], name) if isinstance(owner, ast.Call) and is_vars else None


def _looked_up(node: ast.AST) -> tuple[ast.expr | None, ast.expr]:
    """Return of what a key is looked up, and the key: ``d[key]``, ``d.get(key)``; of nothing elsewhere."""
    if isinstance(node, ast.Subscript):
        return node.value, node.slice
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return (node.func.value if node.func.attr == "get" else None), node.args[0]
    return None, ast.Constant(None)
