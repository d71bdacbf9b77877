"""A Python source, parsed, with everything that rules ask it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.contexts import Contexts
from fsdp_migrate.source.python.evidence import imports_fsdp1
from fsdp_migrate.source.python.guards import Guards
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.models import Models
from fsdp_migrate.source.python.nodes import dotted, text_of
from fsdp_migrate.source.python.parsing import parse_module
from fsdp_migrate.source.python.positions import Positions
from fsdp_migrate.source.python.scopes import Index


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.uses import Need


_IMPORTS = frozenset({cst.Import, cst.ImportFrom, cst.ImportAlias})
_NOT_LOADS = frozenset(
    {cst.ImportAlias, cst.AsName, cst.FunctionDef, cst.ClassDef, cst.AssignTarget, cst.NameItem}
)


@dataclass(eq=False)
class Source:
    """One source. Rules read it and change nothing.

    Raises:
        SourceError: The text is no Python.
    """

    code: str
    path: str = "<source>"
    links: Links = NOTHING
    """What other files of the project say of this one."""
    module: cst.Module = field(init=False)
    index: Index = field(init=False)

    def __post_init__(self) -> None:
        self.module = parse_module(self.code, self.path)
        links = self.links
        self.index = Index(self.module, links.names, links.objects, links.heirs, self.code, links.checks)

    @functools.cached_property
    def guards(self) -> Guards:
        """What checks say of the places below them."""
        return Guards(self.index, self.links.wrappers, self.links.given_sharded, self._unsharded())

    @functools.cached_property
    def models(self) -> Models:
        """Which expressions are FSDP1 models."""
        return Models(self.index, self.links, plain_above=self._above_sharding(), guards=self.guards)

    @functools.cached_property
    def prepared(self) -> Models | None:
        """The same, with other files' ``prepare_fully_shard`` taken for FSDP1's class, if any calls it.

        For what that class alone has.
        """
        links = self.links.prepared
        return Models(self.index, links, guards=self.guards) if links else None

    def _unsharded(self) -> Callable[[cst.CSTNode], bool] | None:
        """Return what tells whether the project makes no sharded model where a node runs."""
        lines = self.links.unsharded
        if not lines:
            return None
        return lambda node: any(first <= self.position(node)[0] <= last for first, last in lines)

    def _above_sharding(self) -> frozenset[cst.CSTNode]:
        """Return the expressions that the same function shards below, as the project's files show."""
        known = self.links.above_sharding
        nodes = (*self.loads, *self.attributes) if known else ()
        return frozenset(each for each in nodes if (self.position(each)[0], dotted(each)) in known)

    @functools.cached_property
    def contexts(self) -> Contexts:
        """The state dict contexts."""
        return Contexts(self)

    @functools.cached_property
    def calls(self) -> list[cst.Call]:
        """Every call."""
        return [node for node in self.index.by_kind.get(cst.Call, ()) if isinstance(node, cst.Call)]

    @functools.cached_property
    def attributes(self) -> list[cst.Attribute]:
        """Every attribute."""
        return [n for n in self.index.by_kind.get(cst.Attribute, ()) if isinstance(n, cst.Attribute)]

    @functools.cached_property
    def assignments(self) -> list[cst.Assign]:
        """Every plain assignment."""
        return [node for node in self.index.by_kind.get(cst.Assign, ()) if isinstance(node, cst.Assign)]

    @functools.cached_property
    def loads(self) -> list[cst.Name]:
        """Every name whose value is read."""
        names = (node for node in self.index.by_kind.get(cst.Name, ()) if isinstance(node, cst.Name))
        return [name for name in names if self._is_load(name)]

    def readers(self, name: cst.Name) -> list[cst.Name]:
        """Return the places that read what a name stands for where it is used."""
        scope = self.index.scopes[name].find(name.value)
        return [
            load
            for load in self.loads
            if load.value == name.value and self.index.scopes[load].find(load.value) is scope
        ]

    def _is_load(self, name: cst.Name) -> bool:
        above = self.index.parents[name]
        if type(above) in _NOT_LOADS:
            return False
        # By the types themselves: to ask what is no instance of an abstract class is slow.
        if type(above) is cst.Attribute:
            return above.value is name and not self._is_imported(above)
        if type(above) is cst.Arg:
            return above.value is name
        if type(above) is cst.Param:
            return above.default is name
        if isinstance(above, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.CompFor)):
            return above.target is not name
        return True

    def _is_imported(self, node: cst.CSTNode) -> bool:
        return any(type(above) in _IMPORTS for above in self.index.ancestors(node))

    @functools.cached_property
    def references(self) -> dict[cst.BaseExpression, str]:
        """Every expression that stands for something of FSDP1's, with the name of that."""
        found: dict[cst.BaseExpression, str] = {}
        for name in self.loads:
            whole: cst.BaseExpression = name
            above = self.index.parents[whole]
            while isinstance(above, cst.Attribute) and above.value is whole:
                whole, above = above, self.index.parents[above]
            known = self.index.fsdp1(whole)
            if known is not None:
                found[whole] = known
        return found

    def class_function(self, call: cst.Call) -> str:
        """Return which function of FSDP1's class a call runs, by the class or by a model; empty for others.

        They are static: ``model.state_dict_type(model, ...)`` is ``FSDP.state_dict_type(model, ...)``.
        """
        known = self.index.fsdp1(call.func)
        if known is not None:
            return known.removeprefix(f"{catalog.FSDP}.") if known.startswith(f"{catalog.FSDP}.") else ""
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in catalog.CLASS_FUNCTIONS:
            return ""
        owner = _asked_for_class(func.value)
        is_given = any(text_of(arg.value) == text_of(owner) for arg in call.args)
        if not is_given:
            return ""
        # `model.summon_full_params(model)` is nobody else's, whatever is known of the model; `self` may be an
        # object of a class that is a copy of torch's.
        is_own = dotted(owner) in {"self", "cls"} and func.attr.value != "summon_full_params"
        is_model = self.models.certainty(owner) is not None or self.models.is_guarded(owner)
        return func.attr.value if is_model or self.uses_fsdp1 or not is_own else ""

    @functools.cached_property
    def uses_fsdp1(self) -> bool:
        """Whether anything of FSDP1's is imported here."""
        return imports_fsdp1(self.index) or bool(self.references)

    @functools.cached_property
    def _positions(self) -> Positions:
        return Positions(self.module, self.code)

    def position(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the line and the column of a node, both from 1."""
        return self._positions.of(node)

    @functools.cached_property
    def _taken(self) -> set[str]:
        bound = {name for scope in set(self.index.scopes.values()) for name in scope.bindings}
        return bound | {name.value for name in self.loads}

    def local_name(self, need: Need) -> str:
        """Return the name under which rewritten code finds what it needs: its own, or one that is free."""
        for name, bindings in self.index.scope.bindings.items():
            if any(binding.qualified == f"{need.module}.{need.name}" for binding in bindings):
                return name
        return f"fsdp_{need.name}" if need.name in self._taken else need.name

    def same(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Tell whether two expressions are written alike."""
        return text_of(one) == text_of(other)


def _asked_for_class(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``model`` of ``type(model)`` and ``model.__class__``, or what was given."""
    if isinstance(node, cst.Call) and dotted(node.func) == "type" and len(node.args) == 1:
        return node.args[0].value
    return node.value if isinstance(node, cst.Attribute) and node.attr.value == "__class__" else node
