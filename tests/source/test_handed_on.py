"""FSDP1's names that one file of a project imports from another, which has them of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths
from tests.source.samples import ONE_TURNED, in_one_line


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
TYPES = f"{FSDP}from torch.distributed.fsdp import StateDictType\n"
WRAP = f"{TYPES}\ndef wrap(net):\n    return FSDP(net)\n"
SAVE = (
    "def save(model):\n    with {0}.state_dict_type(model, {1}StateDictType.SHARDED_STATE_DICT):\n"
    "        return model.state_dict()\n"
)
ALIAS = "\n\nSharded = FSDP\n"
NEW = f"Sharded, StateDictType\n{SAVE.format('Sharded', '')}"
SAVED = "def save(model):\n    return get_model_state_dict(model)\n"


def after(folder: Path, files: dict[str, str]) -> dict[str, str]:
    """Write files, rewrite all of them, and return what becomes of each; a second rewriting does nothing."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert rewrite_paths([folder], write=True).problems == ()
    assert rewrite_paths([folder]).changed == ()
    return {name: in_one_line((folder / name).read_text()) for name in files}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (
            {"dist.py": WRAP, "main.py": f"from dist import FSDP, StateDictType\n{SAVE.format('FSDP', '')}"},
            "main.py",
        ),
        ({"dist.py": WRAP, "main.py": f"import dist\n{SAVE.format('dist.FSDP', 'dist.')}"}, "main.py"),
        ({"dist.py": WRAP, "main.py": f"from dist import *\n{SAVE.format('FSDP', '')}"}, "main.py"),
        (
            {
                "pkg/__init__.py": "from .dist import FSDP, StateDictType\n",
                "pkg/dist.py": WRAP,
                "pkg/main.py": f"from . import FSDP, StateDictType\n{SAVE.format('FSDP', '')}",
            },
            "pkg/main.py",
        ),
        # By names of the project's own.
        ({"dist.py": f"{WRAP}{ALIAS}", "main.py": f"from dist import {NEW}"}, "main.py"),
        (
            {"dist.py": f"{WRAP}{ALIAS}", "main.py": f"import dist\n{SAVE.format('dist.Sharded', 'dist.')}"},
            "main.py",
        ),
        (
            {
                "dist.py": "import torch.distributed.fsdp as fsdp\n\n"
                "Sharded: type = fsdp.FullyShardedDataParallel\n"
                f"StateDictType = fsdp.StateDictType\n{ONE_TURNED}",
                "main.py": f"from dist import {NEW}",
            },
            "main.py",
        ),
        (
            {
                "pkg/__init__.py": f"from .own import {NEW.splitlines()[0]}\n",
                "pkg/own.py": "from .dist import FSDP, StateDictType\n\nSharded = FSDP\n",
                "pkg/dist.py": WRAP,
                "pkg/main.py": f"from pkg import {NEW}",
            },
            "pkg/main.py",
        ),
        (
            {
                "dist.py": "try:\n"
                "    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType\n\n"
                "    Sharded = FullyShardedDataParallel\n"
                "except ImportError:\n    Sharded = StateDictType = None\n",
                "main.py": f"from dist import {NEW}",
            },
            "main.py",
        ),
    ],
)
def test_a_name_from_a_file_of_the_project_is_torchs(
    tmp_path: Path, files: dict[str, str], wanted: str
) -> None:
    assert SAVED in after(tmp_path, files)[wanted]


def test_an_import_stays_where_other_files_take_it_from(tmp_path: Path) -> None:
    main = "from dist import FSDP, wrap\n\nif cls is FSDP:\n    model = wrap(net)\n"
    files = after(tmp_path, {"dist.py": WRAP, "main.py": main})
    assert FSDP in files["dist.py"]
    assert "from dist import FSDP, wrap\n" in files["main.py"]
    alone = after(tmp_path / "alone", {"dist.py": WRAP, "main.py": "from dist import wrap\n"})
    assert FSDP not in alone["dist.py"]


def test_a_class_of_the_same_name_is_not_taken_for_torchs(tmp_path: Path) -> None:
    files = {
        "dist.py": WRAP,
        "own.py": "class FSDP:\n    pass\n",
        "main.py": "from own import FSDP\nmodel = FSDP(net)\n",
    }
    assert after(tmp_path, files)["main.py"] == files["main.py"]


def test_questions_about_a_name_of_the_projects_own_are_fsdp2s(tmp_path: Path) -> None:
    main = (
        "from dist import Sharded\n\n\ndef clip(module, value):\n    if isinstance(module, Sharded):\n"
        "        return module.clip_grad_norm_(value)\n"
    )
    files = after(tmp_path, {"dist.py": f"{WRAP}{ALIAS}", "main.py": main})
    assert "isinstance(module, FSDPModule)" in files["main.py"]
    assert "return clip_grad_norm_(module, value)" in files["main.py"]


def test_a_name_that_one_line_gives_torchs_class_beside_another_is_torchs(tmp_path: Path) -> None:
    main = "from dist import Sharded\nmodel = Sharded(net)\n"
    files = after(tmp_path, {"dist.py": f"{WRAP}\n\nSharded, Other = FSDP, Own\n", "main.py": main})
    assert "model = prepare_fully_shard(net)\n" in files["main.py"]


@pytest.mark.parametrize(
    "own",
    [
        "Sharded = FSDP\nSharded = Own\n",
        "if old:\n    Sharded = FSDP\nelse:\n    Sharded = Own\n",
        "Other, Sharded = FSDP, Own\n",
        "Sharded, Other = picked(FSDP, Own)\n",
        "from registry import *\n\nSharded.cls = FSDP\n",
        "def make():\n    Sharded = FSDP\n    return Sharded\n\n\nclass Sharded:\n    pass\n",
    ],
)
def test_a_name_that_may_be_of_another_class_is_not_taken_for_torchs(tmp_path: Path, own: str) -> None:
    files = {"dist.py": f"{WRAP}\n\n{own}", "main.py": "from dist import Sharded\nmodel = Sharded(net)\n"}
    assert after(tmp_path, files)["main.py"] == files["main.py"]


CONSTANT = (
    f"{TYPES}from torch.distributed.fsdp import FullStateDictConfig\n"
    "FULL = (StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))\n"
)
READS = (
    "def save(net):\n    model = FSDP(net)\n    with FSDP.state_dict_type(model, *FULL):\n"
    "        return model.state_dict()\n"
)


@pytest.mark.parametrize(
    ("other", "is_kept"),
    [
        (f"{FSDP}from pkg.save import FULL\nprint(FULL)\n", True),
        (f"{FSDP}from pkg import save\nprint(save.FULL)\n", True),
        (f"{FSDP}from pkg.save import *\nprint(FULL)\n", True),
        (f"{FSDP}from pkg.save import save\nprint(save)\n", False),
        (f"{FSDP}FULL = 1\nprint(FULL)\n", False),
    ],
)
def test_a_constant_stays_that_another_file_imports(tmp_path: Path, other: str, is_kept: bool) -> None:
    found = after(tmp_path, {"pkg/__init__.py": "", "pkg/save.py": f"{CONSTANT}\n{READS}", "run.py": other})
    assert ("FULL = (" in found["pkg/save.py"]) == is_kept
    assert "state_dict_type" not in found["pkg/save.py"]
