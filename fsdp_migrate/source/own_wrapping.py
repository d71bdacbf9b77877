"""Modules whose constructor shards a part of them, where nothing in the project shards the module itself.

``self.module = FSDP(module)`` in such a class is no FSDP inside FSDP.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fsdp_migrate.source import catalog
from fsdp_migrate.source.project import Definition, Place, dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.argument_places import every_argument
from fsdp_migrate.source.python.walked import walked
from fsdp_migrate.source.python.wrappers import SAME_MODEL


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module
    from fsdp_migrate.source.project_kinds import ProjectKinds


_MODULES = frozenset({"Module", "PreTrainedModel"})
# What shards a model, or may: by whatever package.
_SHARDS = frozenset(
    {"FSDP", catalog.FSDP, "fully_shard", "prepare", "prepare_fully_shard", "prepare_model", "setup", "wrap"}
)
# What is one thing of the whole, and another of its sharded part.
_ASKED = frozenset(
    {"apply", "clip_grad_norm_", "load_state_dict", "named_parameters", "state_dict", "save_pretrained"}
)
_DEEPEST = 4


@dataclass
class Sharding:
    """Classes by their files whose constructors shard parts of what nothing shards as a whole."""

    certain: dict[Path, frozenset[str]] = field(default_factory=dict)
    """Those whose objects are asked for nothing that is otherwise for a sharded part."""
    asked: dict[Path, frozenset[str]] = field(default_factory=dict)
    """Those whose objects are asked for their parameters or states."""


def sharding_parts(known: ProjectKinds, modules: Iterable[Module]) -> Sharding:
    """Return the classes of each file whose constructors shard parts of what nothing shards as a whole.

    A class is left out where that is not certain: its name is used otherwise than to make objects that names
    stand for.
    """
    found = Sharding()
    for module in modules:
        for owner in module.definitions.values():
            if _shards_a_part(known, owner) and not _may_be_sharded(known, owner):
                kind = found.asked if _is_asked_for_state(known, owner) else found.certain
                kind[module.path] = kind.get(module.path, frozenset()) | {owner.name}
    return found


def _shards_a_part(known: ProjectKinds, owner: Definition) -> bool:
    if not _is_module(owner) or owner.node.decorator_list:
        return False
    made = owner.module.definitions.get(f"{owner.name}.__init__")
    place = Place(owner.module, f"{owner.name}.__init__")
    return made is not None and any(_is_fsdp1s(known, call, place) for call in _calls(made.node))


def _is_module(owner: Definition) -> bool:
    bases = owner.node.bases if isinstance(owner.node, ast.ClassDef) else []
    return any(last_name(base) in _MODULES for base in bases)


def _is_fsdp1s(known: ProjectKinds, call: ast.Call, place: Place) -> bool:
    text = dotted(call.func)
    return text is not None and catalog.fsdp1_name(known.project.qualified(text, place)) == catalog.FSDP


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _may_be_sharded(known: ProjectKinds, owner: Definition) -> bool:
    """Tell whether something may shard a class's objects."""
    for path in known.project.holding([owner.name.split(".")[-1]]):
        module = known.project.module(path)
        if module is None or not _only_makes(known, module, owner):
            return True
    return _is_reached(known, owner, _SHARDS)


def _is_asked_for_state(known: ProjectKinds, owner: Definition) -> bool:
    """Tell whether a class's objects are asked for something else than what they were before."""
    own = any(_is_asked(call, {"self", "super()"}) for call in _calls(owner.node))
    return own or _is_reached(known, owner, _ASKED)


def _is_reached(known: ProjectKinds, owner: Definition, names: frozenset[str]) -> bool:
    """Tell whether calls of some names are about a class's objects."""
    for module in known.project.parsed(known.project.holding(names)):
        for scope in scopes_of(module):
            for statement in scope.statements:
                for call in statement.calls:
                    if any(_holds(known, each, statement.place, owner) for each in _reached(call, names)):
                        return True
    return False


