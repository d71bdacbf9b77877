"""FSDP1's class, given to a function of the project that asks whether something is of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_source, scan_paths, scan_source
from fsdp_migrate.source.still_fsdp1 import still_fsdp1
from tests.source.projects import FSDP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

# As instructlab has it.
WRAPS = (
    "def wraps(module, kinds):\n    if isinstance(module, kinds):\n        return True\n"
    "    for child in module.children():\n        if wraps(child, kinds):\n            return True\n"
    "    return False\n"
)


def becomes(function: str, line: str) -> str:
    """Return the last line of a source once it is rewritten."""
    return rewrite_source(f"{FSDP}{function}{line}\n").splitlines()[-1]


@pytest.mark.parametrize(
    ("function", "line", "then"),
    [
        (WRAPS, "found = wraps(model, FSDP)", "found = wraps(model, FSDPModule)"),
        (WRAPS, "found = wraps(model, kinds=FSDP)", "found = wraps(model, kinds=FSDPModule)"),
        (WRAPS, "found = wraps(model, (FSDP, DDP))", "found = wraps(model, (FSDPModule, DDP))"),
        (
            "def count(net, kind):\n    return sum(isinstance(m, kind) for m in net.modules())\n",
            "print(count(net, FSDP))",
            "print(count(net, FSDPModule))",
        ),
        (
            "class Tool:\n    def asks(self, m, kind):\n        return isinstance(m, (kind, DDP))\n",
            "    def run(self, m): self.asks(m, FSDP)",
            "    def run(self, m): self.asks(m, FSDPModule)",
        ),
    ],
)
def test_the_class_that_is_asked_for_is_fsdp2s(function: str, line: str, then: str) -> None:
    assert becomes(function, line) == then


def test_so_is_one_that_is_asked_for_by_default() -> None:
    code = f"{FSDP}def is_one(m, kinds=(FSDP,)):\n    return isinstance(m, kinds)\n"
    assert "def is_one(m, kinds=(FSDPModule,)):" in rewrite_source(code)


@pytest.mark.parametrize(
    "function",
    [
        "def wraps(module, kinds):\n    return kinds(module)\n",
        "def wraps(module, kinds):\n    return module if isinstance(module, kinds) else kinds(module)\n",
        "def wraps(module, kinds):\n    other(kinds)\n    return isinstance(module, kinds)\n",
        "def wraps(module, kinds):\n    return isinstance(module, int)\n",
        "def wraps(module, kinds):\n    return isinstance(kinds, type)\n",
        "from tools import wraps\n",
        "def wraps(module, kinds):\n    kinds = kinds or DDP\n    return isinstance(module, kinds)\n",
    ],
)
def test_what_else_is_done_with_it_is_left_to_a_person(function: str) -> None:
    found = scan_source(f"{FSDP}{function}found = wraps(model, FSDP)\n")
    assert [use.code for use in found if use.action == "commented"] == ["FM303"]


def test_a_function_of_another_file_asks(tmp_path: Path) -> None:
    files = {"tools.py": WRAPS, "save.py": f"{FSDP}from tools import wraps\n\nfound = wraps(model, FSDP)\n"}
    assert "found = wraps(model, FSDPModule)" in after(tmp_path, files, "save.py")


def test_a_file_that_only_asks_does_not_train(tmp_path: Path) -> None:
    path = tmp_path / "save.py"
    path.write_text(
        f"{FSDP}{WRAPS}\ndef save(model):\n    if not wraps(model, FSDP):\n        raise TypeError\n"
    )
    assert still_fsdp1(scan_paths([tmp_path]).uses) == ()
    path.write_text(path.read_text().replace("isinstance(module, kinds)", "kinds(module)"))
    assert [use.code for use in still_fsdp1(scan_paths([tmp_path]).uses)] == ["FM303"]
