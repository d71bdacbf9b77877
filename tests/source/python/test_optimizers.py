"""What an optimizer of a sharded model holds is followed: its groups, and what it keeps for parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths
from tests.source.samples import IMPORTS, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MADE = "m = FSDP(net)\nopt = torch.optim.AdamW({})\n"
PLAIN = MADE.format("m.parameters(), lr=0.1")
OF_GROUPS = "for g in opt.param_groups:\n    for p in g['params']:\n        {}\n"


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        (OF_GROUPS.format("x += p.grad.norm() ** 2"), True),
        (OF_GROUPS.format("torch.distributed.all_reduce(p.grad)"), True),
        (OF_GROUPS.format("p.data = p.data.half()"), True),
        (OF_GROUPS.format("p.grad.mul_(0.5)"), False),
        (OF_GROUPS.format("p.data.copy_(p.data.float())"), False),
        (OF_GROUPS.format("n += p.numel()"), False),
        ("x = [p.norm() for g in opt.param_groups for p in g['params']]\n", True),
        ("x = opt.param_groups[0]['params'][0].tolist()\n", True),
        ("for g in opt.param_groups:\n    g['lr'] = max(g['lr'], 0.1)\n", False),
        ("for p in m.parameters():\n    x = opt.state[p]['exp_avg'].norm()\n", True),
        ("for p in m.parameters():\n    x = opt.state[p]['step'].item()\n", False),
        ("x = [s['step'].item() for s in opt.state.values()]\n", False),
        (
            "for s in opt.state.values():\n    for k, v in s.items():\n        x = torch.isnan(v).any()\n",
            True,
        ),
        ("for s in opt.state.values():\n    for k, v in s.items():\n        s[k] = v.to('cpu')\n", False),
        ("for g in other.param_groups:\n    for p in g['params']:\n        p.grad.norm()\n", False),
    ],
)
def test_groups_and_state_hold_dtensors(use: str, is_said: bool) -> None:
    assert (("FM423", "commented") in codes(PLAIN + use)) is is_said


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("[{'params': m.head.parameters(), 'lr': 1}, {'params': m.body.parameters()}]", True),
        ("params=[p for p in m.parameters() if p.requires_grad]", True),
        ("[{'params': other.parameters(), 'lr': 1}]", False),
        ("other.parameters(), m.lr", False),
    ],
)
def test_what_the_optimizer_is_made_of(given: str, is_said: bool) -> None:
    found = codes(MADE.format(given) + OF_GROUPS.format("x += p.grad.norm() ** 2"))
    assert (("FM423", "commented") in found) is is_said


def test_clipping_by_groups_is_clipping_of_the_model() -> None:
    body = "for g in opt.param_groups:\n    torch.nn.utils.clip_grad_norm_(g['params'], 1.0)\n"
    assert ("FM326", "commented") in codes(PLAIN + body)
    assert "FM326" not in dict(codes(PLAIN + body.replace("opt.", "other.")))


def test_an_optimizer_is_followed_into_functions_and_objects() -> None:
    log = "def log(opt):\n    return [p.norm() for g in opt.param_groups for p in g['params']]\n\n\n"
    assert ("FM423", "commented") in codes(f"{log}{PLAIN}log(opt)\n")
    assert "FM423" not in dict(codes(f"{log}{PLAIN}log(other)\n"))
    kept = (
        "class T:\n    def __init__(self, net):\n        self.m = FSDP(net)\n"
        "        self.opt = torch.optim.SGD(self.m.parameters(), lr=1)\n"
        "    def log(self):\n"
        "        return [p.grad.norm() for g in self.opt.param_groups for p in g['params']]\n"
    )
    assert ("FM423", "commented") in codes(kept)


def test_and_into_functions_of_other_files(tmp_path: Path) -> None:
    clip = "def norms(optimizer):\n    for g in optimizer.param_groups:\n        for p in g['params']:\n"
    (tmp_path / "norms.py").write_text(f"{clip}            print(p.grad.norm())\n")
    main = f"{IMPORTS}from norms import norms\n\n{PLAIN}norms(opt)\n"
    (tmp_path / "main.py").write_text(main)
    left = {file.path.rpartition("/")[2]: file.after for file in rewrite_paths([tmp_path]).changed}
    assert left.get("norms.py", "").count("# fsdp-migrate: FM423") == 1
