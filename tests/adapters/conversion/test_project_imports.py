"""What a project imports, where its config alone does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.config_files import convert_config_file


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

CONFIG = "distributed_type: FSDP\nfsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
OWN = "from accelerate import Accelerator\n"


@pytest.mark.parametrize(
    ("sources", "more", "code"),
    [
        ({"train.py": OWN}, "", "FM343"),
        ({"src/train.py": OWN, "src/net.py": "import torch\n"}, "", "FM343"),
        ({"train.py": OWN}, "  fsdp_cpu_ram_efficient_loading: true\n", "FM343"),
        ({"train.py": OWN}, "  fsdp_cpu_ram_efficient_loading: false\n", "FM340"),
        ({"train.py": OWN}, "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer\n", "FM340"),
        ({"train.py": OWN, "lib/net.py": "from transformers import AutoModel\n"}, "", "FM340"),
        ({"train.py": f"{OWN}from trl import SFTTrainer\n"}, "", "FM340"),
        ({"train.py": "import torch\n"}, "", "FM340"),
        ({}, "", "FM340"),
    ],
)
def test_a_model_without_a_class_to_wrap_is_of_transformers_if_a_source_imports_it(
    sources: dict[str, str], more: str, code: str, tmp_path: Path
) -> None:
    for name, text in {"conf/fsdp.yaml": CONFIG + more, "requirements.txt": "", **sources}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = convert_config_file(tmp_path / "conf/fsdp.yaml").conversion
    [said] = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
    assert said.code == code
