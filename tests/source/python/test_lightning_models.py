"""The model of Lightning's Trainer, under its FSDP1 strategy and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAINED = "import lightning as L\nt = L.Trainer(strategy='fsdp')\n"
CALLBACK = (
    "import lightning as L\n\n\nclass Save(L.Callback):\n    def on_fit_end(self, trainer, pl_module):\n"
    "        state = {}.state_dict()\n"
)
MODELS = [
    "trainer.strategy.model",
    "trainer.model",
    "pl_module.trainer.model",
    "trainer.lightning_module",
    "trainer.strategy.lightning_module",
]


@pytest.mark.parametrize("model", MODELS)
def test_the_trainers_model_may_be_sharded(model: str) -> None:
    callback = CALLBACK.format(model)
    assert ("FM333", "commented") in {(use.code, use.action) for use in scan_source(TRAINED + callback)}
    assert "FM333" not in {use.code for use in scan_source(TRAINED.replace("fsdp", "ddp") + callback)}
    assert "FM333" not in {use.code for use in scan_source(f"# fsdp\n{callback}")}


def test_another_file_asks_for_the_strategy(tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(CALLBACK.format("trainer.strategy.model"))
    (tmp_path / "train.py").write_text(TRAINED)
    codes = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("save.py")}
    assert codes == {"FM333"}
    (tmp_path / "train.py").write_text(TRAINED.replace("fsdp", "ddp"))
    assert scan_paths([tmp_path]).uses == ()


_L2 = "sum(p.pow(2).sum() for p in self.net.parameters())"
_POLICY = "t = L.Trainer(strategy=FSDPStrategy(auto_wrap_policy={nn.Linear}))\n"
_STEP = "    def {}(self, batch, index):\n        return self.net(batch).sum() + {}\n"


@pytest.mark.parametrize(
    ("methods", "policy", "is_said"),
    [
        (_STEP.format("training_step", _L2), _POLICY, True),
        (_STEP.format("validation_step", _L2), _POLICY, True),
        (
            _STEP.format("training_step", "self.l2()") + f"    def l2(self):\n        return {_L2}\n",
            _POLICY,
            True,
        ),
        # Without a policy the module is one unit, whose parameters are whole in its step.
        (_STEP.format("training_step", _L2), _POLICY.replace("{nn.Linear}", "None"), False),
        (_STEP.format("training_step", _L2), "t = L.Trainer(strategy='fsdp')\n", False),
        (f"    def setup(self, stage):\n        self.start = {_L2}\n", _POLICY, False),
        (f"    def l2(self):\n        return {_L2}\n", _POLICY, False),
        (
            f"    def setup(self):\n        self.l2()\n    def l2(self):\n        return {_L2}\n",
            _POLICY,
            False,
        ),
    ],
)
def test_a_penalty_in_a_step_is_of_sharded_units(
    tmp_path: Path, methods: str, policy: str, *, is_said: bool
) -> None:
    module = f"import lightning as L\n\n\nclass Lit(L.LightningModule):\n{methods}"
    trains = f"import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\n{policy}"
    assert ("FM423" in {use.code for use in scan_source(f"{trains}{module}")}) is is_said
    (tmp_path / "lit.py").write_text(module)
    (tmp_path / "train.py").write_text(f"{trains}from lit import Lit\nt.fit(Lit())\n")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("lit.py")}
    assert ("FM423" in found) is is_said


def test_a_part_that_is_called_in_a_step_is_gathered_there(tmp_path: Path) -> None:
    module = "import lightning as L\n\n\nclass Lit(L.LightningModule):\n    def training_step(self, batch):\n"
    (tmp_path / "lit.py").write_text(f"{module}        return self.net.forward(batch)\n")
    train = (
        "import lightning as L\nfrom lightning.pytorch.strategies import FSDPStrategy\nfrom lit import Lit\n"
    )
    (tmp_path / "train.py").write_text(f"{train}{_POLICY}t.fit(Lit())\n")
    assert [use for use in scan_paths([tmp_path]).uses if use.path.endswith("lit.py")] == []
