"""Parameters of a sharded model, however a project takes them, and what its optimizers hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

LIB = """\
import functools
import torch

def listed(model):
    return [p for p in model.parameters() if p.requires_grad]

def one_by_one(model):
    for p in model.parameters():
        if p.requires_grad:
            yield p

def named(model):
    return {n: p for n, p in model.named_parameters()}

def split(model):
    decay, rest = [], []
    for n, p in model.named_parameters():
        (rest if "bias" in n else decay).append(p)
    return decay, rest

class Keeper:
    def __init__(self, model):
        self.model = model

    def get(self):
        return [p for p in self.model.parameters() if p.requires_grad]

class Net(torch.nn.Module):
    def trainable(self):
        return [p for p in self.parameters() if p.requires_grad]

def make(model, lr):
    return torch.optim.AdamW(model.parameters(), lr=lr)
"""
MAIN = (
    f"{FSDP}import torch\nfrom lib import Keeper, Net, listed, make, named, one_by_one, split\n\n"
    "def main(net, cfg, kept):\n    model = {}\n    {}\n    {}  # here\n"
)
TAKEN = [
    ("pass", "for p in listed(model): n = p.grad.norm() ** 2"),
    ("pass", "for p in one_by_one(model): n = p.grad.norm() ** 2"),
    ("held = named(model)", "for p in held.values(): n = p.grad.norm() ** 2"),
    ("decay, rest = split(model)", "for p in rest: n = p.grad.norm() ** 2"),
    ("keeper = Keeper(model)", "for p in keeper.get(): n = p.grad.norm() ** 2"),
    ("pass", "for p in model.trainable(): n = p.grad.norm() ** 2"),
    ("own = list(model.a.parameters()) + list(model.b.parameters())", "n = [p.grad.norm() for p in own]"),
    ("own = [*model.a.parameters(), *model.b.parameters()]", "n = [p.grad.norm() for p in own]"),
    ("pass", "for p in [model.a.weight, model.b.weight]: n = p.grad.norm() ** 2"),
    ("pass", "torch.nn.utils.clip_grad_norm_([model.a.weight], 1.0)"),
    ("pass", "n = list(map(lambda p: p.grad.norm() ** 2, model.parameters()))"),
    ("pass", "p = max(model.parameters(), key=lambda p: p.grad.norm())"),
    ("own = next(model.parameters())", "torch.nn.utils.clip_grad_norm_(own, 1.0)"),
]


def _said(folder: Path, body: tuple[str, str], model: str) -> bool:
    main = MAIN.format(model, *body)
    (folder / "lib.py").write_text(LIB)
    (folder / "main.py").write_text(main)
    line = next(number for number, text in enumerate(main.split("\n"), 1) if "# here" in text)
    files = {file.path: file for file in scan_paths([folder]).files}
    file = files.get(str(folder / "main.py"))
    return file is not None and any(use.line == line and use.action == "commented" for use in file.uses)


@pytest.mark.parametrize("body", TAKEN)
def test_parameters_are_a_sharded_models_however_they_are_taken(
    tmp_path: Path, body: tuple[str, str]
) -> None:
    assert _said(tmp_path, body, "FSDP(Net())")


@pytest.mark.parametrize("body", TAKEN)
def test_a_plain_models_parameters_are_plain(tmp_path: Path, body: tuple[str, str]) -> None:
    assert not _said(tmp_path, body, "Net()\n    other = FSDP(net)")


OPTIMIZERS = [
    "opt = getattr(torch.optim, cfg.name)(model.parameters(), lr=0.1)",
    "pick = torch.optim.SGD if cfg.sgd else torch.optim.AdamW\n    opt = pick(model.parameters(), lr=0.1)",
    "opt = instantiate(cfg.optimizer, params=model.parameters())",
    "opt = model.configure_optimizers(0.1)",
    "opt = create_optimizer_v2(model, opt='lamb')",
    "opt = make(model, 0.1)",
]


@pytest.mark.parametrize("made", OPTIMIZERS)
@pytest.mark.parametrize(
    "use",
    [
        "n = opt.state[kept]['exp_avg'].norm() ** 2",
        "n = [p.grad.norm() for group in opt.param_groups for p in group['params']]",
    ],
)
def test_an_optimizer_of_a_sharded_model_holds_dtensors_whatever_makes_it(
    tmp_path: Path, made: str, use: str
) -> None:
    assert _said(tmp_path, (made, use), "FSDP(Net())")
    assert not _said(tmp_path, (made, use), "Net()\n    other = FSDP(net)")


@pytest.mark.parametrize(
    "use", ["torch.save(opt.state_dict(), cfg.path)", "opt.load_state_dict(torch.load(cfg.path))"]
)
@pytest.mark.parametrize("made", OPTIMIZERS)
def test_its_state_is_one_ranks_part(tmp_path: Path, made: str, use: str) -> None:
    assert _said(tmp_path, (made, use), "FSDP(Net())")
    assert not _said(tmp_path, (made, use), "Net()\n    other = FSDP(net)")
