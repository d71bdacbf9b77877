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
