"""Where a module takes the forward of a part of its own, which a policy, or Composer, makes a unit.

At 2 ranks FSDP2's step raises there, "got mixed torch.Tensor and DTensor", and FSDP1's wrapper gathered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths
from tests.source.samples import IMPORTS


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

NET = """\
import torch.nn as nn


class Block(nn.Module):
    def forward(self, x):
        return self.lin.forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.filled = nn.ModuleList()
        for _ in range(3):
            self.filled.append(Block())
        layers = []
        for _ in range(3):
            layers.append(Block())
        self.given = nn.ModuleList(layers)
        self.named = nn.ModuleDict({"a": Block()})
        self.mixed = nn.ModuleList([Block(), nn.Linear(4, 4)])
        self.last = Block()
        self.head = nn.Linear(4, 4)

    def forward(self, x, i=0):
        """
WRAP = "def wrap(net):\n    return FSDP(net, auto_wrap_policy={}, use_orig_params=True)\n"
POLICY = "ModuleWrapPolicy({Block})"
COMPOSER = """\
from composer.models import ComposerModel


class {}:
    def __init__(self):
        super().__init__()
        self.dit = make()
        self.width = 3

    def forward(self, batch):
        {}
"""
OWN = "Own(ComposerModel)"
TRAINER = "from composer import Trainer\nt = Trainer(model, parallelism_config={'fsdp': {'verbose': True}})\n"


def _said(folder: Path, net: str, wrap: str) -> list[tuple[str, str]]:
    """Return what is said of forwards in the file of the model, with the text it is said of."""
    (folder / "net.py").write_text(net)
    (folder / "train.py").write_text(wrap)
    uses = scan_paths([folder]).uses
    return [(use.action, use.text) for use in uses if use.code == "FM448" and use.path.endswith("net.py")]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("for b in self.blocks:\n            x = b.forward(x)", "b.forward(x)"),
        ("for n, b in enumerate(self.blocks[1:]):\n            x = b.forward(x)", "b.forward(x)"),
        ("for b in self.filled:\n            x = b.forward(x)", "b.forward(x)"),
        ("for b in self.given:\n            x = b.forward(x)", "b.forward(x)"),
        ("for n, b in self.named.items():\n            x = b.forward(x)", "b.forward(x)"),
        ("b = self.blocks[i]\n        return b.forward(x)", "b.forward(x)"),
        ("return self.blocks[i].forward(x)", "self.blocks[i].forward(x)"),
        ("return self.last.forward(x)", "self.last.forward(x)"),
        ("return self.head.forward(x)", ""),  # in the root's unit, which is gathered here
        ("return self.blocks[i](x)", ""),
        ("for b in self.mixed:\n            x = b.forward(x)", ""),
        ("for b in self.blocks:\n            x = b(x)\n        b = other\n        return b.forward(x)", ""),
        ("for b, c in zip(self.blocks, others):\n            x = c.forward(x)", ""),
    ],
)
def test_forwards_of_what_a_policy_of_another_file_names(tmp_path: Path, body: str, text: str) -> None:
    """FSDP2's hooks are passed by, in a file that says nothing of FSDP."""
    assert _said(tmp_path, NET + body + "\n", IMPORTS + WRAP.format(POLICY)) == (
        [("rewritten", text)] if text else []
    )


@pytest.mark.parametrize(
    "wrap",
    [
        WRAP.format("partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"),
        "from lightning.pytorch.strategies import FSDPStrategy\ns = FSDPStrategy(auto_wrap_policy={Block})\n",
        (
            "from transformers import TrainingArguments\na = TrainingArguments('x', fsdp='full_shard', "
            "fsdp_config={'transformer_layer_cls_to_wrap': ['Tower', 'Block']})\n"
        ),
    ],
)
def test_policies_of_torch_and_of_frameworks(tmp_path: Path, wrap: str) -> None:
    """All of them make a unit of each object of a class."""
    said = _said(tmp_path, f"{NET}return self.last.forward(x)\n", IMPORTS + wrap)
    assert said == [("rewritten", "self.last.forward(x)")]


def test_what_is_rewritten_calls_the_unit(tmp_path: Path) -> None:
    """As FSDP1's wrapper did in its forward."""
    _said(tmp_path, f"{NET}return self.blocks[i].forward(x, mask=None)\n", IMPORTS + WRAP.format(POLICY))
    rewrite_paths([tmp_path], write=True)
    text = (tmp_path / "net.py").read_text()
    assert "return self.blocks[i](x, mask=None)" in text
    assert "self.lin.forward(x)" in text


@pytest.mark.parametrize(
    ("owner", "body", "said"),
    [
        (OWN, "return self.dit.forward(batch)", [("rewritten", "self.dit.forward(batch)")]),
        (OWN, "return partial(self.dit.forward, cfg=2)(batch)", [("commented", "self.dit.forward")]),
        (OWN, "return self.dit(batch)", []),
        (OWN, "return self.other.forward(batch)", []),
        (OWN, "return super().forward(batch)", []),
        ("Own(torch.nn.Module)", "return self.dit.forward(batch)", []),
    ],
)
def test_children_of_a_model_of_composers(
    tmp_path: Path, owner: str, body: str, said: list[tuple[str, str]]
) -> None:
    """Composer shards each of them, whatever class it is of."""
    assert _said(tmp_path, COMPOSER.format(owner, body), TRAINER) == said


def test_children_where_composer_shards_nothing(tmp_path: Path) -> None:
    """Without settings of FSDP the Trainer makes no units."""
    net = COMPOSER.format(OWN, "return self.dit.forward(batch)")
    assert _said(tmp_path, net, "from composer import Trainer\nt = Trainer(model)\n") == []
