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
    chosen, is_there = _chosen_by(source, asked) if dotted(asked.func) == "hasattr" else (None, True)
    if chosen is None:
        return False
    whole = inner.rpartition(".")[0]
    if not is_there and (_raises(chosen.body) or _is_given_away(chosen.body, whole)):
        return True
    beside = [*_others(source, chosen)]
    done, others = ([chosen.body], beside) if is_there else (beside, [chosen.body])
    known = {text_of(each.func) for part in others for each in walk_for(part, cst.Call)}
    asks = (text_of(each.func) for part in done for each in _done(part, inner))
    return any(f"{whole}{each.removeprefix(inner)}" not in known for each in asks)


def is_required(source: Source, asked: cst.Call) -> bool:
    """Tell whether an assertion, alone or beside others, asks for it: ``assert hasattr(m, "module")``."""
    node: cst.CSTNode = asked
    above = source.index.parents[node]
    while isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.And):
        node, above = above, source.index.parents[above]
    return isinstance(above, cst.Assert) and above.test is node and dotted(asked.func) == "hasattr"


def _chosen_by(source: Source, asked: cst.Call) -> tuple[cst.If | None, bool]:
    """Return the choice that a question decides on, alone or beside others that are to be true as well.

    And whether its body runs where the answer is yes: not below ``if not hasattr(m, "module"):``.
    """
    node: cst.CSTNode = asked
    above = source.index.parents[node]
    if isinstance(above, cst.UnaryOperation) and isinstance(above.operator, cst.Not):
        choice = source.index.parents[above]
        return (choice if isinstance(choice, cst.If) and choice.test is above else None), False
    while isinstance(above, cst.BooleanOperation) and isinstance(above.operator, cst.And):
        node, above = above, source.index.parents[above]
    return (above if isinstance(above, cst.If) and above.test is node else None), True


def _done(body: cst.CSTNode, inner: str) -> Iterator[cst.Call]:
    """Yield the calls by which something is done with it, or is given back or kept."""
    values = [each.value for each in walk_for(body, cst.Expr)]
    values += [each.value for each in walk_for(body, cst.Assign)]
    values += [each.value for each in walk_for(body, cst.Return) if each.value is not None]
    for value in values:
        if isinstance(value, cst.Call) and text_of(value.func).startswith(f"{inner}."):
            yield value


def _raises(body: cst.BaseSuite) -> bool:
    """Tell whether a branch ends by raising."""
    last = body.body[-1] if body.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Raise)


def _is_given_away(body: cst.BaseSuite, whole: str) -> bool:
    """Tell whether a branch wraps what has no wrapper: ``model = DDP(model)``."""
    assigns = (each for each in walk_for(body, cst.Assign) if isinstance(each.value, cst.Call))
    made = (each for each in assigns if any(text_of(target.target) == whole for target in each.targets))
    calls = (cst.ensure_type(each.value, cst.Call) for each in made)
    return any(text_of(arg.value) == whole for call in calls for arg in call.args)


def _others(source: Source, chosen: cst.If) -> Iterator[cst.CSTNode]:
    """Yield the other branches, and what stands below the choice in its block."""
    if chosen.orelse is not None:
        yield chosen.orelse
    block = source.index.parents[chosen]
    lines = block.body if isinstance(block, (cst.IndentedBlock, cst.Module)) else ()
    is_below = False
    for line in lines:
        if is_below:
            yield line
        is_below = is_below or line is chosen
