"""Parameters of functions, those before ``/`` too, and the handlers of ``except*``."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp_migrate.source import rewrite_source, scan_source
from fsdp_migrate.source.python.nodes import parameters_of, placed_parameters
from tests.source.samples import IMPORTS, MARK, MODEL, codes


pytestmark = pytest.mark.any_torch


def test_all_parameters_and_those_that_are_given_by_place() -> None:
    module = cst.parse_module("def fit(model, /, x, *rest, steps=1, **more): pass")
    function = cst.ensure_type(module.body[0], cst.FunctionDef)
    assert [each.name.value for each in parameters_of(function)] == ["model", "x", "steps"]
    assert [each.name.value for each in placed_parameters(function)] == ["model", "x"]


# What each says, where its parameter may be given by name, too.
BODIES = {
    (
        f"{MODEL}def norm(ps{{}}):\n    return sum(p.grad.norm() for p in ps)\nx = norm(model.parameters())\n"
    ): "FM423",
    f"{MODEL}f = lambda p{{}}: p.norm()\nfor p in model.parameters():\n    f(p)\n": "FM423",
    (
        "def is_fsdp(m{}):\n    return isinstance(m, FSDP)\n\n\ndef clip(x):\n    if is_fsdp(x):\n"
        "        x.clip_grad_norm_(1.0)\n"
    ): "FM311",
    f"{MODEL}def unwrap(m{{}}):\n    return m.module\nunwrap(model).state_dict()\n": "FM308",
    f"{MODEL}def save(m{{}}):\n    return m.state_dict()\nsave(model)\n": "FM308",
    (
        f"{MODEL}def unwrap(m{{}}):\n    if isinstance(m, FSDP):\n        return unwrap(m.module)\n"
        "    return m\nunwrap(model).state_dict()\n"
    ): "FM308",
}


@pytest.mark.parametrize("body", BODIES)
def test_what_stands_before_the_slash_is_a_parameter_like_others(body: str) -> None:
    found = codes(body.format(", /"))
    assert BODIES[body] in dict(found)
    assert found == codes(body.format(""))


def test_a_comment_stands_above_its_own_handler_of_a_group() -> None:
    tried = "def f(model: FSDP, x):\n    try:\n        x()\n"
    first, second = (
        "    except* ValueError:\n        pass\n",
        "    except* model._handle.error:\n        pass\n",
    )
    after = rewrite_source(f"{IMPORTS}{tried}{first}{second}")
    above, _, below = after.partition(second)
    assert below == ""
    assert above.splitlines()[-1].startswith(f"    {MARK}FM317")
    assert after.count(MARK) == 1


@pytest.mark.parametrize("handler", ["except*", "except"])
def test_what_a_handler_binds_is_no_model(handler: str) -> None:
    body = (
        f"def f(x):\n    try:\n        x()\n    {handler} ValueError as model:\n        model.state_dict()\n"
    )
    assert "FM308" not in {use.code for use in scan_source(f"{IMPORTS}{MODEL}{body}")}
