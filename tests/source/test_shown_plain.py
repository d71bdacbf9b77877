"""Objects that are made of plain models at a place, of a class that others give sharded ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SHELL = """\
import torch

class Shell(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def named_parameters(self, *args):
        return self.net.named_parameters(*args)

    def trained(self):
        return [p for p in self.net.parameters() if p.requires_grad]

    def inner(self):
        return self.net
"""
SHARDED = f"{FSDP}from shell import Shell\n\ndef other(net):\n    return Shell(FSDP(net))\n"
USE = "import torch\nfrom torch import nn\nfrom shell import Shell\nfrom other import other\n\n{}"
ASKED = [
    "for _, p in shell.named_parameters():\n        print(p.grad.cpu().numpy())",
    "for p in shell.trained():\n        print(p.grad.cpu().numpy())",
    "for p in shell.net.parameters():\n        print(p.grad.cpu().numpy())",
    "for p in shell.inner().parameters():\n        print(p.grad.cpu().numpy())",
    "torch.nn.utils.clip_grad_norm_(shell.net.parameters(), 1.0)",
]
PLAIN = [
    "shell = Shell(nn.Linear(4, 4).cuda())",
    "net = nn.Linear(4, 4)\n    shell = Shell(net.to('cuda'))",
    "model = nn.Linear(4, 4)\n    model = Shell(model)\n    shell = model",
    "shell = build()",
]
MAY_BE = ["shell = Shell(net)", "shell = Shell(cfg.net)", "shell = Shell(cfg.make())", "shell = other(net)"]
BUILD = "def build():\n    return Shell(nn.Linear(4, 4))\n\n"


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("made", [*PLAIN, MAY_BE[-1]])
def test_an_object_has_the_models_that_it_was_made_of(tmp_path: Path, made: str, asked: str) -> None:
    main = USE.format(f"{BUILD}def main(cfg, net):\n    {made}\n    {asked}\n")
    assert _is_said(tmp_path, main) is (made in MAY_BE)


@pytest.mark.parametrize("made", MAY_BE)
def test_an_object_of_what_is_not_shown_may_have_a_sharded_one(tmp_path: Path, made: str) -> None:
    assert _is_said(tmp_path, USE.format(f"def main(cfg, net):\n    {made}\n    {ASKED[1]}\n"))


def test_what_the_place_shards_since_is_no_plain_model(tmp_path: Path) -> None:
    body = "    net = nn.Linear(4, 4)\n    shell = Shell(net)\n    {}\n    {}\n"
    for since, is_said in (("shell.net = FSDP(shell.net)", True), ("torch.compile(net)", False)):
        main = USE.format(f"{FSDP}\ndef main():\n" + body.format(since, ASKED[2]))
        assert _is_said(tmp_path, main) is is_said


def test_an_object_that_holds_a_sharded_model_is_no_plain_one(tmp_path: Path) -> None:
    held = "class Held(nn.Module):\n    def __init__(self, net):\n        self.body = {}\n\n"
    body = "def main(net):\n    shell = Shell(Held(net))\n    " + ASKED[0] + "\n"
    assert _is_said(tmp_path, USE.format(FSDP + held.format("FSDP(net)") + body))
    assert not _is_said(tmp_path, USE.format(FSDP + held.format("nn.Linear(2, 2)") + body))


def _is_said(folder: Path, main: str) -> bool:
    for name, text in (("shell.py", SHELL), ("other.py", SHARDED), ("main.py", main)):
        (folder / name).write_text(text)
    found = (file for file in scan_paths([folder]).files if file.path.endswith("main.py"))
    return any(use.code in {"FM326", "FM334", "FM423"} for file in found for use in file.uses)
