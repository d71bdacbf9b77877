"""What Lightning's strategy for FSDP2 takes otherwise: modules that step by themselves, and compiled ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEAD = """\
import torch
import lightning.pytorch as pl


class Lit(pl.LightningModule):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.automatic_optimization = False

    def training_step(self, batch, index):
        opt = self.optimizers()
"""
LAST = "\n\ntrainer = pl.Trainer(strategy='fsdp', devices=2)\ntrainer.fit(Lit(net))\n"
BY_HAND = "FSDP1's strategy wraps the whole module"
COMPILED = "ModelParallelStrategy refuses a LightningModule that torch.compile gave"


def said(code: str) -> list[str]:
    return [use.becomes for use in scan_source(code) if use.code == "FM319" and use.action == "commented"]


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("opt.zero_grad()\nloss = self.net(batch)\nself.manual_backward(loss)\nopt.step()\n", True),
        ("loss = self.net(batch)\nself.manual_backward(loss)\nopt.step()\nopt.zero_grad()\n", True),
        ("self.manual_backward(self.net(batch))\nif index % 2:\n    opt.step()\n    opt.zero_grad()\n", True),
        ("self.manual_backward(self.net(batch))\nstep(opt)\n", True),
        # Cleared between the forward and the backward, FSDP1's gradients were right.
        ("loss = self.net(batch)\nopt.zero_grad()\nself.manual_backward(loss)\nopt.step()\n", False),
        ("loss = self.net(batch)\nopt.zero_grad(); self.manual_backward(loss); opt.step()\n", False),
        ("l = self.net(batch)\na.zero_grad()\nb.zero_grad()\nself.manual_backward(l)\n", False),
    ],
)
def test_a_module_that_steps_by_itself(body: str, *, is_said: bool) -> None:
    """`tests/frameworks/test_lightning_hooks.py` runs the first and the fifth body."""
    code = HEAD + "".join(f"        {line}\n" for line in body.splitlines())
    assert any(text.startswith(BY_HAND) for text in said(code + LAST)) is is_said
    for other in (code + LAST.replace("fsdp", "ddp"), code.replace("= False", "= True") + LAST):
        assert not any(text.startswith(BY_HAND) for text in said(other))


ONE = "from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy\n"
ONE_BY_ONE = "from lightning.pytorch.strategies import (\n    DDPStrategy,\n    FSDPStrategy,\n)\n"
OF_FABRIC = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"
USES = "t = pl.Trainer(**{'strategy': FSDPStrategy()})\nt.fit(Lit(net))\n"


@pytest.mark.parametrize(
    ("train", "is_said"),
    [
        (f"{ONE}{USES}", True),
        (f"{ONE_BY_ONE}{USES}", True),
        (ONE_BY_ONE + USES.replace("FSDP", "DDP"), False),
        (ONE + USES.replace("FSDPStrategy()", "eval(args.strategy)()"), True),
        (ONE + USES.replace("FSDP", "DDP"), False),
        (f"{OF_FABRIC}Fabric(strategy=FSDPStrategy()).setup(net)\n", False),
        ("from lightning.fabric import Fabric\nFabric(strategy='fsdp').setup(net)\n", False),
        (f"{OF_FABRIC}Fabric(strategy=FSDPStrategy())\npl.Trainer(strategy='fsdp').fit(Lit(net))\n", True),
    ],
)
def test_what_asks_the_trainer_for_the_strategy(tmp_path: Path, train: str, *, is_said: bool) -> None:
    steps = f"{HEAD}        self.manual_backward(self.net(batch))\n        step(opt)\n"
    (tmp_path / "lit.py").write_text(steps)
    (tmp_path / "train.py").write_text(f"import lightning.pytorch as pl\nfrom lit import Lit\n{train}")
    # Both in one file, and each in its own.
    texts = [use.becomes for use in scan_paths([tmp_path]).uses if use.path.endswith("lit.py")]
    for found in (texts, said(f"{steps}\n\n{train}")):
        assert any(text.startswith(BY_HAND) for text in found) is is_said


def test_the_switch_as_a_property() -> None:
    code = HEAD.replace("        self.automatic_optimization = False\n", "")
    code += "        self.manual_backward(self.net(batch))\n\n    @property\n"
    code += "    def automatic_optimization(self):\n        return {}\n"
    assert any(text.startswith(BY_HAND) for text in said(code.format(False) + LAST))
    assert not any(text.startswith(BY_HAND) for text in said(code.format(True) + LAST))


@pytest.mark.parametrize(
    ("lines", "is_said"),
    [
        ("model = torch.compile(Lit(net))\ntrainer.fit(model)\n", True),
        ("model = Lit(net)\nif fast:\n    model = torch.compile(model)\ntrainer.fit(model=model)\n", True),
        ("trainer.test(torch.compile(Lit(net)))\n", True),
        # What is within the module may be compiled, and what no Trainer is given.
        ("model = Lit(torch.compile(net))\ntrainer.fit(model)\n", False),
        ("model = Lit(net)\nmodel.net = torch.compile(model.net)\ntrainer.fit(model)\n", False),
        ("other = torch.compile(net)\ntrainer.fit(model)\n", False),
        ("import re\nmodel = re.compile(net)\ntrainer.fit(model)\n", False),
    ],
)
def test_a_compiled_module(lines: str, *, is_said: bool) -> None:
    code = f"{HEAD}        return self.net(batch)\n{LAST.rpartition('trainer.fit')[0]}{lines}"
    assert any(text.startswith(COMPILED) for text in said(code)) is is_said
    assert not any(text.startswith(COMPILED) for text in said(code.replace("'fsdp'", "'ddp'")))


FORCES = """\
import torch
import lightning.pytorch as pl


