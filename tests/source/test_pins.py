"""Which requirements keep FSDP2 out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.pins import excludes, find_pins, has_trainers_launched, packages_of, without_ours


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("bounds", "needed", "expected"),
    [
        ("==2.1.2", (2, 6), True),
        ("==2.6", (2, 6), False),
        ("==2.6.0", (2, 6), False),
        ("==2.*", (2, 6), False),
        ("==2.5.*", (2, 6), True),
        ("~=2.5.1", (2, 6), True),
        ("~=2.5", (2, 6), False),
        ("<2.6", (2, 6), True),
        ("<=2.6", (2, 6), False),
        (">=2.0,<3", (2, 6), False),
        (">=1.13", (2, 6), False),
        ("!=2.1", (2, 6), False),
    ],
)
def test_requirements_that_keep_fsdp2_out(bounds: str, needed: tuple[int, ...], expected: bool) -> None:
    assert excludes(bounds, needed) is expected


def test_a_module_or_a_vendored_package_installs_nothing_of_the_project(tmp_path: Path) -> None:
    files = {
        "setup.py": "from setuptools import setup\n\nsetup(name='x')\n",
        "eval/run.py": "",
        "run/setup.py": "def setup_and_build(args):\n    return args\n",
        "kit/coco/cap/setup.py": "import setuptools\nsetuptools.setup(name='cap')\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert without_ours([tmp_path]) == without_ours([tmp_path / "eval"]) == [str(tmp_path / "setup.py")]
    (tmp_path / "setup.py").unlink()
    assert without_ours([tmp_path]) == []


def test_what_a_logger_kept_of_a_run_is_no_requirement(tmp_path: Path) -> None:
    for folder in ("", "wandb/run-1/files", "mlruns/0/artifacts"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "requirements.txt").write_text("torch==2.0.1\n")
    assert [pin.path for pin in find_pins([tmp_path], ["torch"])] == [str(tmp_path / "requirements.txt")]


@pytest.mark.parametrize(
    ("name", "is_read"),
    [("requirement.txt", True), ("requirements-gpu.txt", True), ("required.txt", False)],
)
def test_files_of_requirements_by_their_names(tmp_path: Path, name: str, *, is_read: bool) -> None:
    (tmp_path / name).write_text("torch==2.0.1\n")
    assert bool(find_pins([tmp_path], ["torch"])) is is_read


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ('"""It is faster for FSDP(model) than DDP."""\n', set()),
        ("x = 1  # was FSDP(model)\n", set()),
        ("wrapper = names['FullyShardedDataParallel']\n", {"torch"}),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nm = FSDP(net)\n", {"torch"}),
    ],
)
def test_what_is_said_of_fsdp_alone_needs_no_version(source: str, needed: set[str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(source)
    report = scan_paths([tmp_path])
    assert report.uses
    assert packages_of(report, []) == needed


@pytest.mark.parametrize(
    ("requirement", "trains", "needed"),
    [
        ("transformers==4.45.0", "Trainer(model=net, args=TrainingArguments('out')).train()", ["4.51"]),
        ("transformers==4.52.1", "Trainer(model=net, args=TrainingArguments('out')).train()", []),
        ("transformers==4.45.0", "net(1).backward()", []),
    ],
)
def test_a_trainer_that_accelerates_config_shards_needs_its_version(
    requirement: str, trains: str, needed: list[str], tmp_path: Path
) -> None:
    """Before 4.51 the Trainer prepares a model without its optimizer, which Accelerate's FSDP2 refuses."""
    (tmp_path / "requirements.txt").write_text(f"{requirement}\n")
    (tmp_path / "run.sh").write_text("accelerate launch --config_file fsdp.yaml train.py\n")
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_use_orig_params: true\n"
    )
    (tmp_path / "train.py").write_text(f"from transformers import Trainer, TrainingArguments\n{trains}\n")
    report = scan_paths([tmp_path])
    is_launched = has_trainers_launched(report, ["accelerate"])
    pins = find_pins([tmp_path], packages_of(report, ["accelerate"]), has_trainers_launched=is_launched)
    assert [each.needed for each in pins] == needed
    assert not has_trainers_launched(report, [])
