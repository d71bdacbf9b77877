"""``strategy: fsdp`` of Lightning's, where a source of the project reads it itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.source.surroundings import find_configs


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CONFIG = "trainer:\n  devices: 2\n  precision: bf16-mixed\n  accelerator: gpu\n  strategy: fsdp\n"
HEAD = "import lightning as L\nimport yaml\ncfg = yaml.safe_load(open('conf/task.yaml'))['trainer']\n"
FSDP = "from lightning.pytorch.strategies import FSDPStrategy\n"
MADE = f"{HEAD}{FSDP}if cfg.get('strategy') == 'fsdp':\n    cfg['strategy'] = FSDPStrategy()\n"
TRAINED = "L.Trainer(**cfg).fit(model)\n"


def put(folder: Path, source: str, config: str = CONFIG) -> Path:
    (folder / "pyproject.toml").touch()
    (folder / "conf").mkdir()
    path = folder / "conf" / "task.yaml"
    path.write_text(config)
    (folder / "run.py").write_text(source)
    return path


@pytest.mark.parametrize(
    ("source", "has_hook"),
    [
        (MADE + TRAINED, False),
        (MADE.replace("== 'fsdp'", "in ('fsdp', 'fsdp_cpu_offload')"), False),
        (HEAD + TRAINED, True),
        (HEAD + "L.Trainer(devices=2, strategy=cfg['strategy'])\n", True),
        (HEAD + "L.Trainer(\n    callbacks=[(1, f(2))],\n    strategy=cfg.strategy,\n)\n", True),
        (HEAD + "type Path = str\ndef first[T](x: T) -> T: return x\n" + TRAINED, True),
        (HEAD + "match = = x\n" + TRAINED, True),  # no Python that is known here
    ],
)
def test_what_a_source_reads_itself_stays(tmp_path: Path, source: str, has_hook: bool) -> None:
    """``L.Trainer(strategy={"class_path": ...})`` raises: LightningCLI alone reads that."""
    path = put(tmp_path, source)
    report = convert_config_file(path)
    assert not report.is_changed
    assert report.state == "elsewhere"
    [block] = report.conversion.blocks
    assert block.state == "unchanged"
    assert ("def configure_model" in (block.code or "")) is has_hook
    [said] = [each for each in report.conversion.findings if each.code == "FM355"]
    assert said.message.startswith("run.py reads it itself, and no source here has LightningCLI")
    assert ("put the hook into" in str(said.hint)) is has_hook
    (found,) = find_configs([tmp_path])
    assert (found.state, found.message.startswith("run.py reads it itself")) == ("elsewhere", True)


def test_of_hydras_file_too(tmp_path: Path) -> None:
    source = "import lightning as L\nimport hydra\ncfg = hydra.compose('x')\nL.Trainer(**cfg.trainer)\n"
    config = f"defaults: [_self_]\n{CONFIG}"
    path = put(tmp_path, source, config)
    report = convert_config_file(path)
    assert not report.is_changed
    assert "has `instantiate`" in report.conversion.findings[0].message
    made = source.replace("L.Trainer(**", "L.Trainer(**hydra.utils.instantiate(").replace(
        "trainer)", "trainer))"
    )
    (tmp_path / "run.py").write_text(made)
    assert "_target_" in convert_config_file(path).conversion.text


@pytest.mark.parametrize(
    "source",
    [
        HEAD + TRAINED + "from lightning.pytorch.cli import LightningCLI\n",
        HEAD + TRAINED + "import jsonargparse\n",
        HEAD + "L.Trainer(**{'devices': 2}, strategy='auto', lr=2**3)\n",
        HEAD + "print(self.trainer.strategy.strategy_name == 'fsdp')\n",
        HEAD + "print(cfg['strategy'] == 'ddp')\n",
        "import yaml\nfrom transformers import Trainer\nTrainer(**cfg)\n",
        "import lightning as L\nL.Trainer(**kwargs)\n",
        "import lightning as L, yaml\n# L.Trainer(**cfg)\n",
        HEAD + "x = = 1\nL.Trainer(devices=2, strategy='auto')\n",
    ],
)
def test_what_lightning_cli_may_read_is_converted(tmp_path: Path, source: str) -> None:
    report = convert_config_file(put(tmp_path, source))
    assert "class_path: lightning.pytorch.strategies.ModelParallelStrategy" in report.conversion.text
