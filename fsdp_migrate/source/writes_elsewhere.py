"""What functions, and methods of objects, write into the weights of a model that they, or these, were given.

For the files that call them, and enter the objects, which show none of it: ``with averaged:``.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.model_runs import WRITES
from fsdp_migrate.source.passes_elsewhere import Deed
from fsdp_migrate.source.python.argument_places import argument_at, given_at
from fsdp_migrate.source.python.parameters import PARAMETERS
from fsdp_migrate.source.python.walked import last_word, walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Function = ast.FunctionDef | ast.AsyncFunctionDef


WRITTEN: Final = "written"
"""A function writes into the weights of what it is given."""
HELD: Final = "held"
"""A method writes into those of what its object was made with: ``Average.swap``, by that argument."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_ROUNDS: Final = 3


def may_write(text: str) -> bool:
    r"""Tell whether a source may write to the weights of models; it costs no parsing.

    Example:
        >>> may_write("for p in m.parameters():\n    p.copy_(q)"), may_write("m.parameters()")
        (True, False)
    """
    return "parameters()" in text and any(f".{word}(" in text for word in WRITES)


def writes(trees: Iterable[ast.Module]) -> frozenset[Deed]:
    r"""Return which functions and methods of some files write to weights.

    Example:
        >>> source = "def limit(net):\n    for p in net.parameters():\n        p.clamp_(-1, 1)"
        >>> writes([ast.parse(source)])
        frozenset({Deed(function='limit', what='written', place=0, name='net')})
    """
    owners: list[ast.Module | ast.ClassDef] = []
    for tree in trees:
        owners += [tree, *_classes(tree)]
    found: frozenset[Deed] = frozenset()
    for _ in range(_ROUNDS if owners else 0):
        more = found.union(*(_of_owner(owner, found) for owner in owners))
        if more == found:
            break
        found = more
    return found


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    yield from (node for node in walked(tree) if isinstance(node, ast.ClassDef))


def _of_owner(owner: ast.Module | ast.ClassDef, known: frozenset[Deed]) -> set[Deed]:
    functions = [each for each in owner.body if isinstance(each, _FUNCTIONS)]
    if isinstance(owner, ast.Module):
        return {
            Deed(each.name, WRITTEN, *place)
            for each in functions
            for root in _roots(each, known, "")
            if (place := argument_at(each, root, is_method=False)) is not None
        }
    made = next((each for each in functions if each.name == "__init__"), None)
    kept = dict(_kept(made)) if made is not None else {}
    return {
        Deed(f"{owner.name}.{each.name}", HELD, *kept[root])
        for each in functions
        if each is not made
        for root in _roots(each, known, owner.name, kept)
        if root in kept
    }


def _kept(made: Function) -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield the attributes in which a constructor keeps what it is given, and which argument each is."""
    for line in walked(made):
        if not isinstance(line, (ast.Assign, ast.AnnAssign)) or line.value is None:
            continue
        value = line.value
        for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
            each = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                each = list(zip(target.elts, value.elts, strict=False))
            for name, given in each:
                place = argument_at(made, _text(given), is_method=True)
                if _text(name).startswith("self.") and place is not None:
                    yield _text(name), place


def _roots(
    function: Function, known: frozenset[Deed], owner: str, kept: dict[str, tuple[int, str]] | None = None
) -> set[str]:
    """Return the names of the models whose weights a function writes to, also by others that it calls."""
    of_loops = dict(_of_loops(function))
    found = {of_loops[name] for node in walked(function) for name in _written(node) if name in of_loops}
    for call in (node for node in walked(function) if isinstance(node, ast.Call)):
        own = _text(call.func).removeprefix("self.")
        for deed in known:
            if deed.what == HELD and deed.function == f"{owner}.{own}":
                places = (kept or {}).items()
                found |= {text for text, place in places if place == (deed.place, deed.name)}
            elif deed.what == WRITTEN and deed.function == last_word(call.func):
                given = given_at(call, deed.place, deed.name)
                found |= {_text(given)} if given is not None else set()
    return found


def _of_loops(function: Function) -> Iterator[tuple[str, str]]:
    """Yield the names that loops give to parameters, each with the model that these are of."""
    for node in walked(function):
        if not isinstance(node, ast.For):
            continue
        over, target = node.iter, node.target
        parts = [(target, over)]
        if isinstance(over, ast.Call) and last_word(over.func) == "zip" and isinstance(target, ast.Tuple):
            parts = list(zip(target.elts, over.args, strict=False))
        for part, each in parts:
            model = _asked(each)
            name = part.elts[-1] if isinstance(part, ast.Tuple) and part.elts else part
            if model and isinstance(name, ast.Name):
                yield name.id, model


def _asked(node: ast.expr) -> str:
    """Return the model that is asked for its parameters: ``self.model`` of ``self.model.parameters()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARAMETERS:
        return _text(node.func.value)
    return ""


def _text(node: ast.expr) -> str:
    """Return a name, or an attribute of one; nothing for anything else."""
    return ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""


def _written(node: ast.AST) -> Iterator[str]:
    """Yield the names whose values a statement writes: ``p.data.copy_(q)``, ``p -= x``; of no gradient."""
    target: ast.expr | None = None
    if isinstance(node, ast.AugAssign):
        target = node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES:
        target = node.func.value
        while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
            target = target.func.value  # `p.data.mul_(m).add_(q)`
    if isinstance(target, ast.Attribute) and target.attr == "data":
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id
