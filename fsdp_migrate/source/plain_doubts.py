"""What makes it doubtful that a model that is made in sight is plain: what shards it, or fills its list."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import Definition, Place, dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.project_switches import is_ruled_out
from fsdp_migrate.source.python.argument_places import every_argument, parameters_of, placed_names
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.values_bound import values_bound


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.callers import Callers
    from fsdp_migrate.source.project import Module, Project, Start
    from fsdp_migrate.source.project_scopes import Statement


_DEEPEST: Final = 4
_WRAPS: Final = re.compile(r"\bFSDP\(|\bFullyShardedDataParallel\(|\bfully_shard\(")
_CLASS: Final = re.compile(r"FullyShardedDataParallel$|\.fully_shard$")
# What these are called on has more in it afterwards.
_FILLS: Final = frozenset(
    {
        *("add", "add_module", "add_param_group", "append", "extend", "insert", "register_module"),
        *("setdefault", "update"),
    }
)
# They hand back the function or class that they are given.
_KEEPS: Final = re.compile(
    r"(?i)regist|^(?:dataclass|abstractmethod|cache\w*|lru_cache|no_grad|property|staticmethod|classmethod"
    r"|inference_mode|enable_grad|total_ordering|add_\w*docstring\w*|wraps|overload|final|\w*deprecat\w*)$"
)
_NAMED_AT_RUN: Final = re.compile(
    r"\b(?:globals|vars|locals)\(\)\s*(?:\.|\[(?!\s*['\"])|\))"
    r"|\bgetattr\([^'\"\n]*,\s*(?!['\"])[\w.\[\]]+\s*(?:,[^)\n]*)?\)"
)
_OF_A_MODULE: Final = re.compile(
    r"\b(?:globals|vars|locals)\(\)(?!\s*\[\s*['\"]\w+['\"]\s*\]|\.get\(\s*['\"])"
)
_SHARDS: Final = re.compile(r"(?i)fsdp|parallel|prepare|shard|wrap")
_PIECE: Final = 2
_PICKERS: Final = {"getattr": 1, "methodcaller": 0}
"""What picks a method by its name, and which argument that is."""


@dataclass(eq=False)
class Doubts:
    """Answers what may have made a model a sharded one. Reads only."""

    project: Project
    callers: Callers
    _leads: dict[str, bool] = field(default_factory=dict, repr=False)
    _holds: dict[tuple[Path, str, Start, str], bool] = field(default_factory=dict, repr=False)
    _patterns: list[re.Pattern[str]] | None = field(default=None, repr=False)
    _by_scope: dict[Module, dict[str, list[Statement]]] = field(default_factory=dict, repr=False)

    def leads(self, definition: Definition, depth: int = 0) -> bool:
        """Tell whether a function or class wraps something by FSDP, or calls what does."""
        if definition.key not in self._leads:
            self._leads[definition.key] = False  # what it calls itself counts for nothing
            self._leads[definition.key] = _WRAPS.search(definition.written) is not None or (
                depth < _DEEPEST and self._calls_what_leads(definition, depth + 1)
            )
        return self._leads[definition.key]

    def _calls_what_leads(self, definition: Definition, depth: int) -> bool:
        for scope, statements in self._scopes(definition.module).items():
            if scope == definition.name or scope.startswith(f"{definition.name}."):
                calls = (call for each in statements for call in each.calls)
                place = statements[0].place
                if any(self.wraps(call, place, depth) for call in calls):
                    return True
        return False

    def wraps(self, call: ast.Call, place: Place, depth: int = 0) -> bool:
        """Tell whether a call gives a sharded model, or shards what it is given."""
        text = dotted(call.func)
        if text is None:
            return False
        if _CLASS.search(self.project.qualified(text, place)) or _WRAPS.search(f"{text}("):
            return True
        made = self.callers.stands_for(text, place)
        return made is not None and self.leads(made, depth)

    def keeps(self, definition: Definition) -> bool:
        """Tell whether no decorator makes something else of a function or class."""
        words = [each.func if isinstance(each, ast.Call) else each for each in definition.node.decorator_list]
        return all(self._keeps(dotted(each) or "", Place(definition.module, "")) for each in words)

    def _keeps(self, text: str, place: Place) -> bool:
        if _KEEPS.search(text.rsplit(".", maxsplit=1)[-1]):
            return True
        made = self.callers.stands_for(text, place) if text else None
        written = self.project.qualified(text, place) if text else ""
        return made is None and bool(written) and _SHARDS.search(written) is None

    def is_changed(self, place: Place, name: str) -> bool:
        """Tell whether above a place something that a name holds is sharded in place, or put into it."""
        scope = place.scope
        while True:
            start = place.start if scope == place.scope and not place.loops else None
            if any(
                self._changes(each, name)
                for each in self._scopes(place.module).get(scope, ())
                if (start is None or each.place.start < start)
                and not is_ruled_out(self.project, each.place, place)
            ):
                return True
            # A parameter is another variable than what has its name outside.
            if not scope or name in _parameters(place.module, scope):
                return False
            scope = scope.rpartition(".")[0]

    def _changes(self, statement: Statement, name: str) -> bool:
        for given in filled(statement, name):
            if not self._is_of_no_model(given, statement.place):
                return True
        for call in statement.calls:
            at = [count for count, each in enumerate(call.args) if dotted(each) == name]
            if at and (self.wraps(call, statement.place) or self._is_filled_by(call, at[0], statement.place)):
                return True
        return False

    def _is_filled_by(self, call: ast.Call, count: int, place: Place) -> bool:
        """Tell whether a function puts another thing that it is given into what it is given."""
        made = self.callers.stands_for(text, place) if (text := dotted(call.func)) is not None else None
        if made is None or isinstance(made.node, ast.ClassDef) or len(call.args) < _PIECE:
            return False
        names = placed_names(made.node)
        names = names[1:] if made.owner is not None else names
        if count >= len(names):
            return False
        statements = self._scopes(made.module).get(made.name, ())
        return any(next(filled(each, names[count]), None) is not None for each in statements)

    def _is_of_no_model(self, given: ast.expr, place: Place) -> bool:
        """Tell whether what is put in is of names whose values are seen, and that nothing sharded makes."""
        for each in ast.walk(given):
            if isinstance(each, ast.Call) and self.wraps(each, place):
                return False
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and self.may_hold(each, place):
                return False
        return True

    def may_hold(self, node: ast.Name, place: Place, depth: int = 0) -> bool:
        """Tell whether what a name is given may be a sharded model, or come of one; also what loops give."""
        key = (place.module.path, place.scope, place.start, node.id)
        if key not in self._holds:
            self._holds[key] = False  # what it is made of itself counts for nothing
            self._holds[key] = self._may_hold(node, place, depth)
        return self._holds[key]

    def _may_hold(self, node: ast.Name, place: Place, depth: int) -> bool:
        values = values_bound(place, node.id)
        if values is None or self.is_changed(place, node.id):
            return True
        for value in values:
            calls = [each for each in ast.walk(value.node) if isinstance(each, ast.Call)]
            if any(self.wraps(each, value.place) for each in calls):
                return True
            names = [each for each in ast.walk(value.node) if isinstance(each, ast.Name)]
            if depth < _DEEPEST and any(self.may_hold(each, value.place, depth + 1) for each in names):
                return True
        return False

    def may_give(self, name: str) -> bool:
        """Tell whether a method of that name, or what is set as one, may give a sharded model."""
        for path in self.callers.holding(name):
            module = self.project.module(path)
            methods = module.definitions.values() if module is not None else ()
            own = (each for each in methods if each.owner is not None and each.name.endswith(f".{name}"))
            if any(self.leads(each) or _calls_an_item(each.node) for each in own):
                return True
            if re.search(rf"\.{re.escape(name)}\s*=[^=]", self.project.texts[path]):
                return True
        return False

    def is_a_maker(self, made: ast.expr, place: Place) -> bool:
        """Tell whether a function, a lambda or a class that stands in a variable makes sharded models."""
        text = dotted(made)
        definition = self.callers.stands_for(text, place) if text is not None else None
        calls = (each for each in ast.walk(made) if isinstance(each, ast.Call))
        return (definition is not None and self.leads(definition)) or any(
            self.wraps(each, place) for each in calls
        )

    def is_picked(self, definition: Definition) -> bool:
        """Tell whether a name that is put together when it runs may be a function's or a class's."""
        name = _called(definition)
        if self._patterns is None:
            self._patterns = list(self._put_together())
        return any(each.fullmatch(name) for each in self._patterns)

    def is_given_out(self, definition: Definition) -> bool:
        """Tell whether a file takes its functions and classes together, by whatever name they have."""
        return (
            "." not in definition.name.removesuffix(".__init__")
            and _OF_A_MODULE.search(self.project.texts[definition.module.path]) is not None
        )

    def is_any_picked(self) -> bool:
        """Tell whether the project picks functions or classes by names that stand nowhere."""
        return any(_NAMED_AT_RUN.search(text) for text in self.project.texts.values())

    def _put_together(self) -> Iterator[re.Pattern[str]]:
        for path, text in self.project.texts.items():
            is_one = any(f"{name}(" in text for name in _PICKERS)
            module = self.project.module(path) if is_one else None
            calls = (each for each in walked(module.tree)) if module is not None else ()
            for node in calls:
                name = last_name(node.func) if isinstance(node, ast.Call) else ""
                at = _PICKERS.get(name)
                given = node.args[at : at + 1] if isinstance(node, ast.Call) and at is not None else []
                pattern = _pattern(given[0]) if given else None
                if pattern is not None:
                    yield re.compile(pattern)

    def statements(self, module: Module, scope: str) -> list[Statement]:
        """Return the statements of a function, a class or a file, by its name there, in order."""
        return self._scopes(module).get(scope, [])

    def _scopes(self, module: Module) -> dict[str, list[Statement]]:
        if module not in self._by_scope:
            found: dict[str, list[Statement]] = {}
            for scope in scopes_of(module):
                if scope.statements:
                    found.setdefault(scope.statements[0].place.scope, []).extend(scope.statements)
            self._by_scope[module] = found
        return self._by_scope[module]


def _parameters(module: Module, scope: str) -> set[str]:
    definition = module.definitions.get(scope)
    if definition is None or isinstance(definition.node, ast.ClassDef):
        return set()
    return {each.arg for each in parameters_of(definition.node)}


def _called(definition: Definition) -> str:
    """Return by which name a function is called, which for a constructor is that of its class."""
    *owners, name = definition.name.split(".")
    return owners[-1] if owners and name == "__init__" else name


def _calls_an_item(node: ast.AST) -> bool:
    """Tell whether a function calls what a dict or a list holds: ``self.makers[name]()``."""
    return any(isinstance(each, ast.Call) and isinstance(each.func, ast.Subscript) for each in ast.walk(node))


def filled(statement: Statement, text: str) -> Iterator[ast.expr]:
    """Yield what a statement puts into what a text stands for."""
    for call in statement.calls:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in _FILLS and dotted(func.value) == text:
            yield from every_argument(call)
    node = statement.node
    targets = node.targets if isinstance(node, ast.Assign) else []
    for each in targets:
        if isinstance(each, ast.Subscript) and text in {dotted(each.value), _owner(each.value)}:
            assert isinstance(node, ast.Assign)
            yield node.value


def _owner(node: ast.expr) -> str | None:
    return dotted(node.value) if isinstance(node, ast.Attribute) else None


def _pattern(node: ast.expr) -> str | None:
    """Return what a name that is put together of texts matches; None where nothing of it is written."""
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else None for each in node.values]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = (node.left, node.right)
        parts = [each.value if isinstance(each, ast.Constant) else None for each in sides]
    else:
        return None
    written = "".join(each for each in parts if isinstance(each, str))
    if len(written.strip("_")) < _PIECE:
        return None
    return "".join(re.escape(each) if isinstance(each, str) else r"\w*" for each in parts)
