"""Methods that a constructor alone runs, also that of a base class: what they have is not sharded yet.

``self.ref = copy.deepcopy(self.net)`` in ``init_model``, which ``__init__`` calls, where the model is sharded
once the object is there, or by what the constructor calls below.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.callers import akin, picks_nothing
from fsdp_migrate.source.method_family import INIT, Family, Method, Spot, family_of
from fsdp_migrate.source.project import Definition, Place, dotted
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsdp_migrate.source.plain_doubts import Doubts
    from fsdp_migrate.source.project import Module


_DEEPEST: Final = 4
_SHARDS: Final = re.compile(r"(?i)fsdp|fully_?shard|\.(?:_?prepare|setup)\w*\(|DataParallel")
# Bases whose constructors call no method of those below them.
_MODULES: Final = frozenset({"LightningModule", "Module"})
_BASES: Final = frozenset({"ABC", "Generic", "Protocol", "object"})
# Methods that Lightning, or torch, calls later.
_CALLED_LATER: Final = re.compile(
    r"^_?(?:on_.*|apply|eval|extra_repr|forward|setup|teardown|train|\w+_(?:step|dataloader)"
    r"|(?:configure|prepare)_\w+|\w*(?:extra_state|hook|parameters|state_dict)\w*)$"
)


@dataclass(eq=False)
class Constructed:
    """Answers which attributes of objects are plain where a constructor runs. Reads only."""

    doubts: Doubts
    is_plain: Callable[[ast.expr, Place], bool]
    """Tells of the value of an attribute whether it is plain."""
    _known: dict[tuple[str, str, str], bool] = field(default_factory=dict, repr=False)

    def holds(self, place: Place, text: str) -> bool:
        """Tell whether a place is run by constructors alone, before they shard what has a name."""
        owner = self.doubts.project.class_of(place)
        if owner is None or not text.startswith("self."):
            return False
        name = place.scope.removeprefix(f"{owner.name}.")
        made = owner.module.definitions.get(place.scope)
        if "." in name or made is None or isinstance(made.node, ast.ClassDef) or name == INIT:
            return False
        asked = owner.key, name, text.split(".")[1]
        if asked not in self._known:
            self._known[asked] = False  # what it asks of itself counts for nothing
            method = Method(owner.module, name, made.node, owner)
            self._known[asked] = self._is_run_first(owner, method, text.split(".")[1])
        return self._known[asked]

    def _is_run_first(self, owner: Definition, method: Method, attribute: str) -> bool:
        is_later = _CALLED_LATER.search(method.name) is not None and _is_a_module(self.doubts, owner)
        if is_later or not self._is_by_constructors(owner, method.name, 0):
            return False
        families = [family_of(self.doubts.project, each, ()) for each in self._leaves(owner)]
        return all(self._is_plain_in(each, method, attribute) for each in families)

    def _is_by_constructors(self, owner: Definition, name: str, depth: int) -> bool:
        """Tell whether all that speaks of a method calls it of its object, from a constructor in the end."""
        if depth > _DEEPEST or not _has_known_bases(self.doubts, owner):
            return False
        callers = set[tuple[str, str]]()
        for module, node in self.doubts.callers.mentions(name):
            around = self.doubts.callers.around(module)
            above = around.above.get(id(node))
            if isinstance(node, ast.Constant) and picks_nothing(above, around.above):
                continue
            if isinstance(node, (ast.Name, ast.alias)) or self._is_of_package(module, node):
                continue
            place = around.places.get(id(above))
            holder = self.doubts.project.class_of(place) if place is not None else None
            is_call = isinstance(above, ast.Call) and above.func is node
            is_of_self = is_call and ast.unparse(node) in {f"self.{name}", f"super().{name}"}
            if not is_of_self or place is None or holder is None or place.loops:
                return False
            if akin(self.doubts.project, holder, owner):
                callers.add((holder.key, place.scope.removeprefix(f"{holder.name}.")))
        others = {each for _, each in callers if each not in {INIT, name}}
        return bool(callers) and all(
            "." not in each and self._is_by_constructors(owner, each, depth + 1) for each in others
        )

    def _is_of_package(self, module: Module, node: ast.AST) -> bool:
        """Tell whether it is a function of a package: ``torch.load``."""
        root = (dotted(node) or "").partition(".")[0] if isinstance(node, ast.Attribute) else ""
        written = module.imports.get(root, "") if root not in module.definitions else ""
        parts = written.split(".")
        starts = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return bool(parts[0]) and not any(self.doubts.project.paths(module, each) for each in starts)

    def _leaves(self, owner: Definition) -> Iterator[Definition]:
        """Yield a class and those of the project that derive from it."""
        yield owner
        for path in self.doubts.callers.holding(owner.name.split(".")[-1]):
            module = self.doubts.project.module(path)
            for each in module.definitions.values() if module is not None else ():
                if (
                    isinstance(each.node, ast.ClassDef)
                    and each is not owner
                    and self._derives(each, owner, 0)
                ):
                    yield each

    def _derives(self, one: Definition, other: Definition, depth: int) -> bool:
        bases = self.doubts.project.bases(one) if depth < _DEEPEST else ()
        return any(each is other or self._derives(each, other, depth + 1) for each in bases)

    def _is_plain_in(self, family: Family, method: Method, attribute: str) -> bool:
        """Tell whether an attribute is plain at first, and nothing runs before a method that may shard it."""
        spot = Spot(method, method.node.lineno)
        for each in family.methods:
            calls = (node for node in walked(each.node) if isinstance(node, ast.Call))
            lines = [node.lineno for node in calls if self._may_shard(each, node)]
            if each.node is method.node and lines:
                return False
            if any(family.runs_first(spot, Spot(each, line)) is not True for line in lines):
                return False
        values = list(_values(family, attribute))
        first = [(value, place) for each, value, place in values if not self._shards_at(each, value)]
        return bool(first) and all(self.is_plain(value, place) for value, place in first)

    def _may_shard(self, method: Method, node: ast.Call) -> bool:
        place = Place(method.module, f"{method.owner.name}.{method.name}" if method.owner is not None else "")
        is_own = (dotted(node.func) or "").startswith(("self.", "super"))
        return _SHARDS.search(f"{ast.unparse(node.func)}(") is not None or (
            not is_own and self.doubts.wraps(node, place)
        )

    def _shards_at(self, method: Method, value: ast.expr) -> bool:
        calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
        return any(self._may_shard(method, node) for node in calls)


def _has_known_bases(doubts: Doubts, owner: Definition) -> bool:
    """Tell whether the constructors of all classes above one are seen, or call none of its methods."""
    bases = doubts.project.bases(owner)
    known = {each.name.split(".")[-1] for each in bases} | _BASES | _MODULES
    return _named_bases(owner) <= known and all(_has_known_bases(doubts, each) for each in bases)


def _is_a_module(doubts: Doubts, owner: Definition) -> bool:
    above = doubts.project.bases(owner)
    return not _MODULES.isdisjoint(_named_bases(owner)) or any(_is_a_module(doubts, each) for each in above)


def _named_bases(owner: Definition) -> set[str]:
    assert isinstance(owner.node, ast.ClassDef)
    return {(dotted(each) or "?").split(".")[-1] for each in owner.node.bases}


def _values(family: Family, attribute: str) -> Iterator[tuple[Method, ast.expr, Place]]:
    """Yield what methods give an attribute of their object, and where."""
    for method in family.methods:
        scope = f"{method.owner.name}.{method.name}" if method.owner is not None else ""
        for node in walked(method.node):
            value = node.value if isinstance(node, (ast.AnnAssign, ast.Assign)) else None
            if value is not None and any(dotted(each) == f"self.{attribute}" for each in targets_of(node)):
                yield method, value, Place(method.module, scope)
