"""What objects keep of a model's parameters, where a class of another file shards it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEADER = "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
MAKES = "        self.accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
PREPARES = "        self.net, self.opt = self.accelerator.prepare(self.net, self.opt)\n"
COLLECTS = (
    "    def collect(self):\n        self.chosen = [p for p in self.net.parameters() if p.requires_grad]\n"
)
CLIPS = "    def clip(self):\n        self.accelerator.clip_grad_norm_(self.chosen, 1.0)\n"


def lines_said(folder: Path, files: dict[str, str]) -> list[str]:
    """Return the files with what keeps old parameters."""
    for name, text in files.items():
        (folder / name).write_text(text)
    uses = scan_paths([folder]).uses
    return sorted(use.path.rpartition("/")[2] for use in uses if use.code == "FM446")


@pytest.mark.parametrize(
    ("mixin", "runs", "expected"),
    [
        (f"{COLLECTS}{CLIPS}", "        self.collect()\n{}", ["mixin.py"]),
        (f"{COLLECTS}{CLIPS}", "{}        self.collect()\n", []),
        (f"{COLLECTS}{CLIPS}", "{}", []),
        (COLLECTS, "        self.collect()\n{}", []),
        (f"{COLLECTS}{CLIPS}".replace("self.net.", "self.other."), "        self.collect()\n{}", []),
        (
            f"    def collect(self, model):\n        self.chosen = list(model.head.parameters())\n{CLIPS}",
            "        self.collect(self.net)\n{}",
            ["mixin.py"],
        ),
    ],
)
def test_a_mixin(tmp_path: Path, mixin: str, runs: str, expected: list[str]) -> None:
    run = (
        f"{HEADER}from mixin import Clips\n\n\nclass Run(Clips):\n    def __init__(self, net, opt):\n{MAKES}"
        f"        self.net, self.opt = net, opt\n{runs.format(PREPARES)}"
    )
    assert lines_said(tmp_path, {"mixin.py": f"class Clips:\n{mixin}", "run.py": run}) == expected


@pytest.mark.parametrize(
    ("step", "expected"),
    [("self.accelerator.clip_grad_norm_(self.chosen)", ["own.py"]), ("print(len(self.chosen))", [])],
)
def test_a_class_that_derives_from_the_one_that_shards(
    tmp_path: Path, step: str, expected: list[str]
) -> None:
    base = (
        f"{HEADER}\n\nclass Base:\n    def __init__(self, net):\n{MAKES}        self.net = net\n"
        f"        self.build()\n{PREPARES}    def build(self):\n        self.opt = 1\n"
    )
    own = (
        "from base import Base\n\n\nclass Own(Base):\n    def build(self):\n        super().build()\n"
        "        self.chosen = []\n        for n, p in self.net.named_parameters():\n"
        f"            self.chosen.append(p)\n    def step(self):\n        {step}\n"
    )
    assert lines_said(tmp_path, {"base.py": base, "own.py": own}) == expected


ASKS = "        self.is_one = self.accelerator.distributed_type == DistributedType.FSDP\n"
BASE = (
    "from accelerate import Accelerator\nfrom accelerate.utils import DistributedType\n\n\nclass Base:\n"
    "    def setup(self, net, opt):\n        self.accelerator, self.net, self.opt = Accelerator(), net, opt\n"
)


@pytest.mark.parametrize(
    ("sets", "is_said"),
    [
        ("def patch(cls):\n    {}\n    cls.collect = collect\n\n\npatch(Base)\n", True),
        ("{}\nBase.collect = collect\n", True),
        ("{}\nsetattr(Base, 'collect', collect)\n", True),
        ("{}\nBase.other = collect\n", False),
        ("{}\n", False),
    ],
)
@pytest.mark.parametrize("is_asked", [True, False])
def test_a_method_that_is_set_from_outside(
    tmp_path: Path, sets: str, *, is_said: bool, is_asked: bool
) -> None:
    made = "def collect(self):\n{0}    self.chosen = [p for p in self.net.parameters()]\n"
    is_inner = "patch" in sets
    function = made.format("    " if is_inner else "").replace(
        "\n    ", "\n        " if is_inner else "\n    "
    )
    header, asks = (HEADER.replace("import torch\n", ""), "") if not is_asked else ("", ASKS)
    base = (
        f"{header}{BASE}{asks}        self.collect()\n{PREPARES}    def collect(self):\n        pass\n{CLIPS}"
    )
    if not is_asked:
        base = base.replace(
            "Accelerator(), net", "Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin()), net"
        )
    patch = "from base import Base\n\n\n" + sets.format(function.strip("\n").replace("{0}", ""))
    assert lines_said(tmp_path, {"base.py": base, "patch.py": patch}) == (["patch.py"] if is_said else [])


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        # Its own takes the place of the one that shards below, and shards above what it keeps.
        ("", []),
        ("        super().__init__(net, opt)\n", []),
        (
            (
                "        self.net = net\n        self.chosen = list(self.net.parameters())"
                "\n        super().__init__(net, opt)\n"
            ),
            ["own.py"],
        ),
    ],
)
def test_a_constructor_in_place_of_the_one_that_shards(
    tmp_path: Path, first: str, expected: list[str]
) -> None:
    begins = f"class {{}}:\n    def __init__(self, net, opt):\n{MAKES}        self.net, self.opt = net, opt\n"
    keeps = "        self.chosen = list(self.net.parameters())\n" if "chosen" not in first else ""
    base = f"{HEADER}{begins.format('Base')}{PREPARES}{CLIPS}"
    then = PREPARES if keeps else ""
    own = f"{HEADER}from base import Base\n\n\n{begins.format('Own(Base)')}{first}{then}{keeps}"
    assert lines_said(tmp_path, {"base.py": base, "own.py": own}) == expected
