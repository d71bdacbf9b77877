"""``spectral_norm`` in projects that Accelerate shards in mixed precision, which leaves its buffers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

YAML = "distributed_type: {}\nmixed_precision: {}\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
TRAIN = (
    "from accelerate import Accelerator\nfrom model import Net\n\n\n"
    "accelerator = Accelerator({})\nmodel, opt = accelerator.prepare(Net(), opt)\n"
)
NET = (
    "from torch import nn\n{}\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
    "        self.x = {}(nn.Linear(2, 2))\n"
)
IMPORTED = "from torch.nn.utils import spectral_norm"
PARAMETRIZED = "from torch.nn.utils.parametrizations import spectral_norm"


@pytest.mark.parametrize(
    ("imported", "made", "kind", "precision", "given", "is_said"),
    [
        (IMPORTED, "spectral_norm", "FSDP", "bf16", "", True),
        ("", "nn.utils.spectral_norm", "FSDP", "fp16", "", True),
        (PARAMETRIZED, "spectral_norm", "FSDP", "bf16", "", True),
        (IMPORTED, "spectral_norm", "FSDP", "'no'", "mixed_precision='bf16'", True),
        (IMPORTED, "spectral_norm", "FSDP", "'no'", "", False),
        (IMPORTED, "spectral_norm", "MULTI_GPU", "bf16", "", False),
        ("from mine import spectral_norm", "spectral_norm", "FSDP", "bf16", "", False),
        ("from torch.nn.utils import weight_norm", "weight_norm", "FSDP", "bf16", "", False),
    ],
)
def test_spectral_norms_under_accelerate(
    tmp_path: Path, imported: str, made: str, kind: str, precision: str, given: str, *, is_said: bool
) -> None:
    (tmp_path / "train.py").write_text(TRAIN.format(given))
    (tmp_path / "model.py").write_text(NET.format(imported, made))
    config = tmp_path / "fsdp.yaml"
    config.write_text(YAML.format(kind, precision))
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM343"]
    assert ["buffer.data" in use.becomes for use in found] == [True] * is_said
    if kind == "FSDP":
        said = [each.message for each in convert_config_file(config).conversion.findings]
        assert any("model.py:7" in each for each in said) is (is_said and not given)
