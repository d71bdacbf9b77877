"""What is said of a choice that FSDP1's flat parameters decided, where they were, or may have been."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from fsdp_migrate.newer_syntax import parse_any
from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.kept_names import is_known_at_run_alone
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.starred_keys import is_given_by_stars
from fsdp_migrate.source.python.strategies import keeps_originals


if TYPE_CHECKING:
    import libcst as cst

    from fsdp_migrate.source.python.text import Source


_WITHOUT: Final = "without use_orig_params=True FSDP1's"
_IF: Final = "unless use_orig_params=True is among what FSDP1's class is given by `**`, its"
_AT_RUN: Final = "unless use_orig_params is true when this runs, FSDP1's"
DECIDES: Final = (
    "so this {}decides differently, without an error. Decide which is meant; a checkpoint of FSDP1 has the "
    "old groups."
)
"""What comes of it, where parameters are chosen."""


def of_flat(source: Source, meant: str, outcome: str = DECIDES) -> str:
    """Return what is said of flat parameters; nothing where something asks for the model's own.

    Args:
        source: The source.
        meant: What flat parameters were in this, and what FSDP2's are.
        outcome: What comes of it, with a place for ``then``.
    """
    if source.links.keeps_names:
        return _said(_AT_RUN, meant, outcome) if source.links.names_at_run else ""
    if catalog.MAY_KEEP_NAMES.search(source.code):
        return _said(_AT_RUN, meant, outcome) if is_known_at_run_alone([source.code]) else ""
    is_told = source.links.is_given or (source.links.methods and source.links.calls_the_class)
    if not is_told and not any(source.models.is_constructor(each.func) for each in source.calls):
        return ""
    is_given = _is_given_by_stars(source)
    whose = _IF if source.links.unseen_names or is_given is None else _WITHOUT
    return "" if is_given else _said(whose, meant, outcome)


def flat_of(source: Source, model: cst.BaseExpression, flat: str, meant: str, outcome: str = DECIDES) -> str:
    """Return the same of one model, where the source shows what that was given, whatever others are.

    Args:
        source: The source.
        model: The model.
        flat: What is said of every model of the source.
        meant: What flat parameters were in this, and what FSDP2's are.
        outcome: What comes of it, with a place for ``then``.
    """
    keeps = keeps_originals(source.models, model)
    return flat if keeps is None else "" if keeps else _said(_WITHOUT, meant, outcome)


def _said(whose: str, meant: str, outcome: str) -> str:
    then = "" if whose == _WITHOUT else "then "
    return f"{whose} parameters were flat here, one for a unit, {meant}, {outcome.format(then)}"


def _is_given_by_stars(source: Source) -> bool | None:
    """Tell whether ``FSDP(net, **kwargs)`` asks for names; None where that is not seen."""
    funcs = {text_of(call.func) for call in source.calls if _is_starred(source, call)}
    try:
        tree = parse_any(source.code) if funcs else ast.Module([], [])
    except SyntaxError:  # of a newer Python
        return None
    return is_given_by_stars(tree, lambda call: ast.unparse(call.func) in funcs, "use_orig_params")


def _is_starred(source: Source, call: cst.Call) -> bool:
    """Tell whether FSDP1's class, or a partial of it, is given arguments by two stars."""
    if all(arg.star != "**" for arg in call.args):
        return False
    is_given = any(source.index.fsdp1(arg.value) == catalog.FSDP for arg in call.args)
    return is_given or source.models.is_constructor(call.func)
