"""Rounding that Adam makes a step of, and what only looks like it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from fsdp_migrate.parity.enlarging import is_enlarged


if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.any_torch

START = torch.tensor([0.5, -0.25, 0.125, 1.0])
# The two in the middle are 0 but for rounding, which is that of sums in another order.
GRADIENT = torch.tensor([0.3, 1e-9, -2e-9, 0.1])
ROUNDED = GRADIENT * (1 + 2e-7) + torch.tensor([0.0, 2e-9, 1e-9, 0.0])


def stepped(gradients: Sequence[torch.Tensor], *, keeps: bool = True, lr: float = 0.1) -> torch.Tensor:
    """Return where Adam comes to; without ``keeps`` its moments are lost before the last step."""
    param = torch.nn.Parameter(START.clone())
    optimizer = torch.optim.Adam([param], lr=lr)
    for place, gradient in enumerate(gradients):
        if not keeps and place == len(gradients) - 1:
            optimizer.state.clear()
        param.grad = gradient.clone()
        optimizer.step()
    return param.detach()


def told(other: torch.Tensor, **how: Any) -> bool:
    one = stepped([GRADIENT * 2, GRADIENT])
    after = stepped([GRADIENT * 2, other], **how)
    return is_enlarged(({"a": GRADIENT}, {"a": other}), ({"a": one}, {"a": after}))


def test_a_step_that_rounding_makes_is_told_from_one_that_is_another() -> None:
    assert told(ROUNDED)
    # With clipping gradients are rounded whatever else is wrong.
    assert not told(ROUNDED, keeps=False)
    assert not told(ROUNDED, lr=0.2)
    assert not told(GRADIENT, keeps=False)
    assert not told(GRADIENT * 2)
    assert not told(GRADIENT), "nothing differs"


def test_a_gradient_that_is_all_rounding_is_seen_beside_the_others() -> None:
    """As of a bias before a norm, which takes it out again."""
    noise, other = torch.tensor([1e-9, -1e-9]), torch.tensor([-2e-9, 1e-9])
    params = ({"a": torch.ones(2)}, {"a": torch.ones(2) * 1.5})
    large = torch.ones(2)
    assert is_enlarged(({"a": noise, "b": large}, {"a": other, "b": large}), params)
    assert not is_enlarged(({"a": noise}, {"a": other}), params)


def test_a_gradient_that_is_all_rounding_is_no_other_one_under_sgd_either() -> None:
    """It is what differs first, the parameters are the same; FSDP1's may be 0 to the last bit."""
    large = torch.ones(2)
    same = ({"a": large, "b": large}, {"a": large, "b": large})
    other = {"a": torch.tensor([-2e-9, 1e-9]), "b": large}
    for noise in (torch.tensor([1e-9, -1e-9]), torch.zeros(2)):
        assert is_enlarged(({"a": noise, "b": large}, other), same)
    assert not is_enlarged((other, other), same), "nothing differs"
    assert not is_enlarged(({"a": large * 1e-3, "b": large}, other), same)
    for odd in (torch.tensor([float("nan"), 0.0]), torch.tensor([float("inf"), 0.0]), torch.zeros(3)):
        assert not is_enlarged(({"a": torch.zeros(2), "b": large}, {"a": odd, "b": large}), same)


def test_a_parameter_that_stays_zero_in_one_run_is_looked_at_as_the_others() -> None:
    """As a new bias, whose gradient is 0 to the last bit under FSDP1 alone."""
    still, moved, large = torch.zeros(2), torch.tensor([0.1, -0.1]), torch.ones(2)
    noise = torch.tensor([1e-9, -1e-9])
    params = ({"a": still, "b": large}, {"a": moved, "b": large})
    assert is_enlarged(({"a": still, "b": large}, {"a": noise, "b": large}), params)
    assert not is_enlarged(({"a": noise, "b": large}, {"a": noise, "b": large}), params)
    counts = ({"a": still.long(), "b": large}, {"a": moved.long() + 1, "b": large})
    assert not is_enlarged(({"a": still, "b": large}, {"a": noise, "b": large}), counts)


@pytest.mark.parametrize("others", [{}, {"b": torch.ones(2)}])
def test_what_one_run_alone_has_is_no_rounding(others: dict[str, torch.Tensor]) -> None:
    noise, other = torch.tensor([1e-9, 1.0]), torch.tensor([3e-9, 1.0])
    params = ({"a": torch.ones(2)}, {"a": torch.tensor([1.5, 1.0])})
    assert is_enlarged(({"a": noise}, {"a": other}), params)
    assert not is_enlarged(({"a": noise}, others), params)
    assert not is_enlarged(({"a": noise}, {"a": other}), (params[0], others))
