"""What holds wherever a project calls FSDP1's class: that there are several ranks, or that a switch is on.

A branch where that is otherwise has no sharded model, in whatever file it stands.
"""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source import catalog
from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.callers import Callers
from fsdp_migrate.source.project import Asked, Place, dotted, is_a_test, last_name
from fsdp_migrate.source.project_containers import pairs
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.project_switches import said_by
from fsdp_migrate.source.python.known_parts import known_parts
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.numbers_of_ranks import says_several
from fsdp_migrate.source.python.switches import contradict
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.callers import Seen
    from fsdp_migrate.source.project import Definition, Module, Project
    from fsdp_migrate.source.python.links import Links

    Said = tuple[str, str | None, bool]


_MAKE: Final = frozenset({"fully_shard", "prepare_fully_shard"})
_COUNTS: Final = "get_world_size"
_FROM_ENVIRONMENT: Final = re.compile(r"^int\(os\.(?:environ(?:\.get)?[\[(]|getenv\()'WORLD_SIZE'")
# Of `config.enabled` each part of a project may have its own; what a command line gives, a run has once.
_SETTINGS: Final = re.compile(
    r"^(?:self\.)?(?:(?:args|hparams|opts?)\.|(?:cfg|conf|config|options)\.\w+\.)[\w.]+$"
)
# Not `tp.world_size`: a group of some ranks has a number of its own.
_NUMBER: Final = re.compile(
    r"(?:self\.)?_?(?:(?:args|cfg|conf|config|env|hparams|options|opts?|dist\w*)\.)?_?world_size\Z",
    re.IGNORECASE,
)
_FARTHEST: Final = 3
_ASSIGNS: Final = (ast.AnnAssign, ast.Assign)
Lines = frozenset[tuple[int, int]]


