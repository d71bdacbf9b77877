"""Imports: those that rewritten code needs, and those that nothing needs any more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.nodes import dotted


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fsdp_migrate.source.python.scopes import Binding
    from fsdp_migrate.source.python.text import Source
    from fsdp_migrate.source.uses import Found, Need


_LONG = 100
# What FSDP1's settings are made of, and a framework's strategy for it.
_BESIDE = re.compile(r"^functools(\.partial)?$|^(lightning|pytorch_lightning)\..*\bFSDPStrategy$")


def missing(source: Source, needs: Iterable[Need]) -> list[Need]:
    """Return what is needed and not imported by the module yet, sorted."""
    own = {b.qualified for every in source.index.scope.bindings.values() for b in every}
    wanted = {need for need in needs if f"{need.module}.{need.name}" not in own}
    return sorted(wanted, key=lambda need: (need.module, need.name))


def statements(source: Source, needs: list[Need]) -> list[cst.SimpleStatementLine]:
    """Return the import statements for what is needed, one for each module."""
    by_module: dict[str, list[str]] = {}
    for need in needs:
        local = source.local_name(need)
        name = need.name if local == need.name else f"{need.name} as {local}"
        by_module.setdefault(need.module, []).append(name)
    lines = [_line(module, names) for module, names in by_module.items()]
    return [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in lines]


def _line(module: str, names: list[str]) -> str:
    """Return an import, with each name on a line of its own where one line would be long."""
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LONG:
        return line
    return "\n".join((f"from {module} import (", *(f"    {name}," for name in names), ")"))


def anchor(source: Source) -> int:
    """Return the place in the module's body before which new imports go.

    Behind the module's import from ``torch.distributed.fsdp``, and torch's others that follow at once; else
    behind its first block of imports.
    """
    last = 0
    for place, statement in enumerate(source.module.body):
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            break
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            home = isinstance(small, cst.ImportFrom) and small.module is not None and dotted(small.module)
            if home and home.startswith("torch.distributed.fsdp"):
                return _behind_torch(source.module.body, place + 1)
            if isinstance(small, (cst.Import, cst.ImportFrom)) or _is_docstring(small, place):
                last = place + 1
    return last


def _behind_torch(body: Sequence[cst.CSTNode], place: int) -> int:
    """Return the first place from one on that holds no import of torch's, or stands apart."""
    while place < len(body) and _is_torchs(body[place]):
        place += 1
    return place


def _is_torchs(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine) or statement.leading_lines:
        return False
    names: list[str] = []
    for small in statement.body:
        if isinstance(small, cst.ImportFrom):
            names.append((small.module and dotted(small.module)) or "")
        elif isinstance(small, cst.Import):
            names += [dotted(alias.name) or "" for alias in small.names]
        else:
            return False
    return all(name.partition(".")[0] == "torch" for name in names)


def _is_docstring(small: cst.BaseSmallStatement, place: int) -> bool:
    return place == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.BaseString)


def gone(found: Iterable[Found]) -> set[cst.CSTNode]:
    """Return the references that go away when uses are rewritten."""
    return {node for use in found if use.action == "rewritten" for node in use.covers}


def alias_of(node: cst.CSTNode, name: str) -> cst.ImportAlias | None:
    """Return the part of an import statement that binds a name."""
    if not isinstance(node, (cst.Import, cst.ImportFrom)) or isinstance(node.names, cst.ImportStar):
        return None
    return next((alias for alias in node.names if _bound(node, alias) == name), None)


def unneeded(source: Source, gone: set[cst.CSTNode]) -> set[tuple[cst.CSTNode, str]]:
    """Return the imported names, with their statements, that only ``gone`` references have used.

    A name that nothing used before stays: other modules may import it from here.
    """
    strings = {
        str(node.evaluated_value)
        for node in source.index.by_kind.get(cst.SimpleString, ())
        # No name has a space, and docstrings have: to evaluate a text takes a parser.
        if isinstance(node, cst.SimpleString) and (" " not in node.value or "\\" in node.value)
    }
    removed = set()
    gone_names = {_root(node) for node in gone}
    for scope in set(source.index.scopes.values()):
        for name, bindings in scope.bindings.items():
            # In a string the name stands for itself, as in `__all__`; and other files may import it from
            # here.
            is_taken = scope is source.index.scope and name in source.links.taken
            if name in strings or is_taken or not all(map(_is_fsdp1_import, bindings)):
                continue
            if any(is_tried(source, binding.node) for binding in bindings):
                continue
            loads = [
                load
                for load in source.loads
                if load.value == name and source.index.scopes[load].find(name) is scope
            ]
            if loads and all(load in gone_names for load in loads):
                removed |= {(binding.node, name) for binding in bindings}
    return removed


def is_tried(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether it is asked, by ``try``, if something can be imported: without it the answer changes."""
    below = node
    for above in source.index.ancestors(node):
        if isinstance(above, cst.Try) and below is above.body and above.handlers:
            return True
        below = above
    return False


def _root(node: cst.CSTNode) -> cst.CSTNode:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node


def _is_fsdp1_import(binding: Binding) -> bool:
    if binding.qualified is None:
        return False
    name = catalog.fsdp1_name(binding.qualified)
    aliased = binding.qualified.startswith("torch.distributed.fsdp") and isinstance(binding.node, cst.Import)
    return name is not None or aliased or bool(_BESIDE.match(binding.qualified))


def without(node: cst.Import | cst.ImportFrom, names: set[str]) -> cst.Import | cst.ImportFrom | None:
    """Return an import statement without the names that it binds; None where nothing is left of it."""
    if isinstance(node.names, cst.ImportStar):
        return node
    kept = [alias for alias in node.names if _bound(node, alias) not in names]
    if not kept:
        return None
    if len(kept) == len(node.names):
        return node
    # What stood behind the last name, a closing parenthesis' line perhaps, stands behind the new last one.
    kept[-1] = kept[-1].with_changes(comma=_with_comment(node.names[-1].comma, kept[-1].comma))
    return node.with_changes(names=kept)


def _with_comment(
    end: cst.Comma | cst.MaybeSentinel, own: cst.Comma | cst.MaybeSentinel
) -> cst.Comma | cst.MaybeSentinel:
    """Return what stands behind the last name, with the comment that is about the new last one."""
    before = own.whitespace_after if isinstance(own, cst.Comma) else None
    after = end.whitespace_after if isinstance(end, cst.Comma) else None
    if not isinstance(after, cst.ParenthesizedWhitespace) or not isinstance(end, cst.Comma):
        return end
    line = cst.TrailingWhitespace()
    if isinstance(before, cst.ParenthesizedWhitespace):
        line = before.first_line
    return end.with_changes(whitespace_after=after.with_changes(first_line=line))


def _bound(node: cst.Import | cst.ImportFrom, alias: cst.ImportAlias) -> str:
    if alias.asname is not None:
        return dotted(alias.asname.name) or ""
    full = dotted(alias.name) or ""
    return full.split(".")[0] if isinstance(node, cst.Import) else full
