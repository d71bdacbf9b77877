"""Where new imports go: to the top of a module, or beside FSDP1's where those wait until torch is wanted.

What belongs to a ``try`` is imported in its ``else``: an error there is not taken for a missing FSDP.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Found, Need


_ASKS: Final = re.compile(r"avail|find_spec|has_|hasattr|installed|platform|support|version")


@dataclass(eq=False)
class Placed:
    """Which names are imported where."""

    top: set[Need] = field(default_factory=set)
    behind: dict[cst.CSTNode, set[Need]] = field(default_factory=dict)
    """By the statement behind which they go."""
    first: dict[cst.CSTNode, set[Need]] = field(default_factory=dict)
    """By the body of a function that they begin."""
    otherwise: dict[cst.CSTNode, set[Need]] = field(default_factory=dict)
    """By the ``try`` whose ``else`` they stand in."""
    absent: dict[cst.CSTNode, set[Need]] = field(default_factory=dict)
    """By the statement, such as ``FSDP = None``, behind which they are None as well."""


def place(source: Source, found: Iterable[Found]) -> Placed:
    """Return where each name that rewritten code needs is imported.

    A module that imports FSDP1 or torch at its top has all of it there. One that does not, as where torch is
    an option, or that asks first whether torch has it, has its new imports where those of FSDP1 are.
    """
    placed = Placed()
    imports = list(_imports(source))
    has_torch = any(_is_torchs(line) for line in source.module.body)
    is_guarded = _is_asked_for(source, imports) or _is_tried(source, imports)
    is_lazy = bool(imports) and (not has_torch or is_guarded)
    guard = next((line for line in imports if source.index.function(line) is None), None)
    for use in found:
        for need in use.needs:
            if is_lazy and guard is not None and _is_bound_elsewhere(source, guard, need):
                continue
            if not is_lazy:
                placed.top.add(need)
            elif guard is not None:
                _note_guarded(source, placed, guard, need)
            else:
                _note_in_function(source, placed, imports, use, need)
    return placed


def _is_bound_elsewhere(source: Source, guard: cst.SimpleStatementLine, need: Need) -> bool:
    """Tell whether the module's top imports a name in any case: it is the file's own, and stays as it is."""
    whole = f"{need.module}.{need.name}"
    bindings = source.index.scope.bindings.get(source.local_name(need), ())
    lines = [source.index.statement(each.node) for each in bindings if each.qualified == whole]
    return any(line is not guard and line in source.module.body for line in lines)


def _is_asked_for(source: Source, imports: list[cst.SimpleStatementLine]) -> bool:
    """Tell whether the module's top imports FSDP1 in one branch alone, where torch was found to have it.

    ``if torch.distributed.is_available():``. Below a switch of the project's own, new names may be wanted
    where it is off, too.
    """
    branches = [_asked(source, line) for line in imports if source.index.function(line) is None]
    return bool(branches) and branches[0] is not None and all(each is branches[0] for each in branches)


def _is_tried(source: Source, imports: list[cst.SimpleStatementLine]) -> bool:
    """Tell whether one ``try`` imports all that the module's top has of FSDP1, and goes on without it.

    Not where a handler gives its names to something else, by which the file goes on.
    """
    above = [
        next((a for a in source.index.ancestors(line) if isinstance(a, cst.Try)), None)
        for line in imports
        if source.index.function(line) is None
    ]
    tried = above[0] if above else None
    if tried is None or tried.finalbody is not None or any(each is not tried for each in above):
        return False
    names = {name for line in imports for name in _bound(line)}
    return bool(tried.handlers) and not any(_goes_on_otherwise(each, names) for each in tried.handlers)


def _goes_on_otherwise(handler: cst.ExceptHandler, names: set[str]) -> bool:
    """Tell whether what runs where there is no FSDP1 raises, or gives its names to what is not None."""
    if any(walk_for(handler.body, cst.Raise)):
        return True
    imported = {name for line in walk_for(handler.body, cst.SimpleStatementLine) for name in _bound(line)}
    defined = {each.name.value for each in walk_for(handler.body, cst.ClassDef)}
    defined |= {each.name.value for each in walk_for(handler.body, cst.FunctionDef)}
    for assign in walk_for(handler.body, cst.Assign):
        is_none = text_of(assign.value) in {"None", "False"}
        defined |= set() if is_none else {text_of(each.target) for each in assign.targets}
    return not names.isdisjoint(imported | defined)


def _bound(line: cst.SimpleStatementLine) -> set[str]:
    """Return the names that a statement imports."""
    found: set[str] = set()
    for small in line.body:
        if isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
            aliases = [(each.asname, dotted(each.name) or "") for each in small.names]
            found |= {text_of(own.name) if own is not None else full.split(".")[0] for own, full in aliases}
    return found


def _asked(source: Source, line: cst.SimpleStatementLine) -> cst.CSTNode | None:
    """Return the branch of a question whether torch has FSDP1 that a statement stands in."""
    below: cst.CSTNode = line
    for above in source.index.ancestors(line):
        if isinstance(above, cst.If) and _ASKS.search(text_of(above.test).lower()):
            return below
        below = above
    return None


def _imports(source: Source) -> Iterator[cst.SimpleStatementLine]:
    """Yield the statements that import FSDP1, those for annotations alone left out."""
    for node in source.index.by_kind.get(cst.SimpleStatementLine, ()):
        line = cst.ensure_type(node, cst.SimpleStatementLine)
        above = (each for each in source.index.ancestors(line) if isinstance(each, cst.If))
        if _is_torchs(line, catalog.PACKAGE) and not any("TYPE_CHECKING" in text_of(a.test) for a in above):
            yield line


def _is_torchs(line: cst.CSTNode, package: str = "torch") -> bool:
    for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
        names = [small.module] if isinstance(small, cst.ImportFrom) and not small.relative else []
        if isinstance(small, cst.Import):
            names = [alias.name for alias in small.names]
        texts = (dotted(name) or "" for name in names if name is not None)
        if any(f"{text}.".startswith(f"{package}.") for text in texts):
            return True
    return False


def _note_guarded(source: Source, placed: Placed, line: cst.SimpleStatementLine, need: Need) -> None:
    """Note a name of a module whose import of FSDP1 stands below ``if`` or ``try``."""
    above = next((a for a in source.index.ancestors(line) if isinstance(a, (cst.If, cst.Try))), None)
    if isinstance(above, cst.Try) and above.handlers and not above.finalbody:
        placed.otherwise.setdefault(above, set()).add(need)
    else:
        placed.behind.setdefault(line, set()).add(need)
    for other in _others(source, line):
        for absent in _absent(source, other):
            placed.absent.setdefault(absent, set()).add(need)


def _others(source: Source, line: cst.SimpleStatementLine) -> Iterator[cst.CSTNode]:
    """Yield the branches that run where a statement does not: of ``if``, and of ``try`` around it."""
    below: cst.CSTNode = line
    for above in source.index.ancestors(line):
        if isinstance(above, cst.Try):
            yield from above.handlers
        elif isinstance(above, cst.If):
            yield from (each for each in (above.body, above.orelse) if each is not None and each is not below)
        below = above


def _absent(source: Source, branch: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the statements of a branch that make a name of FSDP1's None."""
    for assign in source.assignments:
        is_none = isinstance(assign.value, cst.Name) and assign.value.value == "None"
        names = [each.target for each in assign.targets if isinstance(each.target, cst.Name)]
        if is_none and branch in set(source.index.ancestors(assign)):
            bindings = [b for name in names for b in source.index.scope.bindings.get(name.value, ())]
            if any(catalog.fsdp1_name(b.qualified or "") is not None for b in bindings):
                yield source.index.statement(assign)
                return


def _note_in_function(
    source: Source, placed: Placed, imports: list[cst.SimpleStatementLine], use: Found, need: Need
) -> None:
    """Note a name of a module whose imports of FSDP1 all stand in functions."""
    below: cst.CSTNode = use.node
    function: cst.FunctionDef | None = None
    for above in source.index.ancestors(use.node):
        if isinstance(above, cst.FunctionDef) and below is above.body:
            function = above
        below = above
    if function is None or not isinstance(function.body, cst.IndentedBlock):
        placed.top.add(need)
        return
    order = source.index.order
    own = [
        line for line in imports if source.index.function(line) is function and order[line] < order[use.node]
    ]
    if own:
        placed.behind.setdefault(own[0], set()).add(need)
    else:
        placed.first.setdefault(function.body, set()).add(need)
