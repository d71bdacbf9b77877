"""What the cells of notebooks ask frameworks for counts, and is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.launchers import find_launches
from fsdp_migrate.source.notebook_settings import sources_in
from tests.source.python.test_notebooks import notebook


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


HF = '%%yaml parameters\nfsdp: "full_shard auto_wrap"\nfsdp_config:\n  use_orig_params: true\n'
TRAINER = (
    "from trl import SFTTrainer\ntrainer = SFTTrainer(model='x', args=args)\n"
    "trainer.train()\ntrainer.model.save_pretrained('out')\n"
)
ACCELERATOR = (
    "import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n"
    "model = accelerator.prepare(net)\ntorch.save(accelerator.unwrap_model(model).state_dict(), 'a.pt')\n"
)


def codes_of(folder: Path) -> set[tuple[str, str]]:
    return {(use.path.rpartition("/")[2], use.code) for use in scan_paths([folder]).uses}


@pytest.mark.parametrize(
    "cell",
    [
        HF,
        HF.replace("%%yaml parameters", "%%writefile a.yaml"),
        "!torchrun t.py --fsdp 'full_shard auto_wrap'",
        "%%bash\ntorchrun t.py --fsdp 'full_shard auto_wrap'",
        "estimator = HuggingFace(hyperparameters={'fsdp': 'full_shard auto_wrap'})",
    ],
)
def test_the_trainer_is_asked_for_fsdp(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.ipynb").write_text(notebook(cell, TRAINER))
    assert codes_of(tmp_path) >= {("a.ipynb", "FM333")}
    (tmp_path / "b.ipynb").write_text(notebook("x = 1", TRAINER))
    (tmp_path / "b.py").write_text(TRAINER)
    assert codes_of(tmp_path) >= {("a.ipynb", "FM333"), ("b.ipynb", "FM333"), ("b.py", "FM333")}
    (tmp_path / "a.ipynb").unlink()
    assert codes_of(tmp_path) == set()


@pytest.mark.parametrize(
    "cell",
    [
        "%env ACCELERATE_USE_FSDP=true",
        "%env ACCELERATE_USE_FSDP true",
        "import os\nos.environ['ACCELERATE_USE_FSDP'] = 'true'",
        "import os\nos.environ.update({'ACCELERATE_USE_FSDP': 'true'})",
        "estimator = PyTorch(environment={\"ACCELERATE_USE_FSDP\": 'true'})",
        "!accelerate launch --use_fsdp train.py",
        "%%writefile acc.yaml\ndistributed_type: FSDP\nfsdp_config: {}\n",
    ],
)
def test_accelerate_is_asked_for_fsdp(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.ipynb").write_text(notebook(cell))
    (tmp_path / "train.py").write_text(ACCELERATOR)
    assert ("train.py", "FM333") in codes_of(tmp_path)


def test_a_source_that_a_cell_writes_is_scanned(tmp_path: Path) -> None:
    main = "from save import keep\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    main += "model = FSDP(net)\nkeep(model)\n"
    save = "import torch\ndef keep(model):\n    torch.save(model.state_dict(), 'a.pt')  # FSDP\n"
    text = notebook("x = 1", f"%%writefile save.py\n{save}", f"%%writefile main.py\n{main}")
    (tmp_path / "a.ipynb").write_text(text)
    found = {(use.cell, use.line, use.code) for use in scan_paths([tmp_path]).uses}
    assert found >= {(4, 4, "FM301"), (3, 4, "FM308")}


def test_cells_are_named_with_what_becomes_of_them(tmp_path: Path) -> None:
    cells = (
        HF,
        "%%writefile b.yaml\nfsdp: [full_shard\n",
        "x = 1\n!torchrun t.py --output_dir o \\\n  --fsdp full_shard",
        "%env ACCELERATE_USE_FSDP=true",
        "%%writefile c.yaml\nfsdp: full_shard\nfsdp_config: {version: 2}\n",
        "%%writefile d.yaml\ndistributed_type: MULTI_GPU\nfsdp_config: {fsdp_offload_params: true}\n",
    )
    (tmp_path / "a.ipynb").write_text(notebook(*cells))
    found = find_launches([tmp_path])
    assert [(each.cell, each.line, each.framework, each.state) for each in found] == [
        (2, 1, "hf", "changes"),
        (3, 1, "", "refused"),
        (4, 2, "hf", "changes"),
        (5, 1, "accelerate", "elsewhere"),
        (6, 1, "hf", "fsdp2"),
        (7, 1, "accelerate", "unused"),
    ]
    assert found[1].message.startswith("not converted: ")
    assert found[0].place.endswith("a.ipynb:cell 2:1")
    assert "FSDP_VERSION=2" in found[3].message
    assert not found[5].message
    assert not scan_paths([tmp_path]).files  # no cell is broken for the line that the command goes on with


def test_a_source_that_two_cells_write_is_read_as_one(tmp_path: Path) -> None:
    header = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    body = "def shard(net):\n    return FSDP(net)\n"
    path = tmp_path / "a.ipynb"
    path.write_text(notebook(f"%%writefile parts.py\n{header}", f"%%writefile -a parts.py\n{body}"))
    assert sources_in(path)[tmp_path / "parts.py"] == header + body
    path.write_text(notebook(f"%%writefile parts.py\n{header}", f"%%writefile parts.py\n{body}"))
    assert sources_in(path)[tmp_path / "parts.py"] == body
