"""Optimizers that are made above the sharding of their model, and asked below it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEAD = f"{FSDP}import torch\nfrom use import show\n\n"
ASKED = [
    "print([p.grad.cpu().numpy() for g in opt.param_groups for p in g['params']])",
    "print([s['exp_avg'].cpu().numpy() for p, s in opt.state.items()])",
    "torch.save(opt.state_dict(), 'x')",
    "show(opt)",
]
USE = (
    "import torch\n\ndef show(opt):\n    for group in opt.param_groups:\n        for p in group['params']:\n"
    "            print(p.grad.cpu().numpy())\n"
)
MADE = [
    "opt = torch.optim.AdamW(net.parameters())",
    "opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])",
    "opt = torch.optim.AdamW([{'params': list(net.parameters()), 'lr': 1}])",
    "opt = torch.optim.AdamW(params=net.parameters())",
    "opt = make(net)",
]
SHARD = "model = FSDP(net, use_orig_params=True)"


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("made", MADE)
def test_an_optimizer_from_before_holds_what_is_sharded_since(tmp_path: Path, made: str, asked: str) -> None:
    made = made.replace("{", "{{").replace("}", "}}")
    body = f"def main(net, other):\n    {made}\n    {{}}\n    {{}}\n"
    assert _is_said(tmp_path, HEAD + body.format(SHARD, asked))
    # Asked above, and where another model is sharded.
    assert not _is_said(tmp_path, HEAD + body.format(asked, SHARD))
    assert not _is_said(tmp_path, HEAD + body.format(SHARD.replace("net", "other"), asked))


BRANCHES = f"""\
def main(net, cfg):
    opt = torch.optim.AdamW(net.parameters())
    if cfg.fsdp:
        {SHARD}
    else:
        {{}}
"""


@pytest.mark.parametrize("asked", ASKED)
def test_the_other_branch_has_the_plain_parameters(tmp_path: Path, asked: str) -> None:
    assert not _is_said(tmp_path, HEAD + BRANCHES.format(asked))


KEPT = f"""\
class Loop:
    def __init__(self, net):
        self.opt = torch.optim.AdamW({{}}.parameters())
        self.{SHARD}

    def save(self):
        {{}}
"""


@pytest.mark.parametrize("asked", ASKED)
def test_an_object_keeps_it(tmp_path: Path, asked: str) -> None:
    use = asked.replace("opt.", "self.opt.").replace("(opt)", "(self.opt)")
    assert _is_said(tmp_path, HEAD + KEPT.format("net", use))
    assert not _is_said(tmp_path, HEAD + KEPT.format("net.other", use))


def test_it_is_given_to_an_object_of_another_file(tmp_path: Path) -> None:
    loop = (
        "class Loop:\n    def __init__(self, model, opt):\n        self.opt = opt\n\n"
        "    def show(self):\n        for group in self.opt.param_groups:\n"
        "            print([p.grad.cpu().numpy() for p in group['params']])\n"
    )
    body = f"def main(net, other):\n    {MADE[0]}\n    {{}}\n    Loop(model, opt).show()\n"
    for shard, is_said in ((SHARD, True), (SHARD.replace("net", "other"), False)):
        main = HEAD.replace("from use import show", "from use import Loop") + body.format(shard)
        assert _is_said(tmp_path, main, loop) is is_said


def _is_said(folder: Path, main: str, use: str = USE) -> bool:
    (folder / "main.py").write_text(main)
    (folder / "use.py").write_text(use)
    return any(each.code in {"FM334", "FM336", "FM423", "FM425"} for each in scan_paths([folder]).uses)
