"""Models in containers and objects, over the files of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import CLIPPED, FSDP, WRAP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

STATE = (
    "from dataclasses import dataclass\n\n\n@dataclass\nclass State:\n    model: object\n    opt: object\n"
)
LOOP = "def train(state):\n    state.model.clip_grad_norm_(1.0)\n"


@pytest.mark.parametrize(
    ("loop", "main", "wanted"),
    [
        (LOOP, "train(State(model=FSDP(net), opt=o))\n", "clip_grad_norm_(state.model, 1.0)"),
        (LOOP, "state = State(FSDP(net), o)\ntrain(state)\n", "clip_grad_norm_(state.model, 1.0)"),
        (
            "from state import State\ndef train(state: State):\n    state.model.clip_grad_norm_(1.0)\n",
            "hand_on(State(FSDP(net), o), train)\n",
            "clip_grad_norm_(state.model, 1.0)",
        ),
        (
            (
                "class Loop:\n    def __init__(self, s):\n        self.state = s\n    def train(self):\n"
                "        self.state.model.clip_grad_norm_(1.0)\n"
            ),
            "Loop(State(FSDP(net), o)).train()\n",
            "clip_grad_norm_(self.state.model, 1.0)",
        ),
        (
            "def train(nets):\n    for _, model in nets:\n        model.clip_grad_norm_(1.0)\n",
            "train([('a', FSDP(net)), ('b', FSDP(n2))])\n",
            CLIPPED,
        ),
        (
            "def train(nets):\n    for _, model in nets.items():\n        model.clip_grad_norm_(1.0)\n",
            "models = {k: FSDP(net) for k, net in nets.items()}\ntrain(models)\n",
            CLIPPED,
        ),
        (
            (
                "def train(states):\n    for model in [s.model for s in states]:\n"
                "        model.clip_grad_norm_(1.0)\n"
            ),
            "states = []\nstates.append(State(FSDP(net), o))\ntrain(states)\n",
            CLIPPED,
        ),
    ],
)
def test_another_file_is_given_what_holds_a_model(tmp_path: Path, loop: str, main: str, wanted: str) -> None:
    start = f"{FSDP}from loop import train, Loop\nfrom state import State\n"
    files = {"state.py": STATE, "loop.py": loop, "main.py": f"{start}{main}"}
    assert wanted in after(tmp_path, files, "loop.py")


@pytest.mark.parametrize(
    "make",
    [
        "return [('a', wrap(net)), ('b', wrap(net))]",
        "return {'a': wrap(net)}.items()",
        "pairs = []\n    pairs.append(('a', wrap(net)))\n    return pairs",
    ],
)
def test_another_file_makes_what_holds_models(tmp_path: Path, make: str) -> None:
    files = {
        "dist.py": WRAP,
        "start.py": f"from dist import wrap\ndef start(net):\n    {make}\n",
        "main.py": "from start import start\nfor _, model in start(net):\n    model.clip_grad_norm_(1.0)\n",
    }
    assert CLIPPED in after(tmp_path, files, "main.py")


def test_of_two_objects_of_a_class_one_may_hold_a_plain_model(tmp_path: Path) -> None:
    main = (
        f"{FSDP}import state\ntrained = state.State(FSDP(net), o)\nmean = state.State(model=n, opt=o)\n"
        "mean.model.load_state_dict(s)\ntrained.model.clip_grad_norm_(1.0)\n"
    )
    text = after(tmp_path, {"state.py": STATE, "main.py": main}, "main.py")
    assert "\nmean.model.load_state_dict(s)\n" in text
    assert "FM3" not in text.replace("FM301", "")
    assert "\nclip_grad_norm_(trained.model, 1.0)\n" in text


@pytest.mark.parametrize("asks", ["@Base.kinds.getter\n", "@Base.kinds.setter\n", "@log(Base.run.__doc__)\n"])
def test_a_method_of_a_class_of_another_file_is_asked_for_something(tmp_path: Path, asks: str) -> None:
    base = "class Base:\n    @property\n    def kinds(self): return []\n\n    def run(self): pass\n"
    body = "    def kinds(self): return 1\n\n    def go(self, net):\n        self.net = FSDP(net)\n"
    sub = (
        f"{FSDP}from base import Base\n\n\nclass Sub(Base):\n    {asks}{body}        x = Base.kinds.fget.y\n"
    )
    made = after(tmp_path, {"base.py": base, "sub.py": sub}, "sub.py")
    assert "self.net = prepare_fully_shard(net)" in made
