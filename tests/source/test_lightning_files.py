"""A LightningModule in one file, its Trainer in another: strategy and hook are written both, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


MODEL = """\
import lightning as L


class Base(L.LightningModule):
    pass


class Lit(Base):
    def training_step(self, batch):
        return self.net(batch)
"""
TRAIN = """\
import lightning as L
from model import Lit

model = Lit()
trainer = L.Trainer(devices=8, strategy="fsdp")
trainer.fit(model)
"""
STRATEGY = "strategy=ModelParallelStrategy(data_parallel_size=8, "
HOOK = "    def configure_model(self) -> None:\n"


@pytest.mark.parametrize(
    ("line", "made"),
    [
        ("from model import Lit", "Lit()"),
        ("from model import Lit", "Lit.load_from_checkpoint(path)"),
        ("from model import Lit", "Lit() if new else Lit.load_from_checkpoint(path)"),
        ("from model import Lit", "Lit()\nif path:\n    model = Lit.load_from_checkpoint(path)"),
        ("from model import Lit as Net", "Net()"),
        ("import model as models", "models.Lit()"),
        ("from model import *", "Lit()"),
        ("from package import Lit", "Lit()"),
    ],
)
def test_the_strategy_and_the_hook_are_written_in_their_files(tmp_path: Path, line: str, made: str) -> None:
    train = TRAIN.replace("from model import Lit", line).replace("Lit()", made)
    files = {"model.py": MODEL, "package/__init__.py": "from model import Lit\n", "train.py": train}
    assert STRATEGY in after(tmp_path, files, "train.py")
    found = (tmp_path / "model.py").read_text()
    assert found.startswith(f"{MODEL}\n{HOOK}")


OF_OBJECT = (
    "import lightning as L\nfrom model import Lit\n\n\nclass Run:\n    def __init__(self):\n"
    "        self.lit = Lit()\n        self.trainer = L.Trainer(devices=8, strategy='fsdp')\n\n"
    "    def run(self):\n        self.trainer.fit(self.lit)\n"
)


def test_a_module_that_an_object_keeps(tmp_path: Path) -> None:
    files = {"model.py": MODEL, "train.py": OF_OBJECT}
    assert STRATEGY in after(tmp_path, files, "train.py")
    assert (tmp_path / "model.py").read_text().startswith(f"{MODEL}\n{HOOK}")


OTHER = TRAIN.replace('"fsdp"', '"ddp"')
OWN = "import lightning as L\n\n\nclass Own(L.Trainer):\n    pass\n"
IMPORTS = "from lightning.pytorch.strategies import FSDPStrategy\n"
OF_OWN = "from model import Lit\nfrom own import Own\n\nOwn(devices=2).fit(Lit())\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"model.py": MODEL.replace("training_step", "configure_sharded_model")},
            "`Lit` of model.py has a configure_sharded_model: call it configure_model",
        ),
        (
            {"model.py": MODEL.replace("training_step", "configure_model")},
            "`Lit` of model.py has a configure_model (put the lines of the hook at its end",
        ),
        (
            {"model.py": MODEL.replace("    pass", f"{HOOK}        pass")},
            "`Lit` of model.py has a configure_model",
        ),
        ({"model.py": MODEL.replace("(Base)", "(Base, Unseen)")}, "inherits from a class that is not seen"),
        ({"model.py": MODEL, "more.py": TRAIN.replace("fsdp", "fsdp_cpu_offload")}, "several hooks"),
        (
            {"model.py": "import lightning as L\nclass Lit(L.LightningModule): pass\n"},
            "cannot be given a hook",
        ),
        ({}, "is not seen in these files"),
        (
            {"model.py": MODEL, "train.py": TRAIN.replace("Lit()", "Lit() if new else make()")},
            "is not seen in these files",
        ),
    ],
)
def test_neither_is_written_where_one_cannot_be(tmp_path: Path, files: dict[str, str], said: str) -> None:
    train = after(tmp_path, {"train.py": TRAIN, **files}, "train.py")
    assert said in train
    assert 'strategy="fsdp")' in train
    assert all((tmp_path / name).read_text() == text for name, text in files.items() if name == "model.py")


@pytest.mark.parametrize(
    "files",
    [
        {"evaluate.py": OTHER},
        {"own.py": OWN, "evaluate.py": OF_OWN},
        {"model.py": MODEL + '\nL.Trainer(strategy="ddp").fit(Lit())\n'},
        {"train.py": TRAIN + "L.Trainer(devices=1).test(model)\n"},
        {"more.py": IMPORTS + TRAIN.replace('"fsdp"', "FSDPStrategy(**more)")},
    ],
)
def test_a_hook_does_nothing_under_another_trainer(tmp_path: Path, files: dict[str, str]) -> None:
    found = after(tmp_path, {"train.py": TRAIN, "model.py": MODEL, **files}, "train.py")
    assert STRATEGY in found
    assert "FM319" not in found
    hooked = (tmp_path / "model.py").read_text()
    assert "        if self.device_mesh is not None and not isinstance(self, FSDPModule):" in hooked


def test_a_scan_says_so_in_both_files(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(TRAIN)
    uses = scan_paths([tmp_path]).uses
    assert [(use.line, use.code, use.action) for use in uses] == [
        (8, "FM429", "rewritten"),
        (5, "FM429", "rewritten"),
    ]


@pytest.mark.parametrize(
    ("config", "is_said"),
    [
        ("_target_: {0}.Trainer\nstrategy:\n  _target_: {0}.strategies.FSDPStrategy\n", True),
        ("trainer:\n  _target_: {0}.Trainer\n  strategy:\n    _target_: x.FSDPStrategy\n", True),
        ("_target_: {0}.Trainer\nstrategy: ddp\n", False),
        ("_target_: own.Trainer\nstrategy: auto\n", False),
    ],
)
@pytest.mark.parametrize("package", ["pytorch_lightning", "lightning.pytorch"])
def test_a_trainer_that_a_config_alone_makes_shards(
    tmp_path: Path, config: str, package: str, *, is_said: bool
) -> None:
    (tmp_path / "fsdp.yaml").write_text(config.format(package))
    (tmp_path / "task.py").write_text(
        f"import {package} as pl\nfrom torch.nn.utils import clip_grad_norm_\n\n\n"
        "class Task(pl.LightningModule):\n"
        "    def on_before_optimizer_step(self, optimizer):\n"
        "        self.norm = clip_grad_norm_(self.model.parameters(), max_norm=1.0)\n"
    )
    assert any(use.line == 7 for use in scan_paths([tmp_path]).uses) is is_said


@pytest.mark.parametrize(
    ("backward", "is_said"),
    [("self.manual_backward(loss)", True), ("self.log('loss', loss)", False)],
)
def test_a_step_of_its_own_that_runs_the_backward_sees_shards(
    tmp_path: Path, backward: str, *, is_said: bool
) -> None:
    (tmp_path / "train.py").write_text(
        "import lightning as L\nfrom task import Task\n\nL.Trainer(strategy='fsdp').fit(Task())\n"
    )
    (tmp_path / "task.py").write_text(
        "import lightning as L\nfrom torch.nn.utils import clip_grad_norm_\n\n\n"
        "class Task(L.LightningModule):\n    def __init__(self):\n"
        "        self.automatic_optimization = False\n\n    def sam_step(self, loss):\n"
        f"        {backward}\n        return clip_grad_norm_(self.model.parameters(), max_norm=1.0)\n"
    )
    assert any(use.code == "FM326" for use in scan_paths([tmp_path]).uses) is is_said


EMA = """import itertools

