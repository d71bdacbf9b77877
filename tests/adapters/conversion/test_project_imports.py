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


TRAINS = "from transformers import (\n    AutoModel,\n    Trainer,\n)\n"


GROUPS = (
    "def groups(model, no_decay):\n"
    "    some = [p for n, p in model.named_parameters() if not any(each in n for each in no_decay)]\n"
    "    return [{'params': some, 'weight_decay': 0.1}]\n"
)


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        ({"train.py": OWN}, "FM342"),
        ({"train.py": f"{OWN}from transformers import AutoModel\nclass Trainer: ...\n"}, "FM342"),
        ({"train.py": OWN, "lib/t.py": TRAINS}, "FM343"),
        ({"train.py": OWN, "lib/t.py": "import transformers\nt = transformers.Seq2SeqTrainer()\n"}, "FM343"),
        ({"train.py": OWN, "lib/t.py": "from trl import SFTTrainer\n"}, "FM343"),
        ({"train.py": "import torch\n"}, "FM343"),
        ({"train.py": f"{OWN}{GROUPS}"}, "FM343"),
        ({"train.py": OWN, "lib/groups.py": GROUPS.replace("weight_decay", "wd")}, "FM343"),
        ({"train.py": OWN, "lib/groups.py": GROUPS.replace("no_decay", "names")}, "FM343"),
        ({"train.py": f"{OWN}{GROUPS}".replace("named_", "")}, "FM342"),
        ({"train.py": f"{OWN}for n, p in model.named_parameters():\n    print(n, p.shape)\n"}, "FM342"),
        ({"train.py": f"{OWN}opt = AdamW(model.parameters(), weight_decay=0.1)\n"}, "FM342"),
    ],
)
def test_flat_parameters_are_told_where_a_trainer_cannot_be_excluded(
    sources: dict[str, str], code: str, tmp_path: Path
) -> None:
    config = f"{CONFIG}  fsdp_use_orig_params: false\n"
    for name, text in {"conf/fsdp.yaml": config, "requirements.txt": "", **sources}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = convert_config_file(tmp_path / "conf/fsdp.yaml").conversion
    [said] = [f for f in done.findings if f.subject.endswith("use_orig_params")]
    assert said.code == code
    assert code == "FM342" or "by names of parameters" in said.message