def with_wrapping_places(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files of a project the lines that run only where nothing is sharded.

    Not where a framework shards, or where FSDP1's class is handed on: when it is called is not seen then.
    """
    places = _Wrapping(project)
    if any(each.frameworks or each.made_by_others for each in links.values()) or not places.are_seen():
        return links
    told = dict(links)
    for path in project.texts:
        if lines := places.unsharded(path):
            told[path] = replace(told.get(path, NOTHING), unsharded=lines)
    return told


@dataclass(eq=False)
class _Wrapping:
    """Answers what holds where a project makes sharded models. Reads only."""

    project: Project
    callers: Callers = field(init=False)
    _numbers: _Ranks = field(init=False)
    _kept: dict[str, frozenset[Said]] = field(default_factory=dict)
    _off: dict[str, bool] = field(default_factory=dict)
    """Whether nothing is sharded where a function is called, wherever that is."""
    _on_several: bool = False
    _switches: frozenset[Said] = frozenset()

    def __post_init__(self) -> None:
        self.callers = Callers(self.project)
        self._numbers = _Ranks(self.project)

    def are_seen(self) -> bool:
        """Tell whether each sharding is seen, and one thing holds at all of them."""
        made: list[tuple[Place, tuple[Asked, ...]]] = []
        for path in self.project.holding([catalog.FSDP, *_MAKE]):
            module = None if is_a_test(path) else self.project.module(path)
            if module is not None and not self._is_called_alone(module):
                return False
            for scope in scopes_of(module) if module is not None else ():
                for each in scope.statements:
                    calls = [call for call in each.calls if self._makes(call.func, each.place)]
                    made += [(each.place, tuple(_chosen_by(each.node, call))) for call in calls]
        if not made:
            return False
        self._on_several = all(self._is_on_several(*each) for each in made)
        said = [self._said_at(*each) for each in made]
        self._switches = frozenset(each for each in set.intersection(*said) if self._is_a_setting(each))
        return self._on_several or bool(self._switches)

    def _makes(self, func: ast.expr, place: Place) -> bool:
        text = dotted(func) or ""
        is_one = catalog.fsdp1_name(self.project.qualified(text, place)) == catalog.FSDP
        return is_one or last_name(func) in _MAKE

    def _is_called_alone(self, module: Module) -> bool:
        """Tell whether FSDP1's class is called, asked for, or a type in a file, and nothing else."""
        place = Place(module, "")
        left: set[int] = set()
        for node in walked(module.tree):
            if isinstance(node, ast.Call):
                asked = node.args[1:] if dotted(node.func) in {"isinstance", "issubclass"} else ()
                left.update(id(each) for part in (node.func, *asked) for each in ast.walk(part))
            elif isinstance(node, ast.Attribute):
                left.add(id(node.value))
            elif isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
                left.update(map(id, ast.walk(node.annotation)))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
                left.update(map(id, ast.walk(node.returns)))
        return not any(
            id(node) not in left and self._makes(node, place)
            for node in walked(module.tree)
            if isinstance(node, (ast.Attribute, ast.Name))
        )

    def _around(self, place: Place) -> list[Seen] | None:
        """Return the calls of the function that a place stands in; None where others may be."""
        function = place.module.definitions.get(place.scope)
        calls = self.callers.of(function) if function is not None else None
        return calls and [each for each in calls if not is_a_test(each.place.module.path)]

    def _is_on_several(self, place: Place, more: tuple[Asked, ...] = (), depth: int = 0) -> bool:
        if any(self._numbers.says(each, place) is True for each in (*place.asked, *more)):
            return True
        calls = self._around(place) if depth < _FARTHEST else None
        return bool(calls) and all(self._is_on_several(each.place, (), depth + 1) for each in calls or ())

    def _said_at(self, place: Place, more: tuple[Asked, ...] = (), depth: int = 0) -> set[Said]:
        """Return what is known of settings at a place, also by all calls of its function."""
        function = self.project.node(place.module, place.scope) or place.module.tree
        own = {_without_self(said) for said in said_by((*place.asked, *more), function)}
        calls = self._around(place) if depth < _FARTHEST else None
        others = [self._said_at(each.place, (), depth + 1) for each in calls or ()]
        return own | (set.intersection(*others) if others else set())

    def _is_a_setting(self, said: Said) -> bool:
        """Tell whether it is asked of settings of which there are one, and that nothing sets anew."""
        name = said[0].rpartition(".")[2]
        return _SETTINGS.match(said[0]) is not None and not self._is_set(name) and self._is_of_one(name)

    def _is_of_one(self, name: str) -> bool:
        """Tell whether at most one class of the project has a field of a name."""
        modules = (self.project.module(path) for path in self.project.holding([name]))
        classes = (
            each.node
            for module in modules
            for each in (module.definitions.values() if module is not None else ())
            if isinstance(each.node, ast.ClassDef)
        )
        fields = (targets_of(part) for each in classes for part in each.body if isinstance(part, _ASSIGNS))
        return sum(name in map(dotted, targets) for targets in fields) <= 1

    def _is_set(self, name: str) -> bool:
        """Tell whether something sets an attribute of this name of another object than ``self``."""
        modules = (self.project.module(path) for path in self.project.holding([name]))
        return any(
            isinstance(node, ast.Attribute)
            and node.attr == name
            and not isinstance(node.ctx, ast.Load)
            and dotted(node.value) != "self"
            for module in modules
            if module is not None
            for node in walked(module.tree)
        )

    def unsharded(self, path: Path) -> Lines:
        """Return the first and the last line of each statement that runs where that is otherwise."""
        module = self.project.module(path)
        return frozenset(
            (each.node.lineno, each.node.end_lineno or each.node.lineno)
            for scope in (scopes_of(module) if module is not None else ())
            for each in scope.statements
            if self._is_off(each.place)
        )

    def _is_off(self, place: Place, depth: int = 0) -> bool:
        """Tell whether nothing is sharded at a place, by its own tests or by those of all that call it."""
        if place.asked and self._is_asked_off(place):
            return True
        key = f"{place.module.path}:{place.scope}"
        if depth >= _FARTHEST or not place.scope:
            return False
        if key not in self._off:
            self._off[key] = False  # of what calls itself more may come to it
            calls = self._around(place)
            self._off[key] = bool(calls) and all(self._is_off(each.place, depth + 1) for each in calls or ())
        return self._off[key]

    def _is_asked_off(self, place: Place) -> bool:
        if self._on_several and any(self._numbers.says(each, place) is False for each in place.asked):
            return True
        if not self._switches:
            return False
        function = self.project.node(place.module, place.scope) or place.module.tree
        owner = self.project.class_of(place)
        on = self._switches | (self._kept_in(owner) if owner is not None else frozenset())
        here = [_without_self(said) for said in said_by(place.asked, function)]
        here += [each for said in here for each in (self._said_in(owner, said) if owner is not None else ())]
        return any(contradict(one, other) for one in on for other in here)

    def _said_in(self, owner: Definition, said: Said) -> Iterator[Said]:
        """Yield what an attribute says that is made of others: ``self.ema = ratio and not self.zero``."""
        text, constant, truth = said
        made = self.project.method(owner, "__init__") if text.startswith("self.") else None
        name = text.removeprefix("self.")
        if constant is not None or made is None or not self._is_set_once(owner, name):
            return
        assigns = [each for each in walked(made.node) if isinstance(each, ast.Assign)]
        for target, value in (p for a in assigns for t in a.targets for p in pairs(t, a.value)):
            if dotted(target) == text:
                asked = Asked(value, truth, made.node, is_in_loop=False)
                # What a parameter said then, the same name need not say in another method.
                known = map(_without_self, said_by([asked], made.node))
                yield from (each for each in known if each[0].startswith("self.") or _SETTINGS.match(each[0]))

    def _kept_in(self, owner: Definition) -> frozenset[Said]:
        """Return what the objects of a class keep of the switches: ``self.zero``, given ``args.zero``."""
        if owner.key not in self._kept:
            self._kept[owner.key] = frozenset(self._find_kept(owner))
        return self._kept[owner.key]

    def _find_kept(self, owner: Definition) -> Iterator[Said]:
        made = self.project.method(owner, "__init__")
        calls = (
            self._around(Place(made.module, made.name)) if made is not None and made.owner is owner else None
        )
        if made is None or not calls:
            return
        assigns = [each for each in walked(made.node) if isinstance(each, ast.Assign)]
        for target, value in (p for a in assigns for t in a.targets for p in pairs(t, a.value)):
            text = dotted(target) or ""
            if not text.startswith("self.") or not isinstance(value, ast.Name):
                continue
            given = {self._given(made, value.id, each) for each in calls}
            if len(given) == 1 and self._is_set_once(owner, text.removeprefix("self.")):
                yield from ((text, said[1], said[2]) for said in self._switches if said[0] in given)

    @staticmethod
    def _given(function: Definition, name: str, seen: Seen) -> str:
        """Return the text of what a call gives to a parameter that its function does not set."""
        given = given_by(function, name, seen.call)
        sets = (each for each in walked(function.node) if isinstance(each, ast.Name) and each.id == name)
        is_set = any(not isinstance(each.ctx, ast.Load) for each in sets)
        return "" if given is None or is_set else _shortened(dotted(given) or "")

    def _is_set_once(self, owner: Definition, name: str) -> bool:
        """Tell whether one statement sets an attribute of a class's objects, and nothing from elsewhere."""
        stores = [each for each in walked(owner.node) if _sets(each, name)]
        below = (
            each
            for path in self.project.holding([name])
            if (module := self.project.module(path)) is not None
            for each in module.definitions.values()
            if isinstance(each.node, ast.ClassDef) and owner in self.project.bases(each)
        )
        is_set_below = any(_sets(node, name) for each in below for node in walked(each.node))
        return len(stores) == 1 and not is_set_below and not self._is_set(name)


@dataclass(eq=False)
class _Ranks:
    """Answers what tests say of the number of ranks. Reads only."""

    project: Project

    @functools.cached_property
    def _counting(self) -> frozenset[str]:
        """The functions that give the number of ranks: torch's, and those of the project that give this."""
        own: dict[str, bool] = {}
        for path in self.project.holding([_COUNTS, "WORLD_SIZE"]):
            module = self.project.module(path)
            for each in module.definitions.values() if module is not None else ():
                if not isinstance(each.node, ast.ClassDef):
                    own[each.node.name] = own.get(each.node.name, True) and _counts(each.node)
        return frozenset({name for name, is_one in own.items() if is_one} | {_COUNTS} - own.keys())

    def says(self, asked: Asked, place: Place) -> bool | None:
        """Return whether a test that has come out so says that there are several ranks; None if nothing."""
        function = self.project.node(place.module, place.scope) or place.module.tree
        for test, truth in known_parts(asked.test, truth=asked.truth):
            said = says_several(test, truth=truth, is_number=lambda node: self._is_number(node, function))
            if said is not None:
                return said
        return None

    def _is_number(self, node: ast.expr, function: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return last_name(node.func) in self._counting and not node.args and not node.keywords
        if isinstance(node, ast.Name):
            values = [
                value
                for each in walked(function)
                if isinstance(each, ast.Assign)
                for target in each.targets
                for name, value in pairs(target, each.value)
                if dotted(name) == node.id
            ]
            if values:
                return all(isinstance(each, ast.Call) and self._is_number(each, function) for each in values)
        return _NUMBER.match(dotted(node) or "") is not None


def _counts(function: ast.AST) -> bool:
    """Tell whether a function gives the number of all ranks, or 1 where there is no process group."""
    given = [each.value for each in walked(function) if isinstance(each, ast.Return)]
    is_one = [isinstance(each, ast.Constant) and each.value == 1 for each in given]
    return not all(is_one) and all(
        is_constant or (each is not None and _is_torchs(each))
        for each, is_constant in zip(given, is_one, strict=True)
    )


def _is_torchs(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return any(map(_is_torchs, (node.body, node.orelse))) and all(
            _is_torchs(each) or (isinstance(each, ast.Constant) and each.value == 1)
            for each in (node.body, node.orelse)
        )
    is_torchs = isinstance(node, ast.Call) and (dotted(node.func) or "").endswith(f"dist.{_COUNTS}")
    is_torchs |= isinstance(node, ast.Call) and (dotted(node.func) or "").endswith(f"distributed.{_COUNTS}")
    has_none = isinstance(node, ast.Call) and not node.args and not node.keywords
    return (is_torchs and has_none) or _FROM_ENVIRONMENT.match(ast.unparse(node)) is not None


def _chosen_by(statement: ast.stmt, call: ast.Call) -> Iterator[Asked]:
    """Yield the choices of ``model = FSDP(net) if on else net``."""
    for choice in (each for each in ast.walk(statement) if isinstance(each, ast.IfExp)):
        for side, truth in ((choice.body, True), (choice.orelse, False)):
            if any(each is call for each in ast.walk(side)):
                yield Asked(choice.test, truth, choice, is_in_loop=False)


def _sets(node: ast.AST, name: str) -> bool:
    is_its = isinstance(node, ast.Attribute) and node.attr == name and dotted(node.value) == "self"
    return is_its and isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)


def _shortened(text: str) -> str:
    """Return the text of a setting without ``self``: of ``self.args.zero``."""
    return text.removeprefix("self.") if _SETTINGS.match(text) else text


def _without_self(said: Said) -> Said:
    return _shortened(said[0]), said[1], said[2]
