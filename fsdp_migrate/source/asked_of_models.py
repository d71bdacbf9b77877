"""Expressions in a project's file of which something is asked that models, or lists of parameters, have."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.project import dotted, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.unknown_models import is_model
from fsdp_migrate.source.python.walked import parts_of_one
from fsdp_migrate.source.values_bound import bound_within


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.project import Module, Place


OF_MODELS: Final = frozenset(
    {
        *("clip_grad_norm_", "load_state_dict", "named_parameters", "no_sync", "parameters"),
        *("save_pretrained", "state_dict"),
    }
)
"""Methods of models."""
_FUNCTIONS: Final = frozenset({"clip_grad_norm_", "deepcopy", "get_peft_model_state_dict"})
_HOLDS: Final = re.compile(r"optim|(?:^|_)opt$|param|group|(?:^|_)net")


def asked_in(module: Module, text: str) -> Iterator[tuple[ast.expr, str, Place]]:
    """Yield the expressions of a file that something is done with, each as it is written, and where.

    ``text``: the file's.
    """
    has_wrapped = ".module" in text
    for statement in (each for scope in scopes_of(module) for each in scope.statements):
        asked = [node for call in statement.calls for node in _asked(call)]
        asked += _wrapped(statement.node) if has_wrapped else []
        bound = bound_within(statement.node) if asked else set()
        for node in asked:
            name = dotted(node)
            if name is None or name.split(".")[0] in bound:
                continue
            if may_be_one(name.rsplit(".", maxsplit=1)[-1].lower()):
                yield node, name, statement.place


def may_be_one(last: str) -> bool:
    """Tell whether a name is one that models, optimizers or lists of parameters have.

    Example:
        >>> [may_be_one(each) for each in ("actor", "critic_opt", "path")]
        [True, True, False]
    """
    return is_model(last) or _HOLDS.search(last) is not None


def _asked(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the expressions of which a call may ask what a model has."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in OF_MODELS:
        yield call.func.value
    if last_name(call.func) in _FUNCTIONS:
        yield from call.args[:1]


def _wrapped(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yield what is asked for the model inside it: ``model`` of ``model.module``."""
    asked = (each for each in parts_of_one(statement) if isinstance(each, ast.Attribute))
    yield from (each.value for each in asked if each.attr == "module")
