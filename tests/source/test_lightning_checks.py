"""Where a source asks for Lightning's FSDP1 strategy, and what is private to it."""

from __future__ import annotations

import pytest

from fsdp_migrate.source import scan_source


pytestmark = pytest.mark.any_torch

ASKS = [
    ("if isinstance(s, FSDPStrategy):\n    wait()\n", ["ask for ModelParallelStrategy"]),
    ("if isinstance(s, FSDPStrategy):\n    raise E('not supported')\n", ["has to refuse"]),
    ("if isinstance(s, FSDPStrategy):\n    log(s)\n    raise E('FSDP1: take fsdp2')\n", []),
    ("assert not isinstance(s, FSDPStrategy)\n", ["has to refuse"]),
    ("assert not isinstance(s, FSDPStrategy), 'use ModelParallelStrategy'\n", []),
    ("assert isinstance(s, FSDPStrategy)\n", ["ask for ModelParallelStrategy"]),
    ("def f(s: FSDPStrategy):\n    pass\n", ["ask for ModelParallelStrategy"]),
]


@pytest.mark.parametrize(("body", "said"), ASKS)
def test_what_a_check_asks(body: str, said: list[str]) -> None:
    """One that refuses FSDP1 must not be turned round."""
    found = scan_source(f"from lightning.pytorch.strategies import FSDPStrategy\n{body}")
    texts = [use.becomes for use in found if use.code == "FM319"]
    assert len(texts) == len(said)
    assert all(wanted in text for wanted, text in zip(said, texts, strict=True))


def test_names_that_are_private_to_the_strategy() -> None:
    home = "from lightning.pytorch.strategies.fsdp import {0}\nx = {0}\n"
    names = (
        ("_METADATA_FILENAME", "lightning.fabric.utilities.load"),
        ("_get_full_state_dict_context", "get_model_state_dict"),
    )
    for name, said in names:
        (found,) = (use for use in scan_source(home.format(name)) if use.code == "FM319")
        assert said in found.becomes


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("if self.trainer.strategy.strategy_name == 'fsdp':\n    pass\n", True),
        ("ok = strategy.strategy_name in ('fsdp', 'ddp')\n", True),
        ("ok = strategy.strategy_name == 'ddp'\n", False),
        ("import lightning as L\nt = L.Trainer(strategy='fsdp')\nx = t.strategy.strategy_name\n", True),
        ("ok = self.strategy_name == 'fsdp'\n", False),
    ],
)
def test_the_name_that_the_strategy_alone_has(body: str, *, is_said: bool) -> None:
    texts = [use.becomes for use in scan_source(body) if use.code == "FM319"]
    assert any("has no strategy_name, so that this raises" in text for text in texts) is is_said


SETTING = "import lightning as L\nt = L.Trainer(strategy='fsdp')\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x = trainer.strategy.sharding_strategy\n", "`sharding_strategy`: ModelParallelStrategy"),
        ("x = self.trainer.strategy.kwargs['auto_wrap_policy']\n", "raises AttributeError"),
        ("s = pl_module.trainer.strategy\nx = s._state_dict_type\n", "raises AttributeError"),
        ("x = getattr(trainer.strategy, 'cpu_offload', None)\n", "without an error"),
        ("x = getattr(trainer.strategy, 'cpu_offload')\n", "raises AttributeError"),
        ("fabric = L.Fabric(strategy='fsdp')\nx = fabric.strategy.mixed_precision_config\n", "raises"),
        # What both strategies have, a config's own, and another's.
        ("x = trainer.strategy.root_device, trainer.strategy.num_nodes\n", ""),
        ("x = cfg.trainer.strategy.cpu_offload, self.hparams.trainer.strategy.kwargs\n", ""),
        ("x = plan.strategy.cpu_offload, getattr(plan.strategy, 'kwargs', None)\n", ""),
    ],
)
def test_settings_that_the_strategy_alone_has(line: str, said: str) -> None:
    texts = [use.becomes for use in scan_source(f"{SETTING}{line}") if use.line > 2 and use.code == "FM319"]
    found = [text for text in texts if "alone has `" in text]
    assert len(found) == bool(said)
    assert all(said in text for text in found)


FOLDERS = "take lightning.fabric.utilities.consolidate_checkpoint"


@pytest.mark.parametrize(
    ("code", "is_said"),
    [
        ("from {} import _format_checkpoint\nx = _format_checkpoint(y)\n", True),
        ("import subprocess, sys\nsubprocess.run([sys.executable, '-m', '{}', folder])\n", True),
        ("import os\nos.system('python -m {} runs/last.ckpt')\n", True),
        ("command = 'python -m {} runs/last.ckpt'\n", True),
        ("'python -m {} runs/last.ckpt'\n", False),
    ],
)
def test_the_tool_that_reads_fsdp1s_folders_alone(code: str, *, is_said: bool) -> None:
    for package in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
        found = scan_source(code.format(f"{package}.utilities.consolidate_checkpoint"))
        texts = [use.becomes for use in found if use.code == "FM319"]
        assert any(FOLDERS in text for text in texts) is (is_said and package != "lightning.fabric")