import lightning as L
from ema import ExponentialMovingAverage


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.ema = ExponentialMovingAverage(self._given(), decay=0.9)

    def _given(self):
        return {}

    def on_before_zero_grad(self, optimizer):
        self.ema.update(itertools.chain(self.backbone.parameters()))


L.Trainer(strategy="fsdp").fit(Task())
"""


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("itertools.chain(self.backbone.parameters(), self.noise.parameters())", True),
        ("self.backbone.parameters()", True),
        ("[p.detach().clone() for p in self.backbone.parameters()]", False),
        ("self.backbone.config", False),
    ],
)
def test_an_average_of_what_a_method_gives_keeps_parameters(
    tmp_path: Path, given: str, *, is_said: bool
) -> None:
    (tmp_path / "task.py").write_text(EMA.format(given))
    found = [use.line for use in scan_paths([tmp_path]).uses if use.code == "FM446"]
    assert found == [10] * is_said


@pytest.mark.parametrize(
    ("line", "made", "said"),
    [
        ("from net.model import Lit", "Lit()", "into the LightningModule `Lit` (net/model.py). Either"),
        (
            "from net.model import Lit as Net",
            "Net()",
            "into the LightningModule `Lit` (net/model.py). Either",
        ),
        (
            "class Lit(L.LightningModule):\n    pass",
            "Lit()",
            "the LightningModule `Lit` of this file. Either",
        ),
        # Which of two, or what a function gives, is not known.
        ("from net.model import Base, Lit", "Lit() if new else Base()", "the LightningModule. Either"),
        ("from net.model import Lit", "made()", "the LightningModule. Either"),
    ],
)
def test_the_module_that_a_hook_is_to_be_put_into_is_named(
    line: str, made: str, said: str, tmp_path: Path
) -> None:
    """The comment stood at the strategy, and left the class, which is in another file, to be found."""
    train = TRAIN.replace("from model import Lit", line).replace("Lit()", made)
    train = train.replace("devices=8", "devices=8, precision=cfg.precision, sync_batchnorm=cfg.sync")
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(train)
    [found] = [use for use in scan_paths([tmp_path]).uses if use.code == "FM319"]
    assert said in found.becomes
