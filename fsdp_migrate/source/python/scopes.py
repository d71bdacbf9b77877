"""Names: where each is bound, and what thing of another module it stands for.

LibCST's own ``ScopeProvider`` answers the same questions, and takes four times as long.
"""

from __future__ import annotations

import collections
import functools
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.binders import BINDERS
from fsdp_migrate.source.python.nodes import children, dotted, forget


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


Kind = Literal["import", "assign", "def", "class", "param", "other"]
ScopeNode = cst.Module | cst.FunctionDef | cst.ClassDef | cst.Lambda | cst.BaseComp


@dataclass(frozen=True, eq=False)
class Binding:
    """One place at which a name gets a value."""

    kind: Kind
    node: cst.CSTNode
    """The import statement, the definition, the parameter, or the assignment's target."""
    scope: Scope
    value: cst.BaseExpression | None = None
    """What is assigned, where the source says it."""
    index: int | None = None
    """The place in the value, where a tuple is taken apart."""
    qualified: str | None = None
    """What an import brings."""


@dataclass(eq=False)
class Scope:
    """A module, class, function, lambda or comprehension, and the names that are bound in it."""

    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)
    """Names that are declared ``global`` or ``nonlocal`` here, and the scope that they belong to."""

    @property
    def is_class(self) -> bool:
        """Whether names bound here are not seen in the functions inside."""
        return type(self.node) is cst.ClassDef

    @property
    def root(self) -> Scope:
        """The module's scope."""
        return self if self.parent is None else self.parent.root

    def bind(self, name: str, kind: Kind, node: cst.CSTNode, **details: object) -> None:
        """Note that a name gets a value here."""
        owner = self.elsewhere.get(name, self)
        owner.bindings.setdefault(name, []).append(Binding(kind, node, owner, **details))  # type: ignore[arg-type]

    def find(self, name: str) -> Scope | None:
        """Return the scope that a name belongs to when it is used here, or None for one of nobody's."""
        scope: Scope | None = self.elsewhere.get(name, self)
        while scope is not None:
            if name in scope.bindings and (scope is self or not scope.is_class):
                return scope
            scope = scope.parent
        return None

    def lookup(self, name: str) -> list[Binding]:
        """Return every place that may have given its value to a name that is used here."""
        owner = self.find(name)
        return [] if owner is None else owner.bindings[name]


