"""Which of two places in the methods of a class runs first."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp_migrate.source.python.class_order import runs_first
from fsdp_migrate.source.python.text import Source


pytestmark = pytest.mark.any_torch

_METHODS = "    def a(self):\n        one()\n    def b(self):\n        two()\n"


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ("", None),
        ("    def run(self):\n        self.a()\n        self.b()\n", True),
        ("    def run(self):\n        self.b()\n        self.a()\n", False),
        ("    def run(self):\n        self.a()\n        self.b()\n        self.a()\n", False),
        (
            "    def run(self):\n        self.c()\n        self.b()\n    def c(self):\n        self.a()\n",
            True,
        ),
        (
            "    def run(self):\n        if x:\n            self.a()\n        else:\n            self.b()\n",
            None,
        ),
        ("    def __init__(self):\n        self.a()\n", True),
        ("    def __init__(self):\n        self.b()\n", None),
        ("    def run(self, other):\n        other.a()\n        other.b()\n", None),
    ],
)
def test_calls_of_methods_tell_the_order(others: str, *, expected: bool | None) -> None:
    source = Source(f"class A:\n{_METHODS}{others}", "a.py")
    calls = {call.func.value: call for call in source.calls if isinstance(call.func, cst.Name)}
    assert runs_first(source.index, calls["one"], calls["two"]) is expected


def test_places_of_two_classes_have_no_order() -> None:
    source = Source(
        "class A:\n    def a(self):\n        one()\nclass B:\n    def a(self):\n        two()\n", "a.py"
    )
    one, two = source.calls
    assert runs_first(source.index, one, two) is None
