"""Methods that a loop calls on objects of which nothing is seen: callbacks of a project's own Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MAIN = (
    "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n\nclass Loop:\n"
    "    def __init__(self, net, optimizer, callbacks):\n        self.callbacks = callbacks\n"
    "        accelerator = Accelerator(fsdp_plugin={})\n"
    "        self.model, self.optimizer = accelerator.prepare(net, optimizer)\n\n"
    "    def run(self):\n        for callback in self.callbacks:\n            {}\n"
)
OWN = "class Probe:\n    def {}:\n        return [p.grad.cpu().numpy() for p in {}.parameters()]\n"
PLUGIN = "FullyShardedDataParallelPlugin()"


def codes(folder: Path, main: str, own: str) -> set[str]:
    (folder / "main.py").write_text(main)
    (folder / "own.py").write_text(own)
    return {use.code for use in scan_paths([folder]).uses if use.path.endswith("own.py")}


@pytest.mark.parametrize(
    ("call", "method", "model", "is_one"),
    [
        ("callback.on_end(self, 1)", "on_end(self, loop, step)", "loop.model", True),
        ("callback.on_end(self.model)", "on_end(self, model)", "model", True),
        ("callback.on_end(model=self.model)", "on_end(self, model=None)", "model", True),
        ("callback.on_end(self, 1)", "on_end(self, *things)", "self.net", False),
        # Another method, and one that takes less.
        ("callback.on_start(self)", "on_end(self, loop)", "loop.model", False),
        ("callback.on_end(self, 1)", "on_end(self, loop)", "loop.model", False),
        ("callback.on_end(step=self)", "on_end(self, loop)", "loop.model", False),
        # Of any objects of Python and torch.
        ("callback.update(self)", "update(self, loop)", "loop.model", False),
    ],
)
def test_what_a_loop_gives_to_callbacks(
    tmp_path: Path, call: str, method: str, model: str, *, is_one: bool
) -> None:
    own = OWN.format(method, model)
    assert codes(tmp_path, MAIN.format(PLUGIN, call), own) == ({"FM423"} if is_one else set())
    assert codes(tmp_path, MAIN.format("None", call), own) == set()


def test_what_no_loop_goes_through_is_left_alone(tmp_path: Path) -> None:
    main = MAIN.format(PLUGIN, "other.on_end(self)")
    assert codes(tmp_path, main, OWN.format("on_end(self, loop)", "loop.model")) == set()
