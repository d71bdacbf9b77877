"""Which files of a project a sharded model may come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.files import find_sources
from fsdp_migrate.source.following import links_of
from tests.source.projects import FSDP, WRAP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAVES = "def save(model):\n    return model.state_dict()\n"


def near(folder: Path, files: dict[str, str]) -> set[str]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    links = links_of(find_sources([folder]), [folder])
    return {path.relative_to(folder).as_posix() for path, each in links.items() if each.is_near}


def test_files_that_shard_import_such_a_file_or_are_imported_by_it(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/wrap.py": f"{WRAP}\n\n{SAVES}",
        "pkg/tools.py": f"{SAVES}",
        "pkg/hooks/__init__.py": "from .ema import save\n",
        "pkg/hooks/ema.py": SAVES,
        "pkg/loop.py": f"from pkg.wrap import wrap\nfrom . import hooks, tools\n\n\n{SAVES}",
        "train.py": f"from pkg.loop import save as keep\n\n\n{SAVES}",
        "export.py": f"from pkg.tools import save as keep\n\n\n{SAVES}",
        "alone.py": SAVES,
    }
    expected = {"pkg/wrap.py", "pkg/tools.py", "pkg/hooks/ema.py", "pkg/loop.py", "train.py"}
    assert near(tmp_path, files) == expected


@pytest.mark.parametrize(
    ("train", "is_near"),
    [
        ("plugin = FullyShardedDataParallelPlugin()", True),
        ("if state.distributed_type == DistributedType.FSDP:\n    pass", True),
        ("args = TrainingArguments(fsdp='full_shard')", True),
        ("args = TrainingArguments(fsdp='')", False),
        ("trainer = Trainer(strategy='fsdp')", True),
        ("trainer = Trainer(strategy='ddp')", False),
        ("model = prepare_fully_shard(net, {})", True),
        ("model = DistributedDataParallel(net)", False),
    ],
)
def test_frameworks_and_rewritten_sources_shard_as_well(tmp_path: Path, train: str, is_near: bool) -> None:
    files = {"train.py": f"import tools\n\n{train}\n", "tools.py": SAVES}
    assert near(tmp_path, files) == ({"tools.py"} if is_near else set())


FAIRSCALE = "from fairscale.nn import FullyShardedDataParallel\n"
OWN = "class FullyShardedDataParallel:\n    pass\n"


@pytest.mark.parametrize(
    ("train", "is_near"),
    [
        (f"{FAIRSCALE}model = FullyShardedDataParallel(net)\n", False),
        (f"{FAIRSCALE}class Own(FullyShardedDataParallel):\n    pass\n", False),
        ("import fairscale\nmodel = fairscale.nn.FullyShardedDataParallel(net)\n", False),
        (f"{OWN}model = FullyShardedDataParallel(net)\n__all__ = ['FullyShardedDataParallel']\n", False),
        ("from own import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n", False),
        ("from handed import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n", False),
        ("# model = FullyShardedDataParallel(net)\n", False),
        ('"""Run with fsdp=True, or call fully_shard."""\nmodel = net\n', False),
        ("raise ValueError('there is no FullyShardedDataParallel here')\n", False),
        ("import torch.distributed.fsdp as f\nmodel = f.FullyShardedDataParallel(net)\n", True),
        ("from torch.distributed.fsdp import *\nmodel = FullyShardedDataParallel(net)\n", True),
        ("model = getattr(torch.distributed.fsdp, 'FullyShardedDataParallel')(net)\n", True),
        (f"try:\n    {FAIRSCALE}except ImportError:\n    {FSDP}model = FSDP(net)\n", True),
        ("from others import FullyShardedDataParallel\nmodel = FullyShardedDataParallel(net)\n", True),
        ("command = ['run.py', '--fsdp=full_shard auto_wrap']\n", True),
        ("def train(net, fsdp='full_shard'):\n    pass\n", True),
        ("def train(net, *, fsdp=None):\n    pass\n", False),
    ],
)
def test_what_a_file_means_by_the_words_of_fsdp(tmp_path: Path, train: str, is_near: bool) -> None:
    files = {
        "train.py": f"import tools\n{train}",
        "tools.py": SAVES,
        "own.py": OWN,
        "handed.py": FAIRSCALE,
    }
    assert near(tmp_path, files) == ({"tools.py"} if is_near else set())


def test_tests_are_left_out_wherever_the_project_lies(tmp_path: Path) -> None:
    tested = f"from tools import save\n{WRAP}\n\n{SAVES}"
    assert near(tmp_path, {"tests/test_it.py": tested, "tools.py": SAVES}) == set()
    inside = tmp_path / "tests" / "project"
    inside.mkdir()
    assert near(inside, {"train.py": tested, "tools.py": SAVES}) == {"train.py", "tools.py"}
