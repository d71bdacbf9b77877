"""Parameters that a training comes back to: made trainable, or written into, between two epochs.

A framework's own FSDP2 shows whole parameters after an evaluation, on which such a setting is lost.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import listed
from fsdp_migrate.newer_syntax import parse_any


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fsdp_migrate.doctor.sight import Sight


_FRAMEWORKS: Final = re.compile(r"\b[Aa]ccelerat|\b\w*Trainer(?:Callback)?\b")
_EVALUATES: Final = re.compile(r"\b(?:inference_mode|no_grad)\b|\.eval\(\)|(?:\b|_)(?:eval_|evaluat|validat)")
_TRAINS: Final = re.compile(r"backward|evaluat|\bfit|\bstep$|train|valid")
_RUNS: Final = re.compile(r"^(?:evaluate|evaluation_loop|predict|validate)$")
_PARAMETERS: Final = frozenset({"named_parameters", "parameters"})
# Hooks that are called once, before any forward.
_ONCE: Final = frozenset({"on_fit_start", "on_init_end", "on_train_begin", "on_train_start"})
_MOST: Final = 3
_DEEPEST: Final = 3
_Loop = ast.For | ast.While | ast.AsyncFor
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _File:
    """A source file: its text, and what stands above each node of it."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        self.stem = path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")

    @functools.cached_property
    def tree(self) -> ast.AST:
        try:
            return parse_any(self.text)
        except SyntaxError:
            return ast.Module(body=[], type_ignores=[])

    @functools.cached_property
    def above(self) -> dict[int, ast.AST]:
        return {id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}


def late_settings(sight: Sight, *, is_written: bool) -> str:
    """Return where parameters are made trainable, or not, again and again; or, if asked, written into too."""
    files = [_File(path, text) for path, text in sight.sources.items()]
    found = (
        f"{file.path}:{line}"
        for file in files
        if "requires_grad" in file.text or (is_written and "copy_" in file.text)
        for line in _lines(file, files, is_written=is_written)
    )
    return listed(dict.fromkeys(found), _MOST)


def _lines(file: _File, files: Sequence[_File], *, is_written: bool) -> Iterator[int]:
    for node in ast.walk(file.tree):
        if not isinstance(node, (ast.Assign, ast.Call)):
            continue
        is_one = _sets(node) or (is_written and _writes(node, file.above))
        if is_one and _comes_again(node, (file,), files):
            yield node.lineno


def _sets(node: ast.AST) -> bool:
    """Tell whether a statement says whether something is trained."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "requires_grad_"
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(each, ast.Attribute) and each.attr == "requires_grad" for each in targets)


def _writes(node: ast.AST, above: dict[int, ast.AST]) -> bool:
    """Tell whether a call copies into one of a loop's parameters: ``p.data.copy_(old[name])``."""
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr != "copy_":
        return False
    held = func.value.value if isinstance(func.value, ast.Attribute) else func.value
    loops = (each for each in _around(node, above) if isinstance(each, ast.For))
    return isinstance(held, ast.Name) and any(
        held.id in _names(loop.target) and _asked(loop.iter) & _PARAMETERS for loop in loops
    )


def _comes_again(node: ast.AST, way: tuple[_File, ...], files: Sequence[_File]) -> bool:
    """Tell whether a place is come to between forwards: in a loop that trains, in a hook, or once evaluated.

    ``way``: the files that lead to it, its own the last: a framework trains in one of them, and evaluates.
    """
    is_near = all(any(map(word.search, (each.text for each in way))) for word in (_FRAMEWORKS, _EVALUATES))
    for each in _around(node, way[-1].above):
        if is_near and isinstance(each, _Loop) and any(map(_TRAINS.search, _asked(each))):
            return True
        if isinstance(each, _Function):
            if is_near and (_is_hook(each.name) or _has_evaluated(each, node)):
                return True
            return len(way) <= _DEEPEST and any(
                _comes_again(call, (*way, file), files)
                for file in files
                if file is way[-1] or _knows(file, each, way[-1])
                for call in ast.walk(file.tree)
                if isinstance(call, ast.Call) and _last(call) == each.name
            )
    return False


def _is_hook(name: str) -> bool:
    return name.startswith("on_") and name not in _ONCE


def _has_evaluated(function: _Function, node: ast.AST) -> bool:
    """Tell whether a function evaluates above a place: ``super().evaluate()``, ``trainer.predict()``."""
    line = getattr(node, "lineno", 0)
    calls = (each for each in ast.walk(function) if isinstance(each, ast.Call) and each.lineno < line)
    return any(_RUNS.search(_last(each)) for each in calls)


def _knows(file: _File, function: _Function, home: _File) -> bool:
    """Tell whether another file may call a function: it names it, and the class or the file that it is of."""
    owner = home.above.get(id(function))
    known = {home.stem, owner.name if isinstance(owner, ast.ClassDef) else function.name}
    return f"{function.name}(" in file.text and any(
        re.search(rf"\b{re.escape(each)}\b", file.text) for each in known
    )


def _around(node: ast.AST, above: dict[int, ast.AST]) -> Iterator[ast.AST]:
    while (outer := above.get(id(node))) is not None:
        yield outer
        node = outer


def _asked(node: ast.AST) -> set[str]:
    return {_last(each) for each in ast.walk(node) if isinstance(each, ast.Call)}


def _last(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _names(target: ast.AST) -> Iterable[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
