"""What functions do to a model that they are given: run it, run a backward, empty or change its gradients.

For the files that call them, which show none of it.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from fsdp_migrate.source.python.walked import last_word, walked


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator


EMPTIES: Final = frozenset({"fill_", "zero_"})
"""What takes away what was in a gradient."""
KEEP: Final = frozenset({"detach_", "record_stream", "requires_grad_"})
"""What changes no number of it."""
FOREACH: Final = re.compile(r"torch\._foreach_\w+_")
_MAY: Final = re.compile(
    r"\.grad(?:\.data)?(?:\.\w+_\(|\s*=[^=]|\s*[-+*/]=)|\bdel\b.*\.grad\b|_foreach_\w+_\("
)
_BACKWARDS: Final = frozenset({"backward", "manual_backward"})
_LISTS: Final = frozenset({"named_parameters", "parameters"})
_ROUNDS: Final = 3
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
EMPTIED: Final = "emptied"
CHANGED: Final = "changed"


class Deed(NamedTuple):
    """What a function does, and to which of its arguments."""

    function: str
    what: str
    """``forward`` and ``backward``: the last pass that it runs. ``emptied`` and ``changed``: gradients."""
    place: int
    """The place of the argument, ``self`` left out; -1 where no argument tells."""
    name: str


def may_change(text: str) -> bool:
    """Tell whether a source may empty or change gradients; it costs no parsing.

    Example:
        >>> may_change("p.grad = None"), may_change("norm = p.grad.norm()")
        (True, False)
    """
    return ".grad" in text and _MAY.search(text) is not None


def deeds(trees: Iterable[ast.Module]) -> frozenset[Deed]:
    r"""Return what the functions of some files do to models and lists of parameters that they are given.

    Example:
        >>> source = "def clear(net):\n    for p in net.parameters():\n        p.grad = None"
        >>> deeds([ast.parse(source)])
        frozenset({Deed(function='clear', what='emptied', place=0, name='net')})
    """
    inner = [node for tree in trees for node in walked(tree) if isinstance(node, ast.FunctionDef)]
    found: frozenset[Deed] = frozenset()
    for _ in range(_ROUNDS):
        more = found.union(*(_of_function(each, found) for each in inner)) if inner else found
        if more == found:
            break
        found = more
    return found


def deeds_of(call_name: str, known: Collection[Deed], *what: str) -> list[Deed]:
    """Return what is known of a function by its last name: of some kinds."""
    return [each for each in known if each.function == call_name and each.what in what]


def _of_function(function: ast.FunctionDef, known: Collection[Deed]) -> set[Deed]:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    placed = [each for each in names if each not in {"self", "cls"}]
    params = {name: place for place, name in enumerate(placed)}
    params |= {each.arg: len(placed) for each in function.args.kwonlyargs}
    what, by = _last_pass(function, params, known)
    found = {Deed(function.name, what, params.get(by, -1), by)} if what else set()
    for name, is_emptied in _changed(function, params, known):
        found.add(Deed(function.name, EMPTIED if is_emptied else CHANGED, params[name], name))
    return found


def _calls(function: ast.FunctionDef) -> list[ast.Call]:
    """Return the calls of a function by when they are done, those of functions within it left out."""
    inner = {
        below
        for node in walked(function)
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not function
        for below in ast.walk(node)
    }
    calls = [node for node in walked(function) if isinstance(node, ast.Call) and node not in inner]
    return sorted(calls, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))


def _last_pass(
    function: ast.FunctionDef, params: Collection[str], known: Collection[Deed]
) -> tuple[str, str]:
    """Return the last pass that a function runs, and by which parameter if it is a forward."""
    for call in reversed(_calls(function)):
        name = last_word(call.func)
        if name in _BACKWARDS:
            return BACKWARD, ""
        root = call.func.value if isinstance(call.func, ast.Attribute) and name == "module" else call.func
        if isinstance(root, ast.Name) and root.id in params:
            return FORWARD, root.id
        for deed in deeds_of(name, known, FORWARD, BACKWARD):
            given = _given(call, deed)
            if deed.what == BACKWARD:
                return BACKWARD, ""
            if isinstance(given, ast.Name) and given.id in params:
                return FORWARD, given.id
    return "", ""


def _changed(
    function: ast.FunctionDef, params: Collection[str], known: Collection[Deed]
) -> Iterator[tuple[str, bool]]:
    """Yield the parameters of whose gradients some are emptied or changed, and whether they are emptied."""
    of_loops = dict(_of_loops(function, params))
    for node in walked(function):
        for part, is_emptied in _deeds_in(node):
            if part in of_loops:
                yield of_loops[part], is_emptied
        if isinstance(node, ast.Call):
            for deed in deeds_of(last_word(node.func), known, EMPTIED, CHANGED):
                given = _given(node, deed)
                root = _asked(given) if given is not None else ""
                if root in params:
                    yield root, deed.what == EMPTIED


def _of_loops(function: ast.FunctionDef, params: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names that loops give to parameters, each with the argument that they are of."""
    for node in walked(function):
        if isinstance(node, (ast.For, ast.comprehension)):
            roots = {_asked(each) for each in ast.walk(node.iter) if isinstance(each, (ast.Call, ast.Name))}
            for root in roots & set(params):
                names = [each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)]
                yield from ((name, root) for name in names)


def _asked(node: ast.expr) -> str:
    """Return the name of a list, or of the model that is asked for its parameters: ``m.parameters()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LISTS:
        return node.func.value.id if isinstance(node.func.value, ast.Name) else ""
    return node.id if isinstance(node, ast.Name) else ""


def _deeds_in(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the names whose gradient a node empties or changes, and whether it empties it."""
    if isinstance(node, ast.Assign) and not any(
        isinstance(each, ast.Attribute) and each.attr == "grad" for each in ast.walk(node.value)
    ):
        yield from ((name, True) for each in node.targets if (name := _whose_gradient(each)))
    elif isinstance(node, ast.AugAssign):
        yield from ((name, False) for name in [_whose_gradient(node.target)] if name)
    elif isinstance(node, ast.Delete):
        yield from ((name, True) for each in node.targets if (name := _whose_gradient(each)))
    elif isinstance(node, ast.Call) and FOREACH.fullmatch(ast.unparse(node.func)):
        given = (each for arg in node.args[:1] for each in ast.walk(arg) if isinstance(each, ast.Attribute))
        is_emptied = last_word(node.func) == "_foreach_zero_"
        yield from ((name, is_emptied) for each in given if (name := _whose_gradient(each)))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        is_in_place = name.endswith("_") and not name.startswith("_") and name not in KEEP
        whose = _whose_gradient(node.func.value) if is_in_place else ""
        yield from ((whose, name in EMPTIES),) if whose else ()


def _whose_gradient(node: ast.expr) -> str:
    """Return ``p`` for ``p.grad`` and ``p.grad.data``, and nothing for anything else."""
    while isinstance(node, ast.Attribute) and node.attr == "data":
        node = node.value
    if not isinstance(node, ast.Attribute) or node.attr != "grad":
        return ""
    return node.value.id if isinstance(node.value, ast.Name) else ""


def _given(call: ast.Call, deed: Deed) -> ast.expr | None:
    """Return what a call gives to the argument that a deed is about."""
    named = (each.value for each in call.keywords if each.arg == deed.name)
    placed = call.args[deed.place : deed.place + 1] if deed.place >= 0 else []
    return next(iter([*placed, *named]), None)
