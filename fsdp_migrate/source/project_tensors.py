"""Parameters of sharded models and their gradients, one by one and in lists, over a project's files.

``helper([p.grad for p in model.parameters()])`` gives a function of another file what is a DTensor now.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from fsdp_migrate.source.project import Place, dotted, last_name
from fsdp_migrate.source.project_containers import kinds_of_targets
from fsdp_migrate.source.python.held import EACH, ITEM, TENSOR, VALUE, put, taken, tensors
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS
from fsdp_migrate.source.python.tensor_words import SAME, gives_its_kind, gives_kind_of_given


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.source.project import Project

    Bound = Mapping[str, set[str]]


_TAKEN_APART: Final = frozenset({"_local_tensor", "full_tensor", "to_local"})
_SUMMONS: Final = "summon_full_params"
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_NOTHING: Final[Bound] = {}


class Known(Protocol):
    """What is known of a project, as :class:`fsdp_migrate.source.project_kinds.ProjectKinds` is."""

    @property
    def project(self) -> Project:
        """The files."""

    def kinds(self, node: ast.expr, place: Place) -> set[str]:
        """Return what an expression may be."""


@dataclass(eq=False)
class ProjectTensors:
    """Answers which expressions are such tensors, or hold some. Reads only."""

    known: Known
    _plain: dict[tuple[int, str], bool] = field(default_factory=dict, repr=False)
    _summoned: dict[int, list[tuple[int, int]]] = field(default_factory=dict, repr=False)

    def made_of(self, node: ast.expr, place: Place) -> set[str]:
        """Return what is made of such tensors: ``p.grad.clone()``, ``[p.grad for p in m.parameters()]``."""
        return self._made(node, place, _NOTHING)

    def of_loop(self, over: ast.expr, place: Place) -> set[str]:
        """Return what a loop goes through: of ``m.parameters()`` each by itself."""
        found = self._each(over, place, _NOTHING)
        return found if found and not self.is_whole(over, place) else set()

    def _kinds(self, node: ast.expr, place: Place, bound: Bound) -> set[str]:
        if isinstance(node, ast.Name) and node.id in bound:
            return bound[node.id]
        if bound and not isinstance(node, ast.Name) and (found := self._made(node, place, bound)):
            return found
        return tensors(self.known.kinds(node, place))

    def _made(self, node: ast.expr, place: Place, bound: Bound) -> set[str]:
        if isinstance(node, ast.Attribute):
            is_one = node.attr in SAME and TENSOR in self._kinds(node.value, place, bound)
            return {TENSOR} if is_one else set()
        if isinstance(node, ast.Call):
            return self._of_call(node, place, bound)
        if isinstance(node, (*_COMPREHENSIONS, ast.DictComp)):
            inner = dict(bound)
            for loop in node.generators:
                for target, kinds in kinds_of_targets(loop.target, self._each(loop.iter, place, inner)):
                    inner |= {target.id: kinds} if isinstance(target, ast.Name) else {}
            if isinstance(node, ast.DictComp):
                return put(VALUE, self._kinds(node.value, place, inner))
            return put(EACH, self._kinds(node.elt, place, inner))
        if isinstance(node, ast.BinOp):
            sides = [self._kinds(each, place, bound) for each in (node.left, node.right)]
            both = taken(ITEM, set().union(*sides)) if isinstance(node.op, ast.Add) else set()
            return ({TENSOR} if any(TENSOR in each for each in sides) else set()) | put(EACH, both)
        if isinstance(node, ast.UnaryOp):
            return self._kinds(node.operand, place, bound) & {TENSOR}
        return self._inside(node, place, bound) if bound else set()

    def _inside(self, node: ast.expr, place: Place, bound: Bound) -> set[str]:
        """Return what a tuple, a choice or an item in a comprehension is."""
        if isinstance(node, (ast.Tuple, ast.List)):
            parts = ((str(place_), self._kinds(e, place, bound)) for place_, e in enumerate(node.elts))
            return {kind for step, kinds in parts for kind in put(step, kinds)}
        if isinstance(node, ast.IfExp):
            return self._kinds(node.body, place, bound) | self._kinds(node.orelse, place, bound)
        if isinstance(node, ast.Subscript):
            return taken(ITEM, self._kinds(node.value, place, bound))
        return set()

    def _of_call(self, call: ast.Call, place: Place, bound: Bound) -> set[str]:
        func, name = call.func, last_name(call.func)
        of_method = func.value if isinstance(func, ast.Attribute) and gives_its_kind(func.attr) else None
        if of_method is not None and TENSOR in self._kinds(of_method, place, bound):
            return {TENSOR}
        if isinstance(func, ast.Attribute) and func.attr in {"items", "values"} and bound:
            inside = taken(VALUE, self._kinds(func.value, place, bound))
            return put(EACH, put("1", inside) if func.attr == "items" else inside)
        if name in SAME_PARAMETERS:
            return {k for arg in call.args for k in put(EACH, self._each(arg, place, bound))}
        written = self.known.project.qualified(dotted(func) or "", place)
        is_same = gives_kind_of_given(written) and not any(isinstance(e, ast.Starred) for e in call.args)
        is_made = is_same and any(TENSOR in self._kinds(each, place, bound) for each in call.args)
        return {TENSOR} if is_made else set()

    def _each(self, over: ast.expr, place: Place, bound: Bound) -> set[str]:
        """Return what a loop goes through; of parameters each, or with its name before it."""
        name = last_name(over.func) if isinstance(over, ast.Call) else ""
        if isinstance(over, ast.Call) and over.args and name in {"enumerate", "zip"}:
            parts = [self._each(each, place, bound) for each in over.args]
            parts = [set(), *parts] if name == "enumerate" else parts
            return {kind for number, kinds in enumerate(parts) for kind in put(str(number), kinds)}
        if name in SAME_PARAMETERS and isinstance(over, ast.Call) and over.args:
            return {kind for arg in over.args for kind in self._each(arg, place, bound)}
        if isinstance(over, ast.Name) and over.id in bound:
            return taken(EACH, bound[over.id])
        if "params" in self.known.kinds(over, place):
            return {TENSOR, *put("1", {TENSOR})}
        return taken(EACH, self._kinds(over, place, bound))

    def is_whole(self, node: ast.expr, place: Place) -> bool:
        """Tell whether a function takes DTensors apart, or parameters are whole around an expression."""
        text = self.known.project.texts[place.module.path]
        if _SUMMONS in text and any(
            start <= node.lineno <= end for start, end in self._where_whole(place.module.tree)
        ):
            return True
        if not any(word in text for word in _TAKEN_APART):
            return False
        home = self.known.project.node(place.module, place.scope) or place.module.tree
        asked = id(home), place.scope
        if asked not in self._plain:
            words = (each.attr for each in ast.walk(home) if isinstance(each, ast.Attribute))
            self._plain[asked] = not _TAKEN_APART.isdisjoint(words)
        return self._plain[asked]

    def _where_whole(self, tree: ast.Module) -> list[tuple[int, int]]:
        """Return the lines of the contexts that summon whole parameters."""
        if id(tree) not in self._summoned:
            self._summoned[id(tree)] = [
                (each.lineno, each.end_lineno or each.lineno)
                for each in ast.walk(tree)
                if isinstance(each, ast.With)
                if any(_SUMMONS in ast.dump(item) for item in each.items)
            ]
        return self._summoned[id(tree)]
