"""What tests come to by constants that are known of names."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.source.python.known_constants import Value, are_never, constant, truth_of


pytestmark = pytest.mark.any_torch

KNOWN = {"n": Value(1), "kind": Value("fsdp"), "none": Value(None)}


def parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("test", "truth"),
    [
        ("n == 1", True),
        ("n != 1", False),
        ("n > 1", False),
        ("-n < 0", True),
        ("n", True),
        ("none is None", True),
        ("kind is not None", True),
        ("not n", False),
        ("not other", None),
        ("n == 1 or other", True),
        ("n > 1 or other", None),
        ("n > 1 or none", False),
        ("n > 1 and other", False),
        ("n == 1 and other", None),
        ("n == 1 and kind", True),
        ("kind in ('fsdp', 'hsdp')", True),
        ("kind not in ['ddp', 'none']", True),
        ("kind in ('fsdp', other)", None),
        ("kind.upper() == 'FSDP'", True),
        ("kind.strip().startswith('f')", True),
        ("kind.split()", None),
        ("kind.strip(chars='f')", None),
        ("n.lower()", None),
        ("-kind", None),
        ("0 < n < 1", None),
        ("n < kind", None),
        ("n + 1 > 1", None),
        ("is_one(n)", None),
    ],
)
def test_what_a_test_comes_to(test: str, *, truth: bool | None) -> None:
    assert truth_of(parsed(test), KNOWN) is truth
    assert are_never(KNOWN, [(parsed(test), True)]) is (truth is False)
    assert are_never(KNOWN, [(parsed(test), False)]) is (truth is True)


@pytest.mark.parametrize(
    ("text", "value"),
    [("True", Value(value=True)), ("-1", Value(-1)), ("'a'.upper()", Value("A")), ("n", None), ("f()", None)],
)
def test_what_is_a_constant(text: str, value: Value | None) -> None:
    assert constant(parsed(text)) == value
    assert constant(None) is None
