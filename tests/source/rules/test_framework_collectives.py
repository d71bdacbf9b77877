"""Accelerate's and Lightning's collectives, given parameters of a sharded model, and norms as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "import accelerate\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "from accelerate.utils import gather, reduce\n\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\n"
)
DDP = (
    "from accelerate import Accelerator\n\naccelerator = Accelerator()\nmodel = accelerator.prepare(model)\n"
)
FABRIC = (
    "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n\n"
    "fabric = Fabric(strategy=FSDPStrategy(), devices=2)\nmodel = fabric.setup_module(model)\n"
)
LOOP = "for p in model.parameters():\n    "
OF_A_CLASS = (
    f"{ACCELERATE}\n\nclass Trainer:\n    def clip(self):\n"
    "        self.norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
)
IN_A_BLOCK = (
    f"{ACCELERATE}\n\nclass Trainer:\n    def clip(self):\n        if sync:\n"
    "            self.norm: float = accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"
    "            self.norm: float = self.norm.item()\n        else:\n            self.norm = None\n"
)
NUMBER = "self.norm = self.norm.item()\n"
LOCAL = "here = norm.detach().float() if torch.is_tensor(norm) else torch.tensor(norm)\n"
CLIPS = "norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)\n"


def is_said(text: str) -> bool:
    return "framework-collectives" in {use.rule for use in scan_source(text)}


@pytest.mark.parametrize(
    "text",
    [
        f"{ACCELERATE}{LOOP}g = accelerator.gather(p.grad)\n",
        f"{ACCELERATE}{LOOP}g = accelerator.reduce(p.grad.detach(), 'mean')\n",
        f"{ACCELERATE}{LOOP}g = gather(p)\n",
        f"{ACCELERATE}{LOOP}g = accelerate.utils.pad_across_processes(p)\n",
        f"{ACCELERATE}{CLIPS}x = norm.cpu().numpy()\n",
        f"{ACCELERATE}{CLIPS}x = norm.tolist()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.as_tensor(norm).reshape(-1).float().cpu().numpy()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.as_tensor(norm).cpu().tolist()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.stack([norm, norm]).mean().numpy()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = f'{{torch.atleast_1d(norm):.3f}}'\n",
        f"{ACCELERATE}{CLIPS}row = norm.detach().reshape(-1)\nx = row.numpy()\n",
        f"{ACCELERATE}{CLIPS}x = norm.data.to('cpu').view(1).numpy()\n",
        f"{ACCELERATE}{CLIPS}x = format(norm, '.3f')\n",
        f"{ACCELERATE}{CLIPS}x = torch.tensor([1.0, norm])\n",
        f"{ACCELERATE}{CLIPS}print(f'norm {{norm:.3f}}')\n",
        f"{ACCELERATE}{CLIPS}print('norm {{:.3f}}'.format(norm))\n",
        f"{ACCELERATE}{CLIPS}print(format(norm.detach(), '.3f'))\n",
        f"import numpy as np\n{ACCELERATE}{CLIPS}x = np.mean([norm, norm])\n",
        f"import numpy as np\n{ACCELERATE}norms = []\n{CLIPS}norms.append(norm)\nx = np.mean(norms)\n",
        f"import torch\n{ACCELERATE}{CLIPS}total = torch.zeros(1)\ntotal += norm\n",
        f"import torch\n{ACCELERATE}{CLIPS}total = torch.zeros(1)\ntotal.add_(norm)\n",
        f"{ACCELERATE}{CLIPS}if rank:\n    norm = norm.item()\nprint(f'{{norm:.3f}}')\n",
        f"{ACCELERATE}{CLIPS}if hasattr(norm, 'item'):\n    print(f'{{norm:.3f}}')\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = gather(torch.isfinite(norm).long())\n",
        f"import torch\n{ACCELERATE}{CLIPS}bad = ~torch.isfinite(norm)\nx = accelerator.gather(bad)\n",
        f"import torch\n{ACCELERATE}{CLIPS}{LOCAL}x = accelerator.reduce((~here.isfinite()).int())\n",
        f"{ACCELERATE}{CLIPS}bad = norm > 5.0\nx = accelerator.gather(bad.long())\n",
        f"{OF_A_CLASS}        print(f'{{self.norm:.3f}}')\n",
        f"{OF_A_CLASS}        if rank == 0:\n            {NUMBER}        print(f'{{self.norm:.3f}}')\n",
        f"{FABRIC}g = fabric.all_gather(model.head.weight)\n",
        f"{FABRIC}{LOOP}g = fabric.all_reduce(p.grad)\n",
    ],
)
def test_what_takes_no_dtensors(text: str) -> None:
    assert is_said(text)


@pytest.mark.parametrize(
    "text",
    [
        f"{ACCELERATE}{CLIPS}x = norm.item()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.as_tensor(norm.item()).reshape(-1).numpy()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.as_tensor(norm.full_tensor()).reshape(-1).numpy()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.as_tensor(loss).reshape(-1).float().cpu().numpy()\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = torch.as_tensor(norm).reshape(-1).mean().item()\n",
        f"{ACCELERATE}{CLIPS}row = norm.reshape(-1)\nif x:\n    row = loss\ny = row.numpy()\n",
        f"import torch\n{ACCELERATE}{CLIPS}total = 0.0\ntotal += norm\nx = norm.add_(1)\n",
        f"import torch\n{ACCELERATE}{CLIPS}total = torch.zeros(1)\ntotal += norm.item()\nx = total + norm\n",
        f"import numpy as np\n{ACCELERATE}{CLIPS}x = np.mean([norm.item()])\n",
        f"{ACCELERATE}{CLIPS}print(f'{{norm.item():.3f}} {{norm}} {{loss:.3f}}', '{{}}'.format(norm))\n",
        f"{DDP}{CLIPS}print(f'{{norm:.3f}}')\n",
        f"{ACCELERATE}x = accelerator.gather(loss)\ny = loss.cpu().numpy()\n",
        f"{ACCELERATE}{LOOP}g = accelerator.gather(p.to_local())\n",
        f"{DDP}{LOOP}g = accelerator.gather(p.grad)\n",
        f"{DDP}{CLIPS}x = norm.cpu().numpy()\n",
        f"{DDP}{CLIPS}print(f'norm {{norm:.3f}}')\n",
        f"{ACCELERATE}{CLIPS}meter.update(norm)\ny = 'norm'.format(norm)\n",
        f"{ACCELERATE}{CLIPS}print(f'norm {{norm}}')\n",
        f"{ACCELERATE}{CLIPS}print(f'norm {{norm.item():.3f}} {{x:.3f}}')\n",
        f"{ACCELERATE}{CLIPS}print('norm {{:.3f}}'.format(norm.item()))\n",
        f"{ACCELERATE}{CLIPS}if hasattr(norm, 'item'):\n    norm = norm.item()\nprint(f'{{norm:.3f}}')\n",
        f"{ACCELERATE}{CLIPS}x = torch.tensor([norm.item() if torch.is_tensor(norm) else norm])\n",
        f"{ACCELERATE}{CLIPS}if torch.is_tensor(norm):\n    norm = float(norm)\nx = f'{{norm:.3f}}'\n",
        f"{ACCELERATE}{CLIPS}x = norm.item() if isinstance(norm, Tensor) else norm\ny = f'{{x:.3f}}'\n",
        f"import torch\n{ACCELERATE}{CLIPS}x = accelerator.gather(torch.isfinite(norm.full_tensor()))\n",
        f"import torch\n{ACCELERATE}{CLIPS}bad = not torch.isfinite(norm)\nx = accelerator.gather(bad)\n",
        f"import torch\n{ACCELERATE}{CLIPS}bad = 5.0 in norm\nx = accelerator.gather(bad)\n",
        f"{ACCELERATE}{CLIPS}norm = norm.detach().cpu().item()\nprint(f'{{norm:.3f}}')\n",
        f"{ACCELERATE}{CLIPS}norm = float(norm)\nx = norm.tolist()\n",
        f"{IN_A_BLOCK}        print(f'{{self.norm:.3f}}')\n",
        f"{OF_A_CLASS}        {NUMBER}        print(f'{{self.norm:.3f}}')\n",
        f"{FABRIC}x = fabric.all_gather(loss)\n",
        f"{FABRIC.replace('FSDPStrategy()', chr(39) + 'ddp' + chr(39))}{LOOP}g = fabric.all_reduce(p.grad)\n",
    ],
)
def test_what_is_the_same_is_not_said(text: str) -> None:
    assert not is_said(text)


ENGINE = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin


class Engine:
    def __init__(self, model, optimizer):
        self.acc = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        self.model, self.optimizer = self.acc.prepare(model, optimizer)

    def step(self, loss):
        norm = None
        if self.acc.sync_gradients:
            norm = self.acc.clip_grad_norm_(self.model.parameters(), 1.0)
        self.last = norm
        {}
"""
RUNS = "def main(model, optimizer, loss):\n    engine = Engine(model, optimizer)\n    {}\n"