class Lit(pl.LightningModule):
    def {}(self, batch, index):
        {}

    def forces(self, x):
        return torch.autograd.grad(self.net(x).sum(), x)


trainer = pl.Trainer(strategy="{}", devices=2{})
trainer.test(Lit())
"""
ENABLES = "with torch.enable_grad():\n            return self.net(batch)"


@pytest.mark.parametrize(
    ("step", "body", "more", "is_said"),
    [
        ("test_step", ENABLES, "", True),
        ("predict_step", "return self.forces(batch)", "", True),
        ("test_step", "return self.net(batch)", "", False),
        # The Trainer's fit runs its validation under no_grad.
        ("validation_step", ENABLES, "", False),
        ("test_step", ENABLES, ", inference_mode=False", False),
    ],
)
def test_gradients_in_tests(step: str, body: str, more: str, *, is_said: bool) -> None:
    texts = said(FORCES.format(step, body, "fsdp", more))
    assert any("inference_mode" in text for text in texts) is is_said
    assert not any("inference_mode" in text for text in said(FORCES.format(step, body, "ddp", more)))


STATES = """\
import lightning.pytorch as pl
from torch import nn


class Lit({}):
    def state_dict(self, *args, **kwargs):
        {}


trainer = pl.Trainer(strategy="{}", devices=2)
trainer.fit(Lit())
"""
CUT = "given = super().state_dict(*args, **kwargs)\n        return {k: given[k] for k in given if 'vgg' in k}"


@pytest.mark.parametrize(
    ("base", "body", "is_said"),
    [
        ("pl.LightningModule", CUT, True),
        ("pl.LightningModule", "return self.net.state_dict()", True),
        ("pl.LightningModule", "return super().state_dict(*args, **kwargs)", False),
        # A part of the module is asked by the module, under both.
        ("nn.Module", CUT, False),
    ],
)
def test_a_state_of_a_modules_own(base: str, body: str, *, is_said: bool) -> None:
    assert any("asked its wrapper" in text for text in said(STATES.format(base, body, "fsdp"))) is is_said
    assert not any("asked its wrapper" in text for text in said(STATES.format(base, body, "ddp")))


ACCUMULATING = """\
import lightning as L

fabric = L.Fabric(strategy="{}", devices=2)
model = fabric.setup_module(net)
for index, batch in enumerate(batches):
    with fabric.no_backward_sync(model{}):
        loss = model(batch)
    {}fabric.backward(loss)
"""


@pytest.mark.parametrize(
    ("enabled", "indent", "is_said"),
    [
        (", enabled=index % 2 == 0", "", True),
        (", False", "", True),
        (", enabled=index % 2 == 0", "    ", False),
        # Without it, and with True, the reduction is on again behind the context.
        ("", "", False),
        (", enabled=True", "", False),
    ],
)
def test_a_backward_behind_fabrics_context(enabled: str, indent: str, *, is_said: bool) -> None:
    """`tests/frameworks/test_lightning_claims.py` holds what Lightning's context leaves behind."""
    texts = said(ACCUMULATING.format("fsdp", enabled, indent))
    assert any("leaves the reduction off" in text for text in texts) is is_said
    assert not any("leaves" in text for text in said(ACCUMULATING.format("ddp", enabled, indent)))


def test_a_strategy_in_a_config_counts_as_well(tmp_path: Path) -> None:
    (tmp_path / "trainer.yaml").write_text("_target_: lightning.pytorch.Trainer\nstrategy: fsdp\n")
    body = "        loss = self.net(batch)\n        self.manual_backward(loss)\n        opt.zero_grad()\n"
    (tmp_path / "lit.py").write_text(HEAD + body)
    (tmp_path / "train.py").write_text(
        "import hydra\nimport torch\nimport lightning.pytorch as pl\n\n\ndef train(cfg):\n"
        "    model = hydra.utils.instantiate(cfg.model)\n    if cfg.compile:\n"
        "        model = torch.compile(model)\n"
        "    trainer: pl.Trainer = hydra.utils.instantiate(cfg.trainer)\n    trainer.fit(model=model)\n"
    )
    found = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM319"]
    assert any(text.startswith(BY_HAND) for text in found)
    assert any(text.startswith(COMPILED) for text in found)
