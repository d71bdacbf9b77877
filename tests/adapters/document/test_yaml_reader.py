"""YAML that cannot be read."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "Line 2"),
        ("a: 1\n\tb: 2\n", "Line 2"),
        ("a: *x\n", r"Line 1, column 4 is no YAML: there is no anchor `&x`"),
        ("a: {% if x %}[{% endif %}\nb: [{{ y }}\nc: {{ z }}: 1\n", "template language"),
        ("a: b: c\n", "Line 1, column"),
    ],
)
def test_broken_yaml_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x\n  b: *x\n", r"Line 2: `\*x` stands within"),
        (
            "a0: &a0 [1, 1]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            "more than 200000 values",
        ),
    ],
)
def test_aliases_that_grow_without_end_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_yaml(text)
