"""Methods of a project's own modules that ask for states of ``self``, and are called on sharded models."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from fsdp_migrate.source.asked_methods import called_summoned
from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.project_names import targets_of
from fsdp_migrate.source.python.argument_places import every_argument
from fsdp_migrate.source.python.walked import walked


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Module, Project


_WRAPS = re.compile(
    r"FSDP|FullyShardedDataParallel|\w*[Tt]rainer|fully_shard|\w*prepare\w*|\w*setup\w*|\w*wrap\w*"
)
_ASKS = re.compile(r"\bself(?:\.\w+)*\.(?:(?:load_)?state_dict|save_pretrained)\(")


def states_by_file(project: Project, names: Collection[str]) -> dict[Path, frozenset[tuple[str, str]]]:
    """Return which of some methods, with their class, each file has in its modules, that ask for states.

    Not those that are called where parameters are summoned. Where several classes have a method of one name,
    it is that of those whose objects are seen to be wrapped, if any are.
    """
    found: dict[Path, set[tuple[str, str]]] = {}
    names = {*names} - called_summoned(project)
    for path in project.holding(names) if names else ():
        module = project.module(path) if _ASKS.search(project.texts[path]) else None
        if module is not None and (own := _of(module, names)):
            found[path] = own
    every = {owner for own in found.values() for owner, _ in own}
    wrapped = {owner for owner in every if _is_wrapped(project, owner)} if len(every) > 1 else every
    kept = wrapped or every
    return {p: frozenset(each for each in own if each[0] in kept) for p, own in found.items()}


def _is_wrapped(project: Project, owner: str) -> bool:
    """Tell whether a class's object is given to what shards: ``FSDP(Net())``, or by a name that it has."""
    last = owner.rsplit(".", maxsplit=1)[-1]
    for module in project.parsed(project.holding([last])):
        nodes = list(walked(module.tree))
        bound = [(each, each.value) for each in nodes if isinstance(each, (ast.Assign, ast.AnnAssign))]
        made = [each for each, value in bound if value is not None and _made_of(value) == last]
        names = {dotted(target) for each in made for target in targets_of(each)} - {None}
        for call in (each for each in nodes if isinstance(each, ast.Call)):
            if _WRAPS.fullmatch(last_name(call.func)) is None:
                continue
            given = every_argument(call)
            if any(_made_of(each) == last or not names.isdisjoint(_starts(each)) for each in given):
                return True
    return False


def _made_of(node: ast.expr) -> str:
    """Return the class, or function, that an expression starts with a call of: ``Net().to(device)``."""
    while True:
        owner = node.func if isinstance(node, ast.Call) else node
        if not isinstance(owner, ast.Attribute) or dotted(owner) is not None:
            return last_name(owner) if isinstance(node, ast.Call) else ""
        node = owner.value


def _starts(node: ast.expr) -> Iterator[str]:
    """Yield what an expression is a part of, or asks: ``net`` and ``net.to`` of ``net.to(device)``."""
    text = dotted(node.func if isinstance(node, ast.Call) else node) or ""
    parts = text.split(".") if text else []
    yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def saves_itself(project: Project) -> bool:
    """Tell whether a module of the project has a ``save_pretrained`` of its own that takes no state."""
    return any(is_a_module(module, owner) for module, owner in _saving_without_state(project))


def classes_that_save(project: Project) -> frozenset[str]:
    """Return the classes of the project, modules or not, whose own ``save_pretrained`` takes no state."""
    return frozenset(owner.rpartition(".")[2] for _, owner in _saving_without_state(project))


def _saving_without_state(project: Project) -> Iterator[tuple[Module, str]]:
    for path in project.holding(["save_pretrained"]):
        module = project.module(path) if "def save_pretrained(" in project.texts[path] else None
        for name, definition in module.definitions.items() if module is not None else ():
            owner, _, method = name.rpartition(".")
            node = definition.node
            if method == "save_pretrained" and owner and isinstance(node, ast.FunctionDef):
                takes = node.args.kwarg is not None or any(
                    each.arg == "state_dict" for each in (*node.args.args, *node.args.kwonlyargs)
                )
                if not takes and module is not None:
                    yield module, owner


def _of(module: Module, names: Collection[str]) -> set[tuple[str, str]]:
    found = set()
    for name, definition in module.definitions.items():
        owner, _, method = name.rpartition(".")
        if method in names and is_a_module(module, owner) and _ASKS.search(definition.written):
            found.add((owner, method))
    return found


def is_a_module(module: Module, owner: str) -> bool:
    """Tell whether a class of a file is a module, by its bases, or by its forward."""
    definition = module.definitions.get(owner)
    if definition is None or not isinstance(definition.node, ast.ClassDef):
        return False
    bases = [ast.unparse(base).split(".")[-1] for base in definition.node.bases]
    is_one = any(base.endswith(("Module", "PreTrainedModel")) for base in bases)
    return is_one or f"{owner}.forward" in module.definitions
