"""Functions that wrap parts of what they are given, and the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import IMPORTS, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TOWERS = """\
def wrap(model, flag=True):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FSDP(block)
    {}

"""
MAIN = """\
def main():
    model = Clip()
    {}
    state = model.state_dict()
"""
WHOLE = "return FSDP(model)"
ANEW = "model = wrap(model)"


@pytest.mark.parametrize(
    ("returns", "call", "code"),
    [
        (WHOLE, ANEW, "FM308"),
        (WHOLE, "model = wrap(model=model)", "FM308"),
        # Of these the parts alone may be sharded.
        ("return model", ANEW, "FM333"),
        ("return FSDP(model) if flag else model", ANEW, "FM333"),
        (f"if flag:\n        {WHOLE}\n    return model", ANEW, "FM333"),
        (WHOLE, "other = wrap(model)", "FM333"),
        ("pass", "wrap(model)", "FM333"),
    ],
)
def test_a_model_that_is_given_anew_by_what_wraps_its_parts(
    tmp_path: Path, returns: str, call: str, code: str
) -> None:
    """It is sharded for certain where the function always returns the wrapper."""
    wraps, main = TOWERS.format(returns), MAIN.format(call)
    assert {c for c, _ in codes(wraps + main)} & {"FM308", "FM333"} == {code}
    (tmp_path / "towers.py").write_text(IMPORTS + wraps)
    (tmp_path / "train.py").write_text(f"from towers import wrap\n\n{main}")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("train.py")}
    assert found == {code}
