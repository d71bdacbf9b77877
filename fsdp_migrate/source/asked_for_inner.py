"""What is done with ``model.module`` where a model has it, and otherwise where it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


def leaves_out(source: Source, asked: cst.Call, inner: str) -> bool:
    """Tell whether something is done with what a model is asked for, and not with the model in its place.

    ``if hasattr(m, "module"): m.module.save(x)``, and below ``else:`` another way, or none. Where each has
    what the other has, ``x = m.module`` and ``x = m``, the model itself is taken.

    Args:
        source: The source.
        asked: ``hasattr(m, "module")``.
        inner: ``m.module``.
    """
    chosen = _chosen_by(source, asked) if dotted(asked.func) == "hasattr" else None
    if chosen is None:
        return False
    whole = inner.rpartition(".")[0]
    others = {text_of(each.func) for each in _others(source, chosen)}
    done = (text_of(each.func) for each in _done(chosen.body, inner))
    return any(f"{whole}{each.removeprefix(inner)}" not in others for each in done)


def _chosen_by(source: Source, asked: cst.Call) -> cst.If | None:
    """Return the choice that a question decides on, alone or beside others that are to be true as well."""
    node: cst.CSTNode = asked
    above = source.index.parents[node]
    while isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.And):
        node, above = above, source.index.parents[above]
    return above if isinstance(above, cst.If) and above.test is node else None


def _done(body: cst.BaseSuite, inner: str) -> Iterator[cst.Call]:
    """Yield the calls of a branch by which something is done with it, whatever they give."""
    for each in walk_for(body, cst.Expr):
        if isinstance(each.value, cst.Call) and text_of(each.value.func).startswith(f"{inner}."):
            yield each.value


def _others(source: Source, chosen: cst.If) -> Iterator[cst.Call]:
    """Yield the calls of the other branches, and of what stands below the choice in its block."""
    if chosen.orelse is not None:
        yield from walk_for(chosen.orelse, cst.Call)
    block = source.index.parents[chosen]
    lines = block.body if isinstance(block, (cst.IndentedBlock, cst.Module)) else ()
    is_below = False
    for line in lines:
        if is_below:
            yield from walk_for(line, cst.Call)
        is_below = is_below or line is chosen
