"""Objects whose constructor is given a sharded model by some files, and none by others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_PIPE = """\
class Pipe:
    def __init__(self, config, net=None, **kwargs):
        {}
"""
_SET = "self.net = Net(config) if net is None else net"
_TRAIN = f"{FSDP}from pipe import Pipe\nnet = FSDP(net)\npipe = Pipe(config, net=net)\n"
_USE = "pipe.net.load_state_dict(state)\n"


def _found(folder: Path, made: str, set_by: str = _SET, train: str = _TRAIN) -> bool:
    """Tell whether something is said of a state that is loaded into the model of an object."""
    texts = {"pipe.py": _PIPE.format(set_by), "train.py": train, "infer.py": f"from pipe import Pipe\n{made}"}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return any(use.path.endswith("infer.py") for use in scan_paths([folder]).uses)


@pytest.mark.parametrize(
    "set_by",
    [
        _SET,
        "if net is None:\n            self.net = Net(config)\n        else:\n            self.net = net",
        "self.net, self.config = Net(config) if net is None else net, config",
        "self.net, self.config = net, config",
    ],
)
def test_an_object_that_is_given_no_model_makes_a_plain_one(tmp_path: Path, set_by: str) -> None:
    assert not _found(tmp_path, f"pipe = Pipe(config)\n{_USE}", set_by)
    assert not _found(tmp_path, "for pipe in [Pipe(config)]:\n    pipe.net.load_state_dict(state)\n", set_by)
    assert _found(tmp_path, f"pipe = Pipe(config, other)\n{_USE}", set_by)
    assert _found(tmp_path, f"pipe = Pipe(config, **more)\n{_USE}", set_by)


@pytest.mark.parametrize(
    ("set_by", "train"),
    [
        (_SET, f"{_TRAIN}def change(pipe):\n    pipe.net = FSDP(pipe.net)\nchange(pipe)\n"),
        (_SET, f"{_TRAIN}pipe = pipe or other\npipe.net = FSDP(pipe.net)\n"),
        (f"{_SET}\n\n    def change(self, net):\n        self.net = net", f"{_TRAIN}pipe.change(net)\n"),
        ("self.net = wrap(Net(config)) if net is None else net\n\nfrom train import wrap", None),
        ("(self.net, *self.rest) = net, config", None),
    ],
)
def test_an_attribute_that_is_a_model_in_other_ways_too(tmp_path: Path, set_by: str, train: str) -> None:
    wrap = f"{_TRAIN}def wrap(net):\n    return FSDP(net)\n"
    assert _found(tmp_path, f"pipe = Pipe(config)\n{_USE}", set_by, train or wrap)


_HOLDS = """\
class Trainer:
    def __init__(self, config, net):
        self.pipe = Pipe(config)
        self.pipe.net = FSDP(net)
        {}
"""


@pytest.mark.parametrize("set_by", ["self.net = Net(config)", _SET])
@pytest.mark.parametrize(
    ("train", "is_said"),
    [
        (_HOLDS.format("pass"), False),
        (_HOLDS.format("self.pipe = make(config)"), True),
        ("pipe = Pipe(config)\npipe.net = FSDP(pipe.net)\n", False),
        ("def shard(pipe: Pipe):\n    pipe.net = FSDP(pipe.net)\n\n\nshard(Pipe(config))\n", True),
    ],
)
def test_what_is_set_on_an_object_where_it_is_made(
    tmp_path: Path, set_by: str, train: str, *, is_said: bool
) -> None:
    train = f"{FSDP}from pipe import Pipe\n\n\n{train}"
    assert _found(tmp_path, f"pipe = Pipe(config)\n{_USE}", set_by, train) is is_said
    # Those objects themselves hold what was set, wherever they go.
    use = f"from train import Trainer\ntrainer = Trainer(config, net)\ntrainer.{_USE}"
    assert "class" not in train or _found(tmp_path, use, set_by, train)
