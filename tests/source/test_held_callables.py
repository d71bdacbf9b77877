"""Functions that are given away, and called elsewhere with a sharded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("def make(m):\n    return Clip(m)\nBackend(optimizer_factory=make)\n", True),
        ("Backend(optimizer_factory=lambda m: Clip(m))\n", True),
        ("Backend(optimizer_factory=Clip)\n", True),
        ("def launch(optimizer_factory):\n    Backend(optimizer_factory=optimizer_factory)\n", False),
        (
            (
                "def launch(optimizer_factory):\n    Backend(optimizer_factory=optimizer_factory)\n"
                "launch(optimizer_factory=Clip)\n"
            ),
            True,
        ),
        ("Other(optimizer_factory=Clip)\n", False),
        ("Backend(other_factory=Clip)\n", False),
    ],
)
def test_a_function_that_is_given_away_and_called_with_a_model(
    tmp_path: Path, given: str, is_said: bool
) -> None:
    backend = (
        "class Backend:\n    def __init__(self, optimizer_factory=None, other_factory=None):\n"
        "        self._make = optimizer_factory\n        self._other = other_factory\n"
        "    def prepare(self, net):\n        self.net = FSDP(net)\n"
        "        self.optimizer = self._make(self.net)\n"
    )
    clip = (
        "import torch\nclass Clip:\n    def __init__(self, model):\n"
        "        self.params = [p for p in model.parameters() if p.requires_grad]\n"
        "    def norm(self):\n        return sum(p.grad.float().square().sum() for p in self.params)\n"
    )
    texts = {
        "backend.py": f"{FSDP}{backend}",
        "clip.py": clip,
        "run.py": f"from backend import Backend\nfrom clip import Clip\nfrom more import Other\n{given}",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    said = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("clip.py")}
    assert ("FM423" in said) is is_said
