"""JSON that cannot be read."""

from __future__ import annotations

import pytest

from fsdp_migrate.adapters.document.json_reader import read_json
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"a": 1,}', "Line 1, column"), ('{"a": 1\n "b": 2}', "Line 2, column 2"), ("", "Line 1, column 1")],
)
def test_broken_json_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_json(text)
