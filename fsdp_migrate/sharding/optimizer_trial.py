"""Whether an optimizer takes each element alone, and takes DTensors: tried on a few numbers.

FSDP1 gave optimizers pieces of flat parameters. What steps each element alone gives the same values there and
on whole matrices; what takes norms, rows or matrices does not (Muon, LAMB, Adafactor, Shampoo and many more),
nor does what scales its state in blocks (8 bits and fewer).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fsdp_migrate.torch_compat.optimizer_kinds import WithoutCollectives, as_dtensor, refuses_dtensors


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.optim import Optimizer

_SIDES = (4, 4)
# Optimizers of 8 bits pack what has 4096 elements or more, in blocks of 256 or 128: here the whole matrix (33
# times 256), and of its parts, cut between rows, the second one at most.
_LARGE_SIDES = (66, 128)
_CUT = (31, 35)
_NUM_STEPS = 3
_SEED = 20
_RATES = ("lr", "initial_lr", "weight_decay", "name")


def takes_elements_alone(optimizer: Optimizer) -> bool | None:
    """Step copies of an optimizer on a matrix, and on its elements as FSDP1 laid them out; compare.

    Param groups are tried one by one, with their settings; those that differ in rates alone are tried once.
    The optimizer, its state and torch's random numbers are left as they are; nothing is sent to other ranks.

    Args:
        optimizer: Any object with ``param_groups``, ``state`` and ``step()``.

    Returns:
        True: the same values. False: other values, or it refuses vectors. None: it cannot be tried, for
        its step needs a closure, a GPU, other ranks, or what a copy does not have.

    Example:
        >>> takes_elements_alone(torch.optim.AdamW([nn.Parameter(torch.ones(4))]))
        True
    """
    answer: bool | None = True
    for group in _unlike_groups(optimizer):
        alone = _takes_alone(optimizer, group)
        if alone is False:
            return False
        answer = answer and alone
    return answer


def packs_in_blocks(optimizer: Optimizer) -> bool:
    """Tell whether parts of a large matrix, cut between rows, step otherwise than the whole of it.

    So do optimizers that keep their state in few bits: they scale blocks of elements, and leave small tensors
    as they are. Ask of what takes each element alone where there are few of them. Vectors are not tried: what
    keeps a square matrix for each side of a parameter would fill the memory.
    """
    for group in _unlike_groups(optimizer):
        whole = _train(optimizer, group, lambda matrix: [matrix], _LARGE_SIDES)
        in_rows = _train(optimizer, group, lambda matrix: list(matrix.split(_CUT)), _LARGE_SIDES)
        if whole is not None and in_rows is not None and not torch.allclose(whole, in_rows):
            return True
    return False


def error_with_dtensors(optimizer: Optimizer) -> str | None:
    """Step a copy of an optimizer on a DTensor, of this rank alone; return what DTensor cannot do of it.

    Any other error is no answer: it may come of the trial itself.

    Returns:
        The first line of torch's error; None: there is none, or it cannot be tried.
    """
    for group in _unlike_groups(optimizer):
        for sides in (_SIDES, _LARGE_SIDES):  # some treat small matrices as vectors
            # What fails on plain tensors says nothing about DTensors.
            if _train(optimizer, group, lambda matrix: [matrix], sides) is None:
                continue
            errors: list[Exception] = []
            _train(optimizer, group, lambda matrix: [matrix], sides, sharded=True, errors=errors)
            for error in errors:
                if refuses_dtensors(error):
                    return str(error).splitlines()[0]
    return None


def _unlike_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    return list({_describe(group): group for group in optimizer.param_groups}.values())


def _describe(group: dict[str, Any]) -> str:
    """Return what decides how a group is stepped."""
    return repr(
        sorted((name, repr(value)) for name, value in group.items() if name not in {"params", *_RATES})
    )


def _takes_alone(optimizer: Optimizer, group: dict[str, Any]) -> bool | None:
    whole = _train(optimizer, group, lambda matrix: [matrix])
    if whole is None:
        return None
    as_vector = _train(optimizer, group, lambda matrix: [matrix.flatten()])
    in_pieces = _train(optimizer, group, lambda matrix: list(matrix.flatten().chunk(2)))
    if as_vector is None or in_pieces is None:
        return False
    return bool(torch.allclose(whole, as_vector) and torch.allclose(whole, in_pieces))


def _train(
    optimizer: Optimizer,
    group: dict[str, Any],
    cut: Callable[[Tensor], Sequence[Tensor]],
    sides: tuple[int, int] = _SIDES,
    *,
    sharded: bool = False,
    errors: list[Exception] | None = None,
) -> Tensor | None:
    """Return the elements after some steps of a copy; None: it cannot step, or changes nothing."""
    generator = torch.Generator().manual_seed(_SEED)
    start, *gradients = torch.randn(1 + _NUM_STEPS, *sides, generator=generator)
    params = [_make(part.clone(), sharded=sharded) for part in cut(start)]
    # Whatever a stranger's step raises means that it cannot be tried; it fails again where it matters.
    try:
        twin = _copy_with(optimizer, group, params)
        # What `torch.compile` would take seconds for is run as it is written.
        eager = torch.compiler.set_stance("force_eager")
        with torch.random.fork_rng(devices=[]), eager, WithoutCollectives():
            torch.manual_seed(_SEED)
            for gradient in gradients:
                for param, part in zip(params, cut(gradient), strict=True):
                    param.grad = as_dtensor(part.clone()) if sharded else part.clone()
                twin.step()
        # What it raises is all that is asked for.
        if sharded:
            return None
        after = torch.cat([param.detach().flatten() for param in params])
        if not torch.equal(after, start.flatten()):
            return after
    except Exception as error:
        if errors is not None:
            errors.append(error)
    return None


def _make(part: Tensor, *, sharded: bool) -> nn.Parameter:
    return nn.Parameter(as_dtensor(part) if sharded else part)


def _copy_with(optimizer: Optimizer, group: dict[str, Any], params: list[nn.Parameter]) -> Optimizer:
    """Return an optimizer with the same settings, of other parameters, and with nobody's hooks."""
    twin = copy.copy(optimizer)
    twin.__dict__ = {
        name: type(value)() if "hooks" in name else copy.deepcopy(value)
        for name, value in vars(optimizer).items()
        if name not in {"param_groups", "state"}
    }
    settings = copy.deepcopy({name: value for name, value in group.items() if name != "params"})
    if settings.get("lr") == 0:  # a schedule warms up
        settings["lr"] = settings.get("initial_lr") or 0.01
    twin.param_groups = [{**settings, "params": params}]
    # Some note in the state what a parameter is for, such as Moonlight's Muon.
    notes: dict[str, Any] = next((optimizer.state.get(param, {}) for param in group["params"]), {})
    kept = {name: value for name, value in notes.items() if isinstance(value, bool | str)}
    twin.state = defaultdict(dict, {param: dict(kept) for param in params})
    return twin