@dataclass(eq=False)
class Index:
    """A source, walked once: parents, scopes, and the nodes that rules look at, in order."""

    module: cst.Module
    names: Mapping[str, str] = field(default_factory=dict)
    """What names of the project's other files stand for, where that is FSDP1's."""
    objects: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By frameworks' classes the names that are objects of them, which other files make."""
    heirs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Imported classes of the project, with those of frameworks above them."""
    code: str = field(default="", repr=False)
    """The text of the source."""
    checks: frozenset[str] = frozenset()
    """Functions of other files that ask whether what they are given is FSDP1's, and nothing else."""
    parents: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    scopes: dict[cst.CSTNode, Scope] = field(default_factory=dict)
    """The scope of each name and attribute, call, and definition."""
    by_kind: dict[type, list[cst.CSTNode]] = field(default_factory=dict)
    stars: set[str] = field(default_factory=set)
    """The modules all of whose names are imported."""
    _above: dict[int, cst.CSTNode] = field(default_factory=dict, repr=False)
    """The parents by identity, which Python finds without a call of a node's own hash."""
    _functions: dict[int, cst.FunctionDef | None] = field(default_factory=dict, repr=False)
    """The innermost function around each node, by identity."""
    _classes: dict[int, cst.ClassDef | None] = field(default_factory=dict, repr=False)
    """The innermost class around each node, as well."""
    _fsdp1: dict[int, str | None] = field(default_factory=dict, repr=False)
    answers: collections.defaultdict[object, dict[int, Any]] = field(
        default_factory=lambda: collections.defaultdict(dict), repr=False
    )
    """What was answered of nodes, by the question and the identity of the node."""
    _known: dict[int, tuple[cst.CSTNode, set[str]]] = field(default_factory=dict, repr=False)
    _reached: dict[cst.CSTNode, list[Binding]] = field(default_factory=dict, repr=False)
    _methods: dict[str, list[cst.Call]] | None = field(default=None, repr=False)
    _set: dict[str, list[cst.AssignTarget]] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        forget()
        self.scope = Scope(self.module, None)
        self.scopes[self.module] = self.scope
        for statement in self.module.body:
            self.parents[statement] = self.module
            self._visit(statement, self.scope)
        functions, classes = self._functions, self._classes
        for node, above in self.parents.items():  # what is outside comes first
            self._above[id(node)] = above
            # By the type itself: it is asked of every node, and of an abstract class that is slow.
            functions[id(node)] = above if type(above) is cst.FunctionDef else functions.get(id(above))
            classes[id(node)] = above if type(above) is cst.ClassDef else classes.get(id(above))

    def _visit(self, node: cst.CSTNode, scope: Scope) -> None:
        kind = type(node)
        self.by_kind.setdefault(kind, []).append(node)
        self.scopes[node] = scope
        binder = BINDERS.get(kind)
        if binder is not None:
            binder(self, node, scope)
        if kind in _OPENS_SCOPE:
            self._visit_scope(node, scope)
            return
        for child in children(node):
            self.parents[child] = node
            self._visit(child, scope)

    def _visit_scope(self, node: cst.CSTNode, scope: Scope) -> None:
        inner = Scope(node, scope)  # type: ignore[arg-type]
        outside = _evaluated_outside(node)
        for child in children(node):
            self.parents[child] = node
            if child in outside:
                self._visit(child, scope)
            elif isinstance(child, cst.Parameters):
                self._visit_parameters(child, scope, inner)
            else:
                self._visit(child, inner)

    def _visit_parameters(self, node: cst.Parameters, scope: Scope, inner: Scope) -> None:
        self.scopes[node] = inner
        for param in children(node):
            self.parents[param] = node
            if not isinstance(param, cst.Param):
                continue
            self.scopes[param] = inner
            inner.bind(param.name.value, "param", param)
            # Evaluated where the function is defined: a default does not see the other parameters.
            for part in (param.annotation, param.default):
                if part is not None:
                    self.parents[part] = param
                    self._visit(part, scope)

    @functools.cached_property
    def order(self) -> dict[cst.CSTNode, int]:
        """The place of each node in the order of the source."""
        # Nodes were entered as they were met, from the top of the source.
        return {node: place for place, node in enumerate(self.scopes)}

    # What a name stands for.

    def qualified(self, node: cst.CSTNode, depth: int = 0) -> set[str]:
        """Return the dotted names that an expression may stand for, as its imports say."""
        # Not kept: within a chain of aliases the search ends sooner, so that less may be found.
        if depth:
            return self._qualified(node, depth)
        known = self._known.get(id(node))
        if known is None or known[0] is not node:
            known = self._known[id(node)] = (node, self._qualified(node, 0))
        return known[1]

    def _qualified(self, node: cst.CSTNode, depth: int) -> set[str]:
        if type(node) is cst.Call:
            return self._imported(node, depth)
        if type(node) is cst.Attribute:
            found = {f"{base}.{node.attr.value}" for base in self.qualified(node.value, depth)}
            return {self.names.get(name, name) for name in found} if self.names else found
        if type(node) is not cst.Name or depth > 3:
            return set()
        bindings = self.bindings_of(node)
        found = set()
        for binding in bindings:
            if binding.qualified is not None:
                found.add(binding.qualified)
            elif type(binding.value) is cst.Call and binding.index is None:
                found |= self._imported(binding.value, depth + 1)
            elif isinstance(binding.value, (cst.Name, cst.Attribute)) and binding.index is None:
                # `FSDP = FSDP`, as in a class, would lead to itself.
                alias = dotted(binding.value) != node.value
                found |= self.qualified(binding.value, depth + 1) if alias else set()
        # `import *` gives what nothing else binds; a name that is bound anywhere else is that.
        if not bindings and node.value in catalog.PUBLIC_NAMES:
            found |= {f"{module}.{node.value}" for module in self.stars}
        if not bindings and self.names:
            found |= {self.names.get(f"{module}.{node.value}", "") for module in self.stars} - {""}
        return found

    def _imported(self, call: cst.Call, depth: int) -> set[str]:
        """Return what a call imports: ``import_module("torch.distributed.fsdp")``, or ``getattr`` of that."""
        name, place = dotted(call.func), 1 if dotted(call.func) == "getattr" else 0
        if name not in _IMPORTERS or len(call.args) <= place:
            return set()
        text = call.args[place].value
        if not isinstance(text, cst.SimpleString):
            return set()
        if place == 0:
            return {str(text.evaluated_value)} if len(call.args) == 1 else set()
        return {f"{each}.{text.evaluated_value!s}" for each in self.qualified(call.args[0].value, depth + 1)}

    def bindings_of(self, node: cst.Name) -> list[Binding]:
        """Return every place that may have given a name its value, those in other branches left out.

        What ``else:`` imports is not what a call below ``if`` makes use of.
        """
        found = self.scopes[node].lookup(node.value)
        if len(found) < 2:
            return found
        if (known := self._reached.get(node)) is None:
            known = [each for each in found if not self.excludes(each.node, node)] or found
            known = self._imported_since(known, node) if len(known) > 1 else known
            self._reached[node] = known
        return known

    def _imported_since(self, bindings: list[Binding], node: cst.Name) -> list[Binding]:
        """Return the bindings of a name without those before an import of it that was run in any case."""
        function, order, above = self.function(node), self.order, {*self.ancestors(node)}
        run = [
            order[each.node]
            for each in bindings
            if isinstance(each.node, (cst.Import, cst.ImportFrom)) and order[each.node] < order[node]
            if self.function(each.node) is function and self.parents[self.parents[each.node]] in above
        ]
        last = max(run, default=-1)
        return [
            each for each in bindings if order[each.node] >= last or self.function(each.node) is not function
        ]

    def excludes(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Tell whether two nodes stand in two branches of one ``if``, or ``match``: never both are run."""
        if self.function(one) is not self.function(other):
            one, other = self._in_one_function(one, other)
            # What stands in another function runs at another time, whatever branch it stands in. And one that
            # a loop has defined may run in a later round.
            if self.function(one) is not self.function(other) or self._is_in_a_loop(other):
                return False
        side = dict(self._branches(other))
        return any(side.get(choice, branch) is not branch for choice, branch in self._branches(one))

    def _in_one_function(self, one: cst.CSTNode, other: cst.CSTNode) -> tuple[cst.CSTNode, cst.CSTNode]:
        """Return the nodes, or the functions around them that stand in one: another branch defines none."""
        outer = {self.function(each): each for each in self._functions_around(one)}
        within = (each for each in self._functions_around(other) if self.function(each) in outer)
        found = next(within, None)
        return (one, other) if found is None else (outer[self.function(found)], found)

    def _is_in_a_loop(self, node: cst.CSTNode) -> bool:
        function = self.function(node)
        around = itertools.takewhile(lambda each: each is not function, self.ancestors(node))
        return any(isinstance(each, (cst.For, cst.While)) for each in around)

    def _functions_around(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        inner: cst.CSTNode | None = node
        while inner is not None:
            yield inner
            inner = self.function(inner)

    def _branches(self, node: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
        """Yield each choice above a node, in its function and its loop, with the branch that it stands in."""
        below = node
        for above in self.ancestors(node):
            # In another round of a loop the other branch may have run.
            if type(above) in _MAY_RUN_AGAIN:
                return
            is_choice = type(above) is cst.If and below in {above.body, above.orelse}
            if is_choice or (type(above) is cst.Match and isinstance(below, cst.MatchCase)):
                yield above, below
            below = above

    def fsdp1(self, node: cst.CSTNode) -> str | None:
        """Return the name of the thing of FSDP1's that an expression stands for, or None."""
        key = id(node)
        if key in self._fsdp1:
            return self._fsdp1[key]
        found = self._find_fsdp1(node)
        if key in self._above:  # as long as the source is kept, no other node is given this identity
            self._fsdp1[key] = found
        return found

    def _find_fsdp1(self, node: cst.CSTNode) -> str | None:
        names = {catalog.fsdp1_name(name) for name in self.qualified(node)} - {None}
        return min(names, key=str) if names else self._inherited(node)

    def is_fsdp2_class(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression is FSDP2's class or its state's, by whatever package it is had."""
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return False
        for name in self.qualified(node):
            *_, last = name.split(".")
            is_named_so = not name.startswith("torch.") and catalog.FSDP2_NAMES.fullmatch(last) is not None
            if name in catalog.FSDP2_CLASSES or is_named_so:
                return True
        return False

    def _inherited(self, node: cst.CSTNode) -> str | None:
        """Return the class's own function for ``Wrapper.function``, where a subclass has none."""
        if type(node) is not cst.Attribute or node.attr.value not in catalog.CLASS_FUNCTIONS:
            return None
        if not isinstance(node.value, cst.Name) or node.value not in self.scopes:
            return None
        for binding in self.scopes[node.value].lookup(node.value.value):
            owner = binding.node
            if isinstance(owner, cst.ClassDef) and any(
                self.fsdp1(base.value) == catalog.FSDP for base in owner.bases
            ):
                own = {item.name.value for item in owner.body.body if isinstance(item, cst.FunctionDef)}
                return None if node.attr.value in own else f"{catalog.FSDP}.{node.attr.value}"
        return None

    def is_ambiguous(self, node: cst.CSTNode) -> bool:
        """Tell whether something other than FSDP1's may be bound to the name that an expression begins with.

        What stands in for FSDP1 where torch lacks it (``except ImportError: FSDP = None``) does not count.
        """
        while isinstance(node, cst.Attribute):
            node = node.value
        if not isinstance(node, cst.Name):
            return True
        return any(self._is_foreign(binding, 0) for binding in self.bindings_of(node))

    def _is_foreign(self, binding: Binding, depth: int) -> bool:
        if binding.qualified is not None:
            # A package that FSDP1 is reached by, `torch` or `torch.distributed`, is not another class.
            start, home = f"{binding.qualified}.", f"{catalog.PACKAGE}."
            leads = home.startswith(start) or any(name.startswith(start) for name in self.names)
            return not (leads or binding.qualified.startswith(home))
        if isinstance(binding.node, cst.ClassDef) and binding.kind == "class":
            return not any(self.fsdp1(base.value) == catalog.FSDP for base in binding.node.bases)
        if any(isinstance(above, _HANDLERS) for above in self.ancestors(binding.node)):
            return False
        value = binding.value
        if isinstance(value, cst.Name) and value.value == "None":
            return False
        if isinstance(value, cst.Call) and value.args and "functools.partial" in self.qualified(value.func):
            # A partial is what it is of: of FSDP1's class it makes what the class makes.
            made = value.args[0].value
            return self.fsdp1(made) is None or self.is_ambiguous(made)
        inner = value
        while isinstance(inner, cst.Attribute):
            inner = inner.value
        if value is not None and isinstance(inner, cst.Call):
            names = self.qualified(value)
            return not names or not all(f"{name}.".startswith(f"{catalog.PACKAGE}.") for name in names)
        if isinstance(inner, cst.Name) and binding.index is None and depth < 3:
            found = self.scopes[inner].lookup(inner.value)
            return not found or any(self._is_foreign(each, depth + 1) for each in found)
        return True

    # Where a node stands.

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield what a node stands in, from the inside out."""
        above = self._above.get(id(node))
        while above is not None:
            yield above
            above = self._above.get(id(above))

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the innermost statement that a node belongs to and that a comment can stand above."""
        for above in (node, *self.ancestors(node)):
            if type(above) in _STATEMENTS and not self._hangs_on_a_line(above):
                return above
        return self.module

    def _hangs_on_a_line(self, node: cst.CSTNode) -> bool:
        return isinstance(self.parents.get(node), cst.SimpleStatementSuite)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the innermost function that a node stands in."""
        return self._functions.get(id(node))

    def path_of(self, node: cst.CSTNode) -> str:
        """Return the name of a definition, with those that it stands in: ``Trainer.fit``."""
        around = (node, *self.ancestors(node))
        names = [e.name.value for e in around if type(e) is cst.FunctionDef or type(e) is cst.ClassDef]
        return ".".join(reversed(names))

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the innermost class that a node stands in."""
        return self._classes.get(id(node))

    def calls_of_method(self, name: str) -> list[cst.Call]:
        """Return the calls of methods of a name, whatever they are called on."""
        if self._methods is None:
            self._methods = {}
            for node in self.by_kind.get(cst.Call, ()):
                call = cst.ensure_type(node, cst.Call)
                if isinstance(call.func, cst.Attribute):
                    self._methods.setdefault(call.func.attr.value, []).append(call)
        return self._methods.get(name, [])

    @functools.cached_property
    def calls_of_names(self) -> dict[str, list[cst.Call]]:
        """The calls of what a name alone stands for, by that name: of functions, and of classes."""
        found: dict[str, list[cst.Call]] = {}
        for node in self.by_kind.get(cst.Call, ()):
            call = cst.ensure_type(node, cst.Call)
            if isinstance(call.func, cst.Name):
                found.setdefault(call.func.value, []).append(call)
        return found

    @functools.cached_property
    def names_given(self) -> dict[str, list[cst.Name]]:
        """The names that calls are given as arguments, by their texts: many ask for those of a function."""
        found: dict[str, list[cst.Name]] = {}
        for node in self.by_kind.get(cst.Arg, ()):
            value = cst.ensure_type(node, cst.Arg).value
            if type(value) is cst.Name:
                found.setdefault(value.value, []).append(value)
        return found

    def places_set(self, text: str) -> list[cst.AssignTarget]:
        """Return where an attribute is set by its text: ``self.model`` of whatever class."""
        if self._set is None:
            self._set = {}
            for node in self.by_kind.get(cst.AssignTarget, ()):
                target = cst.ensure_type(node, cst.AssignTarget)
                name = dotted(target.target) if isinstance(target.target, cst.Attribute) else None
                if name is not None:
                    self._set.setdefault(name, []).append(target)
        return self._set.get(text, [])


_MAY_RUN_AGAIN = frozenset({cst.FunctionDef, cst.For, cst.While, cst.Lambda})
_IMPORTERS = frozenset({"getattr", "import_module", "importlib.import_module"})
_OPENS_SCOPE = frozenset(
    {
        cst.FunctionDef,
        cst.ClassDef,
        cst.Lambda,
        cst.ListComp,
        cst.SetComp,
        cst.DictComp,
        cst.GeneratorExp,
    }
)
_HANDLERS = (cst.ExceptHandler, cst.ExceptStarHandler)
_STATEMENTS = frozenset(
    {
        *(cst.SimpleStatementLine, cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally),
        *(cst.ClassDef, cst.For, cst.FunctionDef, cst.If, cst.Match, cst.Try, cst.TryStar, cst.While),
        cst.With,
    }
)


def _evaluated_outside(node: cst.CSTNode) -> set[cst.CSTNode]:
    """Return the parts of a definition that are evaluated, and named, in the scope around it."""
    if isinstance(node, cst.FunctionDef):
        return {node.name, *node.decorators, *([node.returns] if node.returns else [])}
    if isinstance(node, cst.ClassDef):
        return {node.name, *node.decorators, *node.bases, *node.keywords}
    return set()
