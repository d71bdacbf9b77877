"""Models that are given to functions without a name."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, codes


pytestmark = pytest.mark.any_torch

NORMS = "sum(p.norm() for p in m.parameters())"


@pytest.mark.parametrize(
    "use",
    [
        f"norm = lambda m: {NORMS}\nloss = norm({{}})\n",
        f"norm = lambda x, m: {NORMS}\nloss = norm(1, m={{}})\n",
        f"norm = (lambda m: {NORMS}) if on else other\nloss = norm({{}})\n",
        f"loss = (lambda m: {NORMS})({{}})\n",
        f"steps = {{{{'a': lambda m: {NORMS}}}}}\nloss = steps[name]({{}})\n",
        f"steps = [lambda m: {NORMS}]\nloss = steps[0]({{}})\n",
        f"steps = dict({{{{}}}})\nsteps = {{{{'a': lambda m: {NORMS}}}}}\nloss = steps.get(name)({{}})\n",
        f"norm = lambda m: {NORMS}\nother = norm\nloss = other({{}})\n",
    ],
)
def test_what_such_a_function_is_given(use: str) -> None:
    assert "FM423" in dict(codes("model = FSDP(net)\n" + use.format("model"), IMPORTS))
    assert "FM423" not in dict(codes("model = FSDP(net)\n" + use.format("other_net"), IMPORTS))


@pytest.mark.parametrize(
    "use",
    [
        f"norm = lambda m, x: {NORMS}\nloss = norm(other, model)\n",
        f"norm = lambda m: {NORMS}\nloss = norm(*model)\n",
        f"steps = {{'a': lambda m: {NORMS}}}\nloss = steps.pop(name)\nx = call(model)\n",
        f"norm = lambda m: {NORMS}\nloss = call(norm, 1)\n",
    ],
)
def test_another_parameter_is_given_none(use: str) -> None:
    assert "FM423" not in dict(codes(f"model = FSDP(net)\n{use}", IMPORTS))
