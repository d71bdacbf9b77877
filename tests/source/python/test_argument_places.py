"""Which argument of a function a name is, and what a call gives there."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.source.python.argument_places import argument_at, given_at


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("call", "name", "given"),
    [
        ("o.run(1, 2)", "a", "1"),
        ("o.run(1, 2)", "b", "2"),
        ("o.run(1, b=2)", "b", "2"),
        ("o.run(1)", "b", None),
        ("o.run(1, key=3)", "key", "3"),
        ("o.run(1)", "self", "o"),
        ("run(1)", "self", None),
        ("o.run(1, *others)", "a", "1"),
        ("o.run(*others, 2)", "a", None),
        ("o.run(*others, 2)", "b", None),
        ("o.run(*others, b=2)", "b", "2"),
    ],
)
def test_what_a_call_gives_for_a_name_is_found(call: str, name: str, given: str | None) -> None:
    [function] = ast.parse("def run(self, a, /, b, *, key=None): ...").body
    found = argument_at(function, name, is_method=True)
    called = ast.parse(call, mode="eval").body
    assert found is not None
    assert isinstance(called, ast.Call)
    node = given_at(called, *found)
    assert (None if node is None else ast.unparse(node)) == given


def test_what_is_no_argument_has_no_place() -> None:
    [function, other] = ast.parse("def run(self, a): ...\nclass Run: ...").body
    assert argument_at(function, "b", is_method=True) is None
    assert argument_at(function, "self", is_method=False) == (0, "self")
    assert argument_at(other, "a", is_method=False) is None