def _is_asked(call: ast.Call, names: Collection[str]) -> bool:
    func = call.func
    is_method = isinstance(func, ast.Attribute) and func.attr in _ASKED and dotted(func.value) in names
    last = last_name(func)
    return is_method or (last in _ASKED and any(_model_of(arg) in names for arg in call.args))


def _model_of(node: ast.expr) -> str | None:
    """Return the name of a model that is given, or of one whose parameters are."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return dotted(node.func.value)
    return dotted(node)


def _reached(call: ast.Call, names: frozenset[str]) -> Iterator[ast.expr]:
    """Yield what a call of one of some names shards, or asks for its state."""
    last = last_name(call.func)
    if last in _ASKED & names and isinstance(call.func, ast.Attribute):
        yield call.func.value
    if last in names:
        for arg in every_argument(call):
            yield arg
            if isinstance(arg, ast.Call) and isinstance(arg.func, ast.Attribute):
                yield arg.func.value


def _holds(known: ProjectKinds, node: ast.expr, place: Place, owner: Definition) -> bool:
    """Tell whether what an expression gives is an object of a class, or holds one."""
    todo = [each for each, _ in known.objects_in(known.kinds(node, place))]
    seen: set[str] = set()
    while todo and len(seen) < _DEEPEST**2:
        each = todo.pop()
        if each.key == owner.key:
            return True
        if each.key in seen:
            continue
        seen.add(each.key)
        todo += known.project.bases(each)
        for (key, text), kinds in known.facts.items():
            if key == each.key and text.startswith("self."):
                todo += (inner for inner, _ in known.objects_in(kinds))
    return False


def _only_makes(known: ProjectKinds, module: Module, owner: Definition) -> bool:
    """Tell whether a file makes objects of a class by calls that give names a value, and nothing else."""
    above = {child: node for node in walked(module.tree) for child in ast.iter_child_nodes(node)}
    for node, call in above.items():
        text = dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if text is None or known.project.named(text, Place(module, "")) is not owner:
            continue
        if isinstance(call, (ast.arg, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue  # as an annotation
        if isinstance(call, ast.Call) and dotted(call.func) in {"isinstance", "super"}:
            continue
        if isinstance(call, ast.Attribute) and _makes_no_object(owner, call.attr):
            continue  # `Pipeline.read(path)`
        if not isinstance(call, ast.Call) or call.func is not node or not _is_named(call, above):
            return False
    return True


def _makes_no_object(owner: Definition, name: str) -> bool:
    """Tell whether something of a class itself is a static method, or a plain value: none has its objects.

    A static method that makes one calls the class, which is seen where it stands.
    """
    made = owner.module.definitions.get(f"{owner.name}.{name}")
    if made is not None:
        decorators = getattr(made.node, "decorator_list", [])
        return any(dotted(each) == "staticmethod" for each in decorators)
    body = owner.node.body if isinstance(owner.node, ast.ClassDef) else []
    given = [each for each in body if isinstance(each, (ast.Assign, ast.AnnAssign))]
    targets = (t for each in given for t in (each.targets if isinstance(each, ast.Assign) else [each.target]))
    return any(dotted(each) == name for each in targets)


def _is_named(call: ast.Call, above: dict[ast.AST, ast.AST]) -> bool:
    """Tell whether a call gives a name its value, which is no attribute of a module."""
    whole: ast.AST = call
    while True:
        asked = above[whole]
        if isinstance(asked, ast.Attribute) and asked.attr in SAME_MODEL:
            whole = above[asked]
        elif isinstance(asked, ast.IfExp) and asked.test is not whole:
            whole = asked
        else:
            break
    if isinstance(asked, ast.Return):
        return True
    if not isinstance(asked, ast.Assign) or len(asked.targets) != 1:
        return False
    target = asked.targets[0]
    if isinstance(target, ast.Name):
        return True
    inside: ast.AST | None = asked
    while inside is not None and not isinstance(inside, ast.ClassDef):
        inside = above.get(inside)
    bases = inside.bases if isinstance(inside, ast.ClassDef) else []
    return isinstance(target, ast.Attribute) and not any(
        (dotted(base) or "").endswith(("Module", "Model")) for base in bases
    )
