"""Recurrent layers in projects that Accelerate shards: torch moves their weights, and FSDP2 does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAIN = (
    "from accelerate import Accelerator\nfrom model import Net\n\n\n"
    "accelerator = Accelerator()\nmodel = accelerator.prepare(Net())\n"
)


NET = "from {} import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        self.x = nn.{}(2, 2)\n"
KINDS = "from torch.nn import GRU, LSTM\n\ncells = {'gru': GRU, 'lstm': LSTM}\n"
PICKED = "\n\nclass Net:\n    def __init__(self, cell):\n        self.x = {}(2, 2)\n"


@pytest.mark.parametrize(
    ("made", "is_one"),
    [
        (NET.format("torch", "LSTM"), True),
        ("import torch\n\n\nclass Net(torch.nn.GRU):\n    pass\n", True),
        (NET.format("torch", "LSTMCell"), False),
        (NET.format("mine", "LSTM"), False),
        (f"{KINDS}{PICKED.format('cells[cell]')}", True),
        ("from torch import nn\n" + PICKED.format("(nn.GRU if cell else nn.LSTM)"), True),
        ("from torch import nn\n" + PICKED.format("getattr(nn, cell)") + "\n\nNet('LSTM')\n", True),
        ("from torch import nn\n" + PICKED.format("getattr(nn, cell)") + "\n\nNet('Linear')\n", False),
        ("from torch import nn\n" + PICKED.format("getattr(nn, 'Linear')") + "\n\nNet('LSTM')\n", False),
        ("from torch import nn\n" + PICKED.format("getattr(nn, conv)") + "\n\nNet('LSTM')\n", False),
        ("from torch.nn import LSTM\n\ncell = LSTM\n\n\ndef f():\n    return cell(2, 2)\n", True),
        ("from torch.nn import LSTM\n\n\ndef is_one(x: LSTM):\n    return isinstance(x, LSTM)\n", False),
        (
            "from torch.nn import GRU, LSTM\n\n\ndef is_one(x):\n    return isinstance(x, (GRU, LSTM))\n",
            False,
        ),
    ],
)
def test_recurrent_layers_under_accelerate(tmp_path: Path, made: str, *, is_one: bool) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "model.py").write_text(made)
    for kind, expected in (("FSDP", is_one), ("MULTI_GPU", False)):
        (tmp_path / "fsdp.yaml").write_text(YAML.format(kind))
        found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM343"]
        assert ["flatten_parameters" in use.becomes for use in found] == [True] * expected
    (tmp_path / "fsdp.yaml").write_text(YAML.format("FSDP"))
    rewrite_paths([tmp_path], write=True)
    assert ("FM343" in (tmp_path / "model.py").read_text()) == is_one
    assert rewrite_paths([tmp_path]).changed == ()


@pytest.mark.parametrize(
    ("beside", "is_said"), [("", False), (TRAIN.replace("from model import Net\n", ""), True)]
)
def test_a_layer_in_a_test_is_one_of_a_test_that_prepares_it(
    tmp_path: Path, beside: str, *, is_said: bool
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "fsdp.yaml").write_text(YAML.format("FSDP"))
    (tmp_path / "test_model.py").write_text(f"{NET.format('torch', 'LSTM')}{beside}")
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM343"]
    assert bool(found) is is_said


def test_nothing_is_said_where_prepare_fully_shard_leaves_them_in_place(tmp_path: Path) -> None:
    imports = "from torch import nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    (tmp_path / "train.py").write_text(f"{imports}\n\nmodel = FSDP(nn.LSTM(2, 2))\n")
    assert "FM343" not in {use.code for use in scan_paths([tmp_path]).uses}
