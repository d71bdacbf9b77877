"""Which parameter has which number in an optimizer's state: where it follows surely, and only there.

``optimizer.state_dict()`` numbers the parameters in the order in which the optimizer was given them, group
after group. Within a group that is the model's own order, or a part of it. So each group is a subsequence of
the model's names, no name is in two of them, and the moments of a parameter have its shape. All ways to
choose such subsequences are counted; there must be exactly one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape


# State that torch's optimizers and their kin keep in the shape of the parameter.
MOMENTS: Final = frozenset(
    {
        "acc_delta",
        "ax",
        "exp_avg",
        "exp_avg_sq",
        "exp_inf",
        "grad_avg",
        "max_exp_avg_sq",
        "momentum_buffer",
        "prev",
        "square_avg",
        "sum",
        "variance",
    }
)
# Adafactor's, without the last dimension and the one before it; torch's keeps them with one element.
_ROWS_AND_COLUMNS: Final = (("row_var", "col_var", 1), ("exp_avg_sq_row", "exp_avg_sq_col", 0))
_MAX_STATES: Final = 200_000
_MAX_WORK: Final = 3_000_000
_Counts = dict[tuple[int, ...], int]


def parameter_shape(state: Mapping[str, Shape]) -> Shape | None:
    """Return the shape of a parameter by that of its state, or None where no state tells it.

    Example:
        >>> parameter_shape({"step": (), "exp_avg": (4, 3)})
        (4, 3)
        >>> parameter_shape({"exp_avg_sq_row": (5, 4), "exp_avg_sq_col": (5, 3)})
        (5, 4, 3)
    """
    for name, shape in state.items():
        if name in MOMENTS:
            return shape
    for rows, columns, kept in _ROWS_AND_COLUMNS:
        if rows in state and columns in state and len(state[columns]) > 0:
            return (*state[rows][: len(state[rows]) - kept], state[columns][-1])
    return None


def match_numbers(
    groups: Sequence[Sequence[int]], shapes: Mapping[int, Shape], model: Mapping[str, Shape]
) -> dict[int, str] | str:
    """Return the name of every number, or say why there is not exactly one way to give names.

    Args:
        groups: The numbers of each group.
        shapes: The shapes of those parameters that have state.
        model: The shape of every candidate, in the model's order.

    Example:
        >>> match_numbers([[0], [1]], {0: (4,), 1: (4, 3)}, {"up.weight": (4, 3), "up.bias": (4,)})
        {0: 'up.bias', 1: 'up.weight'}
        >>> match_numbers([[0]], {0: (4,)}, {"a": (4,), "b": (4,)})
        'several names fit the number 0, such as `a` and `b`'
    """
    total = sum(map(len, groups))
    numbers = [number for group in groups for number in group]
    if len(set(numbers)) != total:
        return "a number is in two groups"
    if total > len(model):
        return f"the optimizer knows {counted(total, 'parameter')}, and the model has {len(model)}"
    steps = _count_ways(groups, shapes, model)
    if steps is None:
        return "there are too many possible orders to try"
    final = tuple(map(len, groups))
    if not steps[-1].get(final):
        return f"no order of the model's {len(model)} names fits the shapes of its {total} parameters"
    # The earliest and the latest choice everywhere: if these two ways name all alike, all ways do.
    one, other = (_walk_back(steps, groups, shapes, model, first=first) for first in (True, False))
    if one != other:
        # Where the two differ at all, they differ in a number that both of them name.
        number = next(n for n in numbers if one[n] != other[n])
        return f"several names fit the number {number}, such as `{other[number]}` and `{one[number]}`"
    return one


def _fits(number: int, shape: Shape, shapes: Mapping[int, Shape]) -> bool:
    return shapes.get(number, shape) == shape


def _count_ways(
    groups: Sequence[Sequence[int]], shapes: Mapping[int, Shape], model: Mapping[str, Shape]
) -> list[_Counts] | None:
    """Return, after each name, how many ways (2 for more) lead to how much of each group being placed."""
    steps: list[_Counts] = [{(0,) * len(groups): 1}]
    spare = len(model) - sum(map(len, groups))
    work = 0
    for place, shape in enumerate(model.values()):
        after: _Counts = {}
        for state, count in steps[-1].items():
            # A name without a number: the optimizer was not given all parameters, such as frozen ones.
            if place - sum(state) < spare:
                after[state] = min(after.get(state, 0) + count, 2)
            for which, group in enumerate(groups):
                if state[which] < len(group) and _fits(group[state[which]], shape, shapes):
                    new = (*state[:which], state[which] + 1, *state[which + 1 :])
                    # No further than 2: whether there are several ways is all that is asked, and numbers of
                    # ways grow without bounds.
                    after[new] = min(after.get(new, 0) + count, 2)
        work += len(after)
        if len(after) > _MAX_STATES or work > _MAX_WORK:
            return None
        steps.append(after)
    return steps


def _walk_back(
    steps: Sequence[_Counts],
    groups: Sequence[Sequence[int]],
    shapes: Mapping[int, Shape],
    model: Mapping[str, Shape],
    *,
    first: bool,
) -> dict[int, str]:
    """Follow one way from its end: the one that takes the earliest choice at every name, or the latest."""
    state = tuple(map(len, groups))
    names = list(model)
    found: dict[int, str] = {}
    for place in range(len(names) - 1, -1, -1):
        name = names[place]
        choices: list[tuple[int | None, tuple[int, ...]]] = [
            (which, (*state[:which], state[which] - 1, *state[which + 1 :]))
            for which, group in enumerate(groups)
            if state[which] and _fits(group[state[which] - 1], model[name], shapes)
        ]
        choices.append((None, state))
        # Only what a way from the beginning leads to.
        choices = [choice for choice in choices if steps[place].get(choice[1])]
        which, before = choices[0 if first else -1]
        if which is not None:
            found[groups[which][before[which]]] = name
        state = before
    return found
