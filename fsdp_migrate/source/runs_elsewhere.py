"""Which functions of a project run a model that they are given, without gradients alone or with them.

For the files that call them, which show none of it: ``evaluate(ema, loader)``.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.passes_elsewhere import Deed
from fsdp_migrate.source.python.argument_places import argument_at, given_at
from fsdp_migrate.source.python.walked import last_word, walked


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Function = ast.FunctionDef | ast.AsyncFunctionDef


EVALUATES: Final = "evaluates"
"""A function runs what it is given without gradients, and in no other way."""
RUNS: Final = "runs"
"""A function runs it with gradients."""
COMPUTES: Final = re.compile(
    r"(^|_)(forward|encode|decode|embed|generate|infer|predict|sample)(_|$)"
    r"|^(calculate|compute|get)_(\w+_)?(features|logits|log_?probs|loss)$"
)
"""Methods that compute, by their names: ``encode_image``, ``get_text_features``, ``compute_loss``."""
_NO_GRAD: Final = re.compile(r"\b(?:no_grad|inference_mode)\b|\bset_grad_enabled\(False\)")
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHS: Final = (ast.With, ast.AsyncWith)
_ROUNDS: Final = 3


def may_evaluate(text: str) -> bool:
    """Tell whether a source may run models without gradients; it costs no parsing.

    Example:
        >>> may_evaluate("@torch.no_grad()"), may_evaluate("loss.backward()")
        (True, False)
    """
    return _NO_GRAD.search(text) is not None


def evaluations(trees: Iterable[ast.Module]) -> frozenset[Deed]:
    r"""Return which functions of some files run a model that they are given, and how.

    Example:
        >>> source = "@torch.no_grad()\ndef evaluate(net, x):\n    return net(x)"
        >>> evaluations([ast.parse(source)])
        frozenset({Deed(function='evaluate', what='evaluates', place=0, name='net')})
    """
    functions = [each for tree in trees for each in tree.body if isinstance(each, _FUNCTIONS)]
    found: dict[tuple[str, int, str], bool] = {}
    for _ in range(_ROUNDS):
        before = dict(found)
        for function in functions:
            for name, is_graded in _runs(function, before):
                place = argument_at(function, name, is_method=False)
                if place is not None:
                    key = (function.name, *place)
                    found[key] = found.get(key, False) or is_graded
        if found == before:
            break
    return frozenset(
        Deed(name, RUNS if is_graded else EVALUATES, place, argument)
        for (name, place, argument), is_graded in found.items()
    )


def _computes(func: ast.Attribute) -> bool:
    return COMPUTES.search(func.attr) is not None


def _runs(function: Function, known: dict[tuple[str, int, str], bool]) -> Iterator[tuple[str, bool]]:
    """Yield the names of what a function calls, or has others run, and whether with gradients."""
    is_free = any(_NO_GRAD.search(ast.unparse(each)) for each in function.decorator_list)
    free = {
        below
        for node in walked(function)
        if isinstance(node, _WITHS) and any(_NO_GRAD.search(ast.unparse(e.context_expr)) for e in node.items)
        for below in walked(node)
    }
    for call in (node for node in walked(function) if isinstance(node, ast.Call)):
        is_graded = not (is_free or call in free)
        func = call.func
        if isinstance(func, ast.Name):
            yield func.id, is_graded
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and _computes(func):
            yield func.value.id, is_graded
        name = last_word(func)
        for (other, place, argument), runs_graded in known.items():
            given = given_at(call, place, argument) if other == name else None
            if isinstance(given, ast.Name):
                yield given.id, is_graded and runs_graded