@pytest.mark.parametrize(
    ("returns", "uses", "is_found"),
    [
        ("return norm", "print(f'{engine.step(loss):.2f}')", True),
        ("return loss, norm", "loss, norm = engine.step(loss)\n    print(f'{norm:.2f}')", True),
        ("return {'norm': norm}", "logs = engine.step(loss)\n    print('%s', logs['norm'].numpy())", True),
        ("return norm", "engine.step(loss)\n    print(f'{engine.last:.2f}')", True),
        (
            "return loss, norm",
            "loss, norm = engine.step(loss)\n    print(f'{loss:.2f} {norm.item():.2f}')",
            False,
        ),
        ("return loss, norm.item()", "loss, norm = engine.step(loss)\n    print(f'{norm:.2f}')", False),
    ],
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_the_norm_that_a_function_gives(
    tmp_path: Path, returns: str, uses: str, *, is_found: bool, is_apart: bool
) -> None:
    engine, run = ENGINE.format(returns), RUNS.format(uses)
    files = {"engine": engine, "run": f"from engine import Engine\n\n\n{run}"}
    for name, text in (files if is_apart else {"run": f"{engine}\n\n{run}"}).items():
        (tmp_path / f"{name}.py").write_text(text)
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "framework-collectives"]
    assert bool(found) is is_found
    assert all("gives the norm as a DTensor" in use.becomes for use in found)
