"""What a call gives to a parameter of a project's function."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.call_arguments import given_by
from fsdp_migrate.source.project import Project


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CODE = (
    "def run(a, b=2, *, key, more=4): ...\n"
    "class Net:\n"
    "    def run(self, a, b=2): ...\n"
    "    @staticmethod\n"
    "    def apart(a, b=2): ...\n"
)


@pytest.mark.parametrize(
    ("function", "call", "name", "given"),
    [
        ("run", "run(1)", "a", "1"),
        ("run", "run(1)", "b", "2"),
        ("run", "run(1, 3)", "b", "3"),
        ("run", "run(1, b=3)", "b", "3"),
        ("run", "run(1)", "key", None),
        ("run", "run(1)", "more", "4"),
        ("run", "run(*a)", "b", None),
        ("run", "run(*a, b=3)", "b", "3"),
        ("run", "run(1, **k)", "a", "1"),
        ("run", "run(1, **k)", "b", None),
        ("Net.run", "net.run(1)", "a", "1"),
        ("Net.run", "net.run(1)", "self", None),
        ("Net.apart", "net.apart(1)", "a", "1"),
        ("Net", "Net(1)", "a", None),
    ],
)
def test_what_a_call_gives_is_found(
    tmp_path: Path, function: str, call: str, name: str, given: str | None
) -> None:
    path = tmp_path / "run.py"
    path.write_text(CODE)
    module = Project({path: CODE}).module(path)
    called = ast.parse(call, mode="eval").body
    assert module is not None
    assert isinstance(called, ast.Call)
    node = given_by(module.definitions[function], name, called)
    assert (None if node is None else ast.unparse(node)) == given
