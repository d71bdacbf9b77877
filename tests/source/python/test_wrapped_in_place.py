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
def inner(module):
    return FSDP(module)

def maybe(module):
    return FSDP(module) if module.flag else module

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
        ("return inner(model)", ANEW, "FM308"),
        # Of these the parts alone may be sharded.
        ("return maybe(model)", ANEW, "FM333"),
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


STRATEGY = """\
class Strategy:
    def __init__(self, args):
        self.args = args

    def _fsdp(self, module):
        return FSDP(module)

    def prepare(self, model):
        model.head = self._fsdp(model.head)
        {}

    def save(self, model):
        return model.state_dict()

"""
TRAIN = """\
from strategy import Strategy

def main(args):
    strategy = Strategy(args)
    model = Net()
    model = strategy.prepare(model)
    strategy.save(model)
    state = model.state_dict()
"""


@pytest.mark.parametrize(
    ("returns", "code"),
    [
        ("return self._fsdp(model)", "FM308"),
        ("return model", "FM333"),
        ("return self._fsdp(model) if self.args.whole else model", "FM333"),
    ],
)
def test_a_method_of_an_object_that_holds_no_model(tmp_path: Path, returns: str, code: str) -> None:
    (tmp_path / "strategy.py").write_text(IMPORTS + STRATEGY.format(returns))
    (tmp_path / "train.py").write_text(TRAIN)
    found = {(use.path.rpartition("/")[2], use.code) for use in scan_paths([tmp_path]).uses}
    asked = {each for each in found if each[1] in {"FM308", "FM333"}}
    assert asked == {("strategy.py", code), ("train.py", code)}
