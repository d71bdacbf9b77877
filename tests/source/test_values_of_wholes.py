"""Functions of all values of parameters that FSDP2's refuse, answer for all ranks, or do nothing to."""

from __future__ import annotations

import pytest

from tests.ranks import run_ranks
from tests.source.samples import uses
from tests.source.values_of_wholes_bodies import ask_dtensors


LOOP = (
    "model = FSDP(net, use_orig_params=True)\nfor p, q in zip(model.parameters(), model.parameters()):\n    "
)


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("x = torch.allclose(p, q)", "takes no DTensors here, and raises"),
        ("x = p.allclose(q)", "takes no DTensors here, and raises"),
        ("x = torch.nonzero(p.grad)", "takes no DTensors here, and raises"),
        ("x = p.unique()", "takes no DTensors here, and raises"),
        ("x = torch.equal(p, q)", "tells each whether the whole is equal"),
        ("x = torch.argmax(p)", "comes as a DTensor now: .full_tensor() of it"),
        ("x = p.std() * 2", "comes as a DTensor now: .full_tensor() of it"),
    ],
)
def test_what_is_said_of_a_value_is_true_of_it(asked: str, said: str) -> None:
    """Of all of them it was said that they give a DTensor, of which to take .full_tensor()."""
    found = [each.becomes for each in uses(f"{LOOP}{asked}\n") if each.code in {"FM336", "FM423"}]
    assert len(found) == 1
    assert said in found[0]


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("used", "is_said"),
    [
        ("p.grad = torch.where(torch.isnan(p.grad), torch.zeros_like(p.grad), p.grad)", False),
        ("p.grad = p.grad.masked_fill(p.grad.isnan() | torch.isinf(p.grad), 0.0)", False),
        ("p.grad.mul_(q * ~torch.isnan(p.grad))", False),
        ("bad = torch.isnan(p.grad)\n    p.grad = torch.where(~bad, p.grad, 0.0)", False),
        (
            "bad = torch.isnan(p.grad)\n    p.grad = torch.where(bad, 0.0, p.grad)\n    n += bad.sum() * 2",
            True,
        ),
        ("x = torch.isnan(p.grad).sum() * 2", True),
        ("x = torch.where(torch.isnan(p.grad))", True),
    ],
)
def test_an_answer_for_each_value_goes_on_for_each(used: str, *, is_said: bool) -> None:
    """FM423 stopped the run at a mask of what is not a number, which DTensors take as it is."""
    found = [each for each in uses(f"{LOOP}{used}\n") if each.code == "FM423"]
    assert bool(found) is is_said


@pytest.mark.any_torch
def test_a_vector_is_written_to_no_parameter() -> None:
    body = "model = FSDP(net)\ntorch.nn.utils.vector_to_parameters(vec, model.parameters())\n"
    (found,) = (each for each in uses(body) if each.code == "FM423")
    assert "does not reach a DTensor, without an error" in found.becomes
    assert "comes as a DTensor" not in found.becomes


def test_torch_does_with_them_what_is_said() -> None:
    first, second = run_ranks(ask_dtensors)
    for each in (first, second):
        assert each["is_refused"]
        assert each["equal"] is False
        assert each["written"] == 1.0
    assert (first["parts"], second["parts"]) == (True, False)
