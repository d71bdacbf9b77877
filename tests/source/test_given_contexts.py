"""State dict contexts that functions, methods and classes of one file give, and blocks of another enter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n"
SHARDED = "FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)"
HELPERS = f"""\
{FSDP}from contextlib import contextmanager

def returned(model):
    return {SHARDED}

@contextmanager
def yielded(model):
    with {SHARDED}:
        yield

def chosen(model, sharded):
    context = {SHARDED}
    return context if sharded else nullcontext()

class Entered:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        model = self.model
        self.context = {SHARDED}
        self.context.__enter__()

    def __exit__(self, *given):
        self.context.__exit__(*given)

class Base:
    def full(self):
        return {SHARDED.replace("model", "self.model")}

def plain(model):
    with {SHARDED}:
        return model.state_dict()
"""
TRAIN = f"""\
{FSDP}from pkg.helpers import Base, Entered, chosen, plain, returned, yielded
from pkg import helpers

def save(net):
    model = FSDP(net)
    {{block}}
        state = model.state_dict()

class Trainer(Base):
    def __init__(self, net):
        self.model = FSDP(net)

    def save(self):
        {{inner}}
            return self.model.state_dict()
"""
WHOLE = "get_model_state_dict({}, options=StateDictOptions(full_state_dict=True))"


def _after(folder: Path, *, block: str = "if net:", inner: str = "if self:", **others: str) -> str:
    files = {
        "pkg/__init__.py": "",
        "pkg/helpers.py": HELPERS,
        "run.py": TRAIN.format(block=block, inner=inner),
    }
    files |= {f"{name}.py": text for name, text in others.items()}
    return after(folder, files, next(iter(others), "run") + ".py")


@pytest.mark.parametrize(
    "block",
    [
        "with returned(model):",
        "with yielded(model):",
        "with helpers.returned(model):",
        "with chosen(model, True):",
        "with torch.no_grad(), yielded(model):",
        "with Entered(model):",
        "context = yielded(model)\n    with context:",
        "with ExitStack() as stack:\n        stack.enter_context(yielded(model))",
    ],
)
def test_a_state_in_what_another_file_enters_is_not_given_the_default(tmp_path: Path, block: str) -> None:
    """It was: a sharded save became a whole one, without a word."""
    found = _after(tmp_path, block=block)
    assert "FM308 what this gives was decided by contexts" in found
    assert "state = model.state_dict()" in found
    assert WHOLE.format("self.model") in found


def test_nor_in_a_method_of_a_base_class(tmp_path: Path) -> None:
    found = _after(tmp_path, inner="with self.full():")
    assert "return self.model.state_dict()" in found
    assert WHOLE.format("model") in found


@pytest.mark.parametrize("block", ["if net:", "with torch.no_grad():", "kept = plain(model)\n    if kept:"])
def test_a_state_in_no_such_block_is_whole(tmp_path: Path, block: str) -> None:
    found = _after(tmp_path, block=block)
    assert WHOLE.format("model") in found
    assert "FM308" not in found


@pytest.mark.parametrize(("block", "is_turned"), [("with yielded(model):", False), ("if net:", True)])
def test_a_file_that_is_given_the_model_in_one(tmp_path: Path, block: str, is_turned: bool) -> None:
    block = f"from saver import store\n    {block}\n        store(model)\n    if net:"
    saver = "import torch\n\ndef store(model):\n    torch.save(model.state_dict(), 'x')\n"
    found = _after(tmp_path, block=block, saver=saver)
    assert (WHOLE.format("model") in found) == is_turned
    assert ("FM308" in found) != is_turned
