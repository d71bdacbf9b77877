"""``.module`` of a model of which nothing shows whether it is the sharded one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.rules.test_unfollowed import found


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

IMPORTS = "from torch import nn\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n\n"
HOLDS = "class Holder:\n    def __init__(self, net, model):\n        self.model = {}\n    def run(self):\n"


@pytest.mark.parametrize(
    ("does", "text"),
    [
        ("def run(model):\n    return model.module.config\n", "model.module"),
        ("def run(x):\n    return x.runner.model.module\n", "x.runner.model.module"),
        ("def run(x):\n    return x['model'].module\n", "x['model'].module"),
        ("def run(model, net):\n    return net.module if hasattr(model, 'module') else 1\n", "net.module"),
        (
            "def run(model):\n    if isinstance(model, nn.Module):\n        return model.module\n",
            "model.module",
        ),
        ("def run(model, x):\n    if is_wrapper(x):\n        return model.module\n", "model.module"),
        ("def run(model: nn.Module):\n    return model.module\n", "model.module"),
        (
            "def run(model):\n    try:\n        inner = model.module\n    except KeyError:\n        pass\n",
            "model.module",
        ),
        (HOLDS.format("model") + "        return self.model.module\n", "self.model.module"),
    ],
)
def test_it_is_named(tmp_path: Path, does: str, text: str) -> None:
    said = found(tmp_path, IMPORTS + does)
    assert list(said) == [text]
    assert "take the model itself" in said[text]


@pytest.mark.parametrize(
    "does",
    [
        "def run(model):\n    return model.module if hasattr(model, 'module') else model\n",
        "def run(model):\n    while hasattr(model, 'module'):\n        model = model.module\n",
        "def run(model):\n    try:\n        i = model.module\n    except AttributeError:\n        i = 1\n",
        "def run(model):\n    return getattr(model, 'module', model)\n",
        "def run(model):\n    return model.module if isinstance(model, DDP) else model\n",
        "def run(model: DDP):\n    return model.module\n",
        "def run(model):\n    return model.module if is_wrapper(model) else model\n",
        "def run(model):\n    if isinstance(model, Own):\n        return model.module\n",
        "def run(model):\n    model = DDP(model)\n    return model.module\n",
        "def run(net):\n    model = nn.Linear(1, 1)\n    return model.module\n",
        "import core.model.module\nfrom core.model.module import Float16Module\n",
        "def run(model, x):\n    model.module = x\n",
        "def run(package):\n    return package.module\n",
        "def run(model, use_fsdp):\n    return model if use_fsdp else model.module\n",
        "class Net(nn.Module):\n    def forward(self, x):\n        return self.model.module(x)\n",
        HOLDS.format("DDP(net)") + "        return self.model.module\n",
    ],
)
def test_what_is_asked_first_or_is_in_another_wrapper_is_not(tmp_path: Path, does: str) -> None:
    assert found(tmp_path, IMPORTS + does) == {}


def test_the_state_of_it_is_said_once(tmp_path: Path) -> None:
    said = found(tmp_path, f"{IMPORTS}def run(model):\n    return model.module.state_dict()\n")
    assert list(said) == ["model.module.state_dict()"]


def test_what_a_framework_gave_is_not_named(tmp_path: Path) -> None:
    gives = (
        "def run(accelerator, model):\n    model = accelerator.{}(model)\n    return model.module.config\n"
    )
    assert found(tmp_path, gives.format("prepare")) == {}
    assert len(found(tmp_path, gives.format("give"))) == 1
