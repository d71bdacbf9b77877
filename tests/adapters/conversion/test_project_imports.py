"""What a project imports, where its config alone does not tell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fsdp_migrate.adapters.conversion import project_imports
from fsdp_migrate.adapters.conversion.project_imports import (
    classes_in,
    decays_alike,
    lacks_transformers,
    lightning_package,
    sources_below,
)
from fsdp_migrate.config_files import convert_config_file


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


BY_NAME = "groups = [p for n, p in model.named_parameters() if not any(k in n for k in {})]\n"
TRAINS = "from transformers import (\n    AutoModel,\n    Trainer,\n)\n"


@pytest.mark.parametrize(
    ("sources", "code"),
    [
        ({"train.py": OWN}, "FM342"),
        ({"train.py": f"{OWN}from transformers import AutoModel\nclass Trainer: ...\n"}, "FM342"),
        ({"train.py": OWN, "lib/t.py": TRAINS}, "FM343"),
        ({"train.py": OWN, "lib/t.py": "import transformers\nt = transformers.Seq2SeqTrainer()\n"}, "FM343"),
        ({"train.py": OWN, "lib/t.py": "from trl import SFTTrainer\n"}, "FM343"),
        ({"train.py": "import torch\n"}, "FM343"),
        ({"train.py": OWN + BY_NAME.format("no_decay")}, "FM343"),
        ({"train.py": OWN, "lib/o.py": BY_NAME.format("bare") + "a = {'weight_decay': 0.1}\n"}, "FM343"),
        ({"train.py": OWN + BY_NAME.format("('head',)")}, "FM342"),
        ({"train.py": f"{OWN}opt = AdamW(model.parameters(), weight_decay=0.1)\n"}, "FM342"),
        ({"train.py": OWN, "lib/t.py": f"from transformers import ({'Auto, ' * 200}Trainer)\n"}, "FM343"),
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


TIED = """import torch.nn as nn
from accelerate import Accelerator
class M(nn.Module):
    def __init__(self):
        self.tok = nn.Embedding(4, 4)
        self.head.weight = self.tok.weight
"""


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ({"src/m.py": TIED}, "`M` ties"),
        ({"pkg/nets/m.py": TIED, "README.md": ""}, "`M` ties"),
        ({"pkg/nets/m.py": TIED, "environment.yml": "", "conf/README.md": ""}, "`M` ties"),
        ({"train.py": "from nets.m import M\n", "nets/m.py": TIED}, "`M` ties"),
        # A folder that holds many projects is none, and neither is what nobody imports one's.
        ({"other/m.py": TIED}, ""),
        ({"train.py": "from nets.m import M\n", "nets/m.py": "", "other/m.py": TIED}, ""),
    ],
)
def test_sources_without_git_and_packaging_are_read_as_well(
    sources: dict[str, str], said: str, tmp_path: Path
) -> None:
    for name, text in {"conf/deep/fsdp.yaml": CONFIG, **sources}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    done = convert_config_file(tmp_path / "conf/deep/fsdp.yaml").conversion
    [found] = [f for f in done.findings if f.subject.endswith("cpu_ram_efficient_loading")]
    assert said in found.message
    assert said or "ties `" not in found.message


@pytest.mark.parametrize(
    "line", ["from transformers import (\n", "\n", "x = 1\n \t\n", "from transformers import (A, # (\n"]
)
def test_a_long_source_is_read_soon(line: str, tmp_path: Path) -> None:
    """A pattern that looks for an end again at each line takes a quarter of a minute for these."""
    (tmp_path / "setup.py").write_text(OWN + line * 8_000)
    started = time.process_time()
    assert decays_alike(tmp_path)
    assert lacks_transformers(tmp_path) is ("transformers" not in line)
    assert lightning_package(tmp_path / "a.yaml") is None
    assert time.process_time() - started < 4


def test_a_folder_that_may_not_be_entered_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n")
    exists = Path.exists

    def refuse(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(path)
        return exists(path)

    monkeypatch.setattr(Path, "exists", refuse)
    assert [path.parent.name for path in sources_below(tmp_path)] == ["open"]


def test_not_more_than_so_many_folders_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.py").write_text("x = 1\n")
    monkeypatch.setattr(project_imports, "_MOST_FOLDERS", 3)
    assert [path.parent.name for path in sources_below(tmp_path)] == ["a", "b"]


def test_classes_are_found_in_every_kind_of_block() -> None:
    inner = "\n        class Inner: pass\n"
    blocks = (
        "if a:",
        "else:",
        "try:",
        "except B:",
        "finally:",
        "for x in y:",
        "while a:",
        "with a:",
        "def f():",
    )
    before = {"else:": "    if a: pass\n", "except B:": "    try: pass\n", "finally:": "    try: pass\n"}
    after = {"try:": "    finally: pass\n"}
    for block in blocks:
        text = f"class Outer:\n{before.get(block, '')}    {block}{inner}{after.get(block, '')}"
        assert [each.name for each in classes_in(text)] == ["Outer", "Inner"], block
    assert [each.name for each in classes_in("match a:\n    case 1:\n        class Only: pass")] == ["Only"]
