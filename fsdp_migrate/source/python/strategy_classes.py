"""Classes beside each other, each of which wraps a model in its own way: DDP's, FSDP's, that of one process.

What a method of such a class is given is what the class itself has made of the model: ``setup(model)``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import libcst as cst

from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.makers import is_constructor
from fsdp_migrate.source.python.nodes import (
    dotted,
    last_name,
    parameters_of,
    placed_parameters,
    text_of,
    walk_for,
)
from fsdp_migrate.source.python.wrappers import AROUND_MODEL, DDP, SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.scopes import Index


Way = Literal["ddp", "fsdp", "itself", "nothing", "unknown"]
"""What a method gives for the model that it is given; ``nothing`` where it is left to the classes below."""

_DEEPEST = 4
_ROOTS = frozenset({"ABC", "Generic", "Protocol", "object"})
# A class that stands alone in its file: others, of other files, wrap models otherwise.
_NAMED = re.compile(r"(?i)strateg|backend|distribut|engine|parallel|plugin|fsdp")


@dataclass(frozen=True, eq=False)
class StrategyClasses:
    """Answers what the methods of such classes are given, by the methods that wrap. Reads only."""

    index: Index
    derived_elsewhere: frozenset[str]
    """The classes that other files derive from: what those make of a model is not seen here."""

    def is_plain(self, node: cst.CSTNode) -> bool:
        """Tell whether it is a parameter of a method that no class runs which wraps models by FSDP1."""
        ways = self._ways_of(node)
        return bool(ways) and ways <= {"ddp", "itself", "nothing"}

    def is_sharded(self, node: cst.CSTNode) -> bool:
        """Tell whether it is the model's parameter in a method that such classes alone run."""
        return self._ways_of(node) - {"nothing"} == {"fsdp"}

    def is_run_by_itself(self, node: cst.CSTNode) -> bool:
        """Tell whether a class calls the method around a place by ``self``: what that gives is seen."""
        method = self.index.function(node)
        calls = self.index.calls_of_method(method.name.value) if method is not None else ()
        return any(text_of(each.func).startswith("self.") for each in calls)

    def is_run_sharded(self, node: cst.CSTNode) -> bool:
        """Tell whether a place stands in a method that only classes run which wrap models by FSDP1."""
        method = self.index.function(node) if self._wrapping else None
        return method is not None and self._run_by.get(method, frozenset()) - {"nothing"} == {"fsdp"}

    def _ways_of(self, node: cst.CSTNode) -> frozenset[Way]:
        is_name = isinstance(node, cst.Name) and node in self.index.scopes
        if not is_name or not self._wrapping or not isinstance(node, cst.Name):
            return frozenset()
        scope = self.index.scopes[node].find(node.value)
        method = scope.node if scope is not None else None
        if scope is None or not isinstance(method, cst.FunctionDef):
            return frozenset()
        if [each.kind for each in scope.bindings[node.value]] != ["param"]:
            return frozenset()
        return self._given_to.get((method, node.value), frozenset())

    @functools.cached_property
    def _classes(self) -> dict[str, cst.ClassDef]:
        """The classes of the file's top level, by names that no two of them have."""
        every = [each for each in self.index.module.body if isinstance(each, cst.ClassDef)]
        names = [each.name.value for each in every]
        return {each.name.value: each for each in every if names.count(each.name.value) == 1}

    @functools.cached_property
    def _wrapping(self) -> dict[str, set[str]]:
        """The names of methods by which a class shards a model, where others have them too; the parameter."""
        if not self._makes_any():
            return {}
        found: dict[str, set[str]] = {}
        for owner in self._classes.values():
            for method in _methods(owner):
                given = self._given(method)
                if given is not None and self._way(method) == "fsdp":
                    found.setdefault(method.name.value, set()).add(given)
        return {name: given for name, given in found.items() if self._is_one_of_several(name)}

    def _is_one_of_several(self, name: str) -> bool:
        """Tell whether classes have a method each in its own way, also one of other files by its name."""
        owners = self._owners(name)
        named = (text_of(each) for owner in owners for each in (owner.name, *(b.value for b in owner.bases)))
        return len(owners) > 1 or any(map(_NAMED.search, named))

    def _makes_any(self) -> bool:
        calls = self.index.by_kind.get(cst.Call, ())
        return any(isinstance(each, cst.Call) and is_constructor(self.index, each.func) for each in calls)

    def _owners(self, name: str) -> list[cst.ClassDef]:
        return [each for each in self._classes.values() if name in {m.name.value for m in _methods(each)}]

    @functools.cached_property
    def _given_to(self) -> dict[tuple[cst.FunctionDef, str], frozenset[Way]]:
        """By methods' parameters what the classes that run them make of models."""
        found: dict[tuple[cst.FunctionDef, str], frozenset[Way]] = {}
        for method, ways, names in self._runs:
            for param in parameters_of(method):
                is_models = "fsdp" not in ways or param.name.value in names
                if is_models and param.name.value != "self":
                    key = method, param.name.value
                    found[key] = found.get(key, frozenset()) | ways
        return found

    @functools.cached_property
    def _run_by(self) -> dict[cst.FunctionDef, frozenset[Way]]:
        """By methods what the classes that run them make of models."""
        found: dict[cst.FunctionDef, frozenset[Way]] = {}
        for method, ways, _ in self._runs:
            found[method] = found.get(method, frozenset()) | ways
        return found

    @functools.cached_property
    def _runs(self) -> list[tuple[cst.FunctionDef, frozenset[Way], set[str]]]:
        """Methods, what the classes that run them make of models, and what those call the model."""
        found: list[tuple[cst.FunctionDef, frozenset[Way], set[str]]] = []
        for wraps, names in self._wrapping.items():
            for owner in self._classes.values():
                for method in _methods(owner):
                    if method.name.value in {wraps, "__init__"}:
                        continue
                    runners = list(self._runners(owner, method))
                    ways = frozenset(self._way_of(each, wraps) for each in runners)
                    if not self.derived_elsewhere.isdisjoint(each.name.value for each in runners):
                        ways |= {"unknown"}
                    found.append((method, ways, names))
        return found

    def _runners(self, owner: cst.ClassDef, method: cst.FunctionDef) -> Iterator[cst.ClassDef]:
        """Yield the classes of whose objects a method is run, by their own or by ``super()`` of theirs."""
        name = method.name.value
        for each in self._classes.values():
            line = list(self._line(each))
            if owner not in line:
                continue
            first = next(above for above in line if name in {m.name.value for m in _methods(above)})
            above = line[: line.index(owner)]
            if first is owner or any(_asks_above(m, name, owner) for each in above for m in _methods(each)):
                yield each

    def _line(self, owner: cst.ClassDef, depth: int = 0) -> Iterator[cst.ClassDef]:
        """Yield a class and those of this file that it derives from."""
        yield owner
        for base in owner.bases if depth < _DEEPEST else ():
            above = self._classes.get(dotted(base.value) or "")
            if above is not None and above is not owner:
                yield from self._line(above, depth + 1)

    def _way_of(self, owner: cst.ClassDef, wraps: str) -> Way:
        """Return what a class makes of a model, by its own method or by the one that it derives."""
        line = list(self._line(owner))
        for above in line:
            methods = [each for each in _methods(above) if each.name.value == wraps]
            if methods:
                way = self._way(methods[-1]) if len(methods) == 1 else "unknown"
                # What is given back as it is may be the model of a class that has nothing to do with it.
                return "unknown" if way == "itself" and not self._is_beside_fsdp(line, wraps) else way
            if any(self._is_elsewhere(base.value) for base in above.bases):
                return "unknown"
        return "unknown"

    def _is_beside_fsdp(self, line: list[cst.ClassDef], wraps: str) -> bool:
        """Tell whether a class is of one family with one that shards by the same method."""
        for other in self._owners(wraps):
            is_one = any(each.name.value == wraps and self._way(each) == "fsdp" for each in _methods(other))
            if is_one and any(each in line for each in self._line(other)):
                return True
        return False

    def _is_elsewhere(self, base: cst.BaseExpression) -> bool:
        name = last_name(base.value if isinstance(base, cst.Subscript) else base)
        return name not in self._classes and name not in _ROOTS

    def _given(self, method: cst.FunctionDef) -> str | None:
        """Return the parameter that a method makes a sharded model of."""
        names = {each.name.value for each in placed_parameters(method)[1:]}
        for call in walk_for(method.body, cst.Call):
            given = call.args[0].value if call.args and is_constructor(self.index, call.func) else None
            text = text_of(given) if given is not None else ""
            if text in names:
                return text
        return None

    def _way(self, method: cst.FunctionDef) -> Way:
        """Return what a method makes of the model that it is given, in any case."""
        if isinstance(method.body, cst.IndentedBlock) and _is_left_open(method):
            return "nothing"
        every = [each for each in walk_for(method.body, cst.Return) if self.index.function(each) is method]
        ways = {self._way_of_value(method, each.value) for each in every}
        if len(ways) != 1:
            return "unknown"
        way = ways.pop()
        return "unknown" if way in {"ddp", "itself"} and self._may_shard(method) else way

    def _way_of_value(self, method: cst.FunctionDef, node: cst.BaseExpression | None, depth: int = 0) -> Way:
        if node is None or depth > _DEEPEST:
            return "unknown"
        if isinstance(node, cst.Name) and node in self.index.scopes:
            bindings = self.index.scopes[node].lookup(node.value)
            if [each.kind for each in bindings] == ["param"]:
                return "itself"
            held = last_value(self.index, node)
            return self._way_of_value(method, held, depth + 1)
        if isinstance(node, cst.Tuple):  # `return model, optimizer`
            ways = [self._way_of_value(method, each.value, depth + 1) for each in node.elements]
            return next((way for way in ways if way in {"ddp", "fsdp"}), "unknown")
        if not isinstance(node, cst.Call):
            return "unknown"
        if is_constructor(self.index, node.func):
            return "unknown" if self.index.is_ambiguous(node.func) else "fsdp"
        names = self.index.qualified(node.func)
        if names and names <= DDP:
            return "ddp"
        around = next((AROUND_MODEL[name] for name in names if name in AROUND_MODEL), None)
        if around is not None and around < len(node.args):
            return self._way_of_value(method, node.args[around].value, depth + 1)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in SAME_MODEL:
            return self._way_of_value(method, node.func.value, depth + 1)
        return "unknown"

    def _may_shard(self, method: cst.FunctionDef) -> bool:
        """Tell whether a method calls what may shard a model in place: what is torch's does not."""
        for call in walk_for(method.body, cst.Call):
            names = self.index.qualified(call.func)
            if any("fsdp" in name.lower() or "fully_shard" in name for name in names):
                return True
            is_given = any(isinstance(arg.value, cst.Name) for arg in call.args)
            if is_given and not any(name.startswith("torch.") for name in names):
                return True
        return False


def _methods(owner: cst.ClassDef) -> list[cst.FunctionDef]:
    return [each for each in owner.body.body if isinstance(each, cst.FunctionDef)]


def _asks_above(method: cst.FunctionDef, name: str, owner: cst.ClassDef) -> bool:
    """Tell whether a method calls one of a name of the classes above: ``super().clip(model)``."""
    asked = {"super()", owner.name.value}
    return any(
        each.attr.value == name and text_of(each.value) in asked
        for each in walk_for(method.body, cst.Attribute)
    )


def _is_left_open(method: cst.FunctionDef) -> bool:
    """Tell whether a method raises, or has no body of its own: the classes below have it."""
    is_abstract = any("abstract" in text_of(each.decorator) for each in method.decorators)
    raised = [text_of(each.exc) for each in walk_for(method.body, cst.Raise) if each.exc is not None]
    return is_abstract or (
        any(each.startswith("NotImplementedError") for each in raised)
        and not any(walk_for(method.body, cst.Return))
    )
