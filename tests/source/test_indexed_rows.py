"""Rows of gradients and parameters by an index are another thing now, without an error: that stops a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import WRAP
from tests.source.samples import codes, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MODEL = "m = FSDP(net)\n"
STEP = "def f(m: FSDP):\n    m(x).sum().backward()\n    "
EMBEDDING = "g = m.get_input_embeddings().weight.grad\n"


def said(body: str) -> list[tuple[str, bool]]:
    """Return what is said of DTensors: the code, and whether it is of a row that is written to."""
    return [
        (use.code, "goes into a copy" in use.becomes) for use in uses(MODEL + body) if use.rule == "dtensor"
    ]


@pytest.mark.parametrize(
    "body",
    [
        f"{EMBEDDING}mask = torch.zeros_like(g)\nmask[token] = torch.ones_like(mask[token])\n",
        f"{EMBEDDING}g[token] = 0\n",
        f"{EMBEDDING}g[token] *= 0\n",
        f"{EMBEDDING}g.data[3:9].zero_()\n",
        f"{EMBEDDING}g.narrow(0, 3, 6).zero_()\n",
        "if x:\n    g = m.emb.weight.grad\nelse:\n    g = m.get_input_embeddings().weight.grad\ng[i] = 0\n",
        "for p in m.parameters():\n    p.grad[0].zero_()\n",
        "for p in m.parameters():\n    p.data[i, j] = 0\n",
        "m.get_input_embeddings().weight[i].data.copy_(x)\n",
    ],
)
def test_a_row_that_is_written_to_is_said_once_and_stops_a_run(body: str) -> None:
    """It was FM336, of which no comment stops a run, or nothing."""
    assert said(body) == [("FM423", True)]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (f"{EMBEDDING}x = g[token]\n", "FM423"),
        ("for n, p in m.named_parameters():\n    x[n] = p[0]\n", "FM423"),
        (f"{EMBEDDING}print(g[0])\n", "FM334"),
        (f"{EMBEDDING}if rank == 0:\n    print(g[0])\n", "FM423"),
        (
            f"{STEP}m.head.weight.grad[m.head.weight.grad > 1] = 0\n",
            "FM336",
        ),
        (f"{STEP}m.head.weight.grad[2:5] = 0\n", "FM336"),
        (f"{STEP}m.head.weight.grad[...] = x\n", "FM336"),
        (f"{STEP}m.head.weight.grad[i] = torch.zeros(4)\n", "FM336"),
        (
            f"{STEP}m.head.weight.grad[i] = torch.zeros_like(y)\n",
            "FM423",
        ),
    ],
)
def test_what_is_read_stops_too_and_what_torch_refuses_ends_there(body: str, code: str) -> None:
    found = {each for each, action in codes(MODEL + body) if action == "commented" and each != "FM301"}
    assert found == {code}


@pytest.mark.parametrize(
    "body",
    [
        "g = other.get_input_embeddings().weight.grad\ng[token] = 0\n",
        "for pair in m.named_parameters():\n    names.append(pair[0])\n",
        "for pair in sorted(m.named_parameters()):\n    names.append(pair[0])\n",
        "for pair in zip(m.parameters(), sizes):\n    x += pair[1]\n",
        "for p in m.parameters():\n    x += p.shape[0]\n",
        "for p in m.parameters():\n    x = p.full_tensor()[0]\n    y = p.to_local()[0]\n",
        "for p in m.parameters():\n    x = p.chunk(4)[0]\n",
        "for p in m.parameters():\n    x = p.grad[:]\n    p.grad[...] = p.grad * 2\n    p.data[:].zero_()\n",
        "if x:\n    w = m.emb.weight\nelse:\n    w = m.emb.weight.full_tensor()\nw[i] = 0\n",
        "for p in m.parameters():\n    o.state[p]['step'] = x['step']\n",
        "for n, p in m.named_parameters():\n    ema[n] = x[n]\n",
        "with FSDP.summon_full_params(m):\n    m.emb.weight.data[i] = 0\n",
    ],
)
def test_what_is_no_row_of_a_sharded_tensor_is_left_alone(body: str) -> None:
    assert said(body) == []


TRAIN = (
    "import torch\n\n\ndef train({root}, token):\n    grad = model.net.{}.weight.grad\n"
    "    mask = torch.zeros_like(grad)\n    mask[token] = torch.ones_like(mask[token])\n"
    "    model.net.{}.weight.grad = grad * mask\n"
)
HOLDER = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from torch.distributed.fsdp.wrap import enable_wrap, wrap\nfrom torch import nn\n\n\n"
    "class Net(nn.Module):\n    def __init__(self, net):\n        super().__init__()\n"
    "        self.net = net\n\n    def shard(self):\n        with enable_wrap(wrapper_cls=FSDP):\n"
    "            self.net.emb = wrap(wrap(self.net.emb))\n"
)
MAIN = "from net import Net\nfrom train import train\n\nmodel = Net(x)\nmodel.shard()\ntrain(model, 3)\n"


@pytest.mark.parametrize(("does", "expected"), [("wrap(wrap(self.net.emb))", ["FM423"]), ("Layer()", [])])
def test_models_that_are_wrapped_by_hand_are_followed(tmp_path: Path, does: str, expected: list[str]) -> None:
    """Nothing was said in other files of what `wrap` gives: it is no call of FSDP1's class."""
    holder = HOLDER.replace("wrap(wrap(self.net.emb))", does)
    files = {"net.py": holder, "train.py": TRAIN.format("emb", "emb", root="model"), "main.py": MAIN}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = [use for use in scan_paths([tmp_path]).uses if use.path.endswith("train.py")]
    assert [use.code for use in found if use.action == "commented"] == expected


@pytest.mark.parametrize(("name", "is_said"), [("model.net", True), ("masks.own", False)])
def test_rows_of_a_model_that_is_not_followed_are_to_be_looked_at(
    tmp_path: Path, name: str, *, is_said: bool
) -> None:
    text = TRAIN.format("emb", "emb", root=name.partition(".")[0]).replace("model.net", name)
    (tmp_path / "wrap.py").write_text(WRAP)
    (tmp_path / "train.py").write_text("from wrap import wrap\nfrom rows import T\nT['x'](wrap(net))\n")
    (tmp_path / "rows.py").write_text(f"PICKED = ['train']\n{text}")
    found = [use for use in scan_paths([tmp_path]).uses if use.path.endswith("rows.py")]
    assert [(use.code, use.text) for use in found] == ([("FM450", "mask[token]")] if is_said else [])
