"""Subclasses of the class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import IMPORTS, assert_uncertain, codes, turned


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


COMMENTED = [
    ("class Mine(FSDP):\n    pass\n\n\nmodel = Mine(net)\n", ["FM304", "FM304"]),
]


@pytest.mark.parametrize(("body", "expected"), COMMENTED)
def test_what_is_not_certain_gets_a_comment_only(body: str, expected: list[str]) -> None:
    assert_uncertain(body, expected)


def test_functions_of_the_class_are_known_through_a_subclass() -> None:
    body = (
        "class Wrapper(FSDP):\n"
        "    def optim_state_dict(self):\n"
        "        return {}\n\n\n"
        "def save(model: Wrapper):\n"
        "    with Wrapper.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "        state = model.state_dict()\n"
        "    return state, Wrapper.optim_state_dict(model)\n\n\n"
        "model = FSDP(net)\n"
    )
    after = turned(body)
    assert "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "Wrapper.optim_state_dict(model)" in after


@pytest.mark.parametrize(
    ("line", "is_said"),
    [("isinstance(m, Mine)", True), ("isinstance(m, (A, Mine))", True), ("type(m)", False)],
)
def test_a_question_for_a_subclass_is_false_of_fsdp2s_models(line: str, *, is_said: bool) -> None:
    body = f"class Mine(FSDP):\n    pass\n\n\nif {line}:\n    x()\n"
    assert codes(body).count(("FM304", "commented")) == 1 + is_said


LIBRARY = """\
class Sharded(FSDP):
    def optim_state_dict(self):
        return {}
class More(Sharded):
    pass
class Plain(torch.nn.Module):
    pass
"""
USES = """\
from lib import {name} as Own
def main(net, opt, state):
    model = Own(net)
    if isinstance(model, Own):
        opt.load_state_dict(Own.optim_state_dict_to_load(model, opt, state))
    return Own.optim_state_dict(model, opt)
"""


@pytest.mark.parametrize("name", ["Sharded", "More", "Plain"])
def test_a_subclass_of_another_file_is_followed(tmp_path: Path, name: str) -> None:
    (tmp_path / "lib.py").write_text(IMPORTS + LIBRARY)
    (tmp_path / "main.py").write_text(USES.format(name=name))
    files = scan_paths([tmp_path]).files
    uses = [use for each in files if each.path.endswith("main.py") for use in each.uses]
    found = [(use.line, use.code) for use in uses if use.code != "FM446"]
    # Its own function is what it was.
    assert found == ([] if name == "Plain" else [(3, "FM304"), (4, "FM304"), (5, "FM309")])
