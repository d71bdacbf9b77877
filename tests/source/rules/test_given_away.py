"""Collections of a sharded model's parameters that are given to what takes plain tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import IMPORTS, MODEL, codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


HEADER = f"{IMPORTS}import torch.distributed as dist\n\n"
STATE = "state = {n: p.detach().cpu().clone() for n, p in model.named_parameters()}\n"
FILLED = "state = {}\nfor n, p in model.named_parameters():\n    state[n] = p.data.cpu()\n"
CLEANED = f"{STATE}clean = {{}}\nfor k, v in state.items():\n    clean[k.strip()] = v\n"


def is_said(body: str) -> bool:
    return ("FM423", "commented") in codes(MODEL + body, HEADER)


@pytest.mark.parametrize("made", [STATE, FILLED, "state = dict(model.named_parameters())\n"])
@pytest.mark.parametrize(
    "use",
    [
        "other.load_state_dict(state, strict=False)\n",
        "torch.save(state, path)\n",
        "torch.save({'ema': state, 'step': 1}, path)\n",
        "queue.put(state)\n",
        "dist.broadcast_object_list([state], src=0)\n",
    ],
)
def test_dicts_of_parameters(made: str, use: str) -> None:
    assert is_said(made + use)


@pytest.mark.parametrize(
    "body",
    [
        f"{CLEANED}other.load_state_dict(clean)\n",
        "other.load_state_dict({n: p for n, p in model.named_parameters()})\n",
        "ps = []\nps.extend(model.parameters())\ntorch.save(ps, path)\n",
        "ps = []\nps += [p.grad for p in model.parameters()]\ntorch.save(ps, path)\n",
        (
            "class T:\n    def f(self, net):\n        self.net = FSDP(net)\n        self.kept = {}\n"
            "        for n, p in self.net.named_parameters():\n            self.kept[n] = p.data.clone()\n"
            "    def save(self):\n        torch.save(self.kept, 'x')\n"
        ),
    ],
)
def test_however_they_are_collected(body: str) -> None:
    assert is_said(body)


@pytest.mark.parametrize(
    "body",
    [
        "state = {n: p.full_tensor() for n, p in model.named_parameters()}\nother.load_state_dict(state)\n",
        f"{STATE}print(state)\n",
        f"{STATE}scheduler.load_state_dict(state)\n",
        "sizes = {n: p.numel() for n, p in model.named_parameters()}\ntorch.save(sizes, path)\n",
        "state = {n: p for n, p in other.named_parameters()}\ntorch.save(state, path)\n",
        f"with FSDP.summon_full_params(model):\n    {STATE}torch.save(state, path)\n",
        "names = []\nfor n, p in model.named_parameters():\n    names.append(n)\ntorch.save(names, path)\n",
    ],
)
def test_what_holds_no_dtensors_is_not(body: str) -> None:
    assert not is_said(body)


KEEPS = "        self.kept = {n: p.detach().clone() for n, p in module.named_parameters()}\n"


@pytest.mark.parametrize(
    ("saves", "said"),
    [
        (
            "on_save_checkpoint(self, trainer, module, checkpoint):\n        checkpoint['a'] = self.kept\n",
            True,
        ),
        (
            "on_save_checkpoint(self, trainer, module, checkpoint):\n        checkpoint['a'] = self.decay\n",
            False,
        ),
        ("on_save_checkpoint(self, trainer, module, checkpoint):\n        other['a'] = self.kept\n", False),
        ("on_fit_end(self, trainer, module, checkpoint=None):\n        checkpoint['a'] = self.kept\n", False),
    ],
)
def test_what_a_callback_of_lightnings_puts_into_its_checkpoints(
    tmp_path: Path, saves: str, *, said: bool
) -> None:
    body = (
        "from lightning.pytorch import Callback, Trainer\n"
        "from lightning.pytorch.strategies import FSDPStrategy\n\n\nclass Own(Callback):\n"
        f"    def __init__(self):\n        self.kept = {{}}\n        self.decay = 0.9\n\n"
        f"    def on_fit_start(self, trainer, module):\n{KEEPS}\n    def {saves}\n\n"
        "trainer = Trainer(strategy=FSDPStrategy(), devices=2, callbacks=[Own()])\n"
    )
    (tmp_path / "train.py").write_text(body)
    assert ("FM423" in {use.code for use in scan_paths([tmp_path]).uses}) is said
