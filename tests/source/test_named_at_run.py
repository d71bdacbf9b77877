"""Functions for FSDP1 that nothing calls by their names, and that a text may name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.test_live_sharding import is_near


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "other",
    [
        "from hydra.utils import instantiate\nrun(instantiate(cfg.wrapper, net))\n",
        "from pydoc import locate\nrun(locate(cfg['wrapper'])(net))\n",
        "from importlib.metadata import entry_points\nrun(entry_points(group='x')[0].load()(net))\n",
        "import importlib\nrun(importlib.import_module('shards').__dict__[cfg.name](net))\n",
        "import shards\nrun(vars(shards)[cfg.name](net))\n",
        "import shards\nrun(getattr(shards, cfg.name)(net))\n",
        "from operator import methodcaller\nrun(methodcaller('apply_' + cfg.kind, net)(shards))\n",
        "WRAPPER = 'shards.apply_fsdp1'\n",
        "run(eval(f'shards.apply_fsdp1({net})'))\n",
        "exec('import shards; net = shards.apply_fsdp1(net, 1)')\n",
    ],
)
def test_a_source_that_takes_functions_by_their_names(tmp_path: Path, other: str) -> None:
    assert is_near(tmp_path, other=other)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conf/c.yaml", "wrapper:\n  _target_: shards.apply_fsdp1\n"),
        ("pyproject.toml", '[project.entry-points."x.wrap"]\none = "shards:apply_fsdp1"\n'),
        ("c.json", '{"wrapper": "apply_fsdp1"}\n'),
        ("run.sh", "python run.py --wrapper apply_fsdp1\n"),
    ],
)
def test_a_config_that_names_a_function_that_no_source_names(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text.replace("apply_fsdp1", "apply_fsdp2"))
    assert not is_near(tmp_path)
    (tmp_path / name).write_text(text)
    assert is_near(tmp_path)


@pytest.mark.parametrize(
    "other",
    [
        "import json\nkind = getattr(args, name)\n",
        "import shards\nmissing = getattr(shards)\n",
        "raise ValueError('apply_fsdp1 is gone')\n",
        "__all__ = ['apply_fsdp1']\n",
        "is_old = kind == 'apply_fsdp1'\n",
        "def wrap():\n    '''Like shards.apply_fsdp1(net).'''\n",
        "for name, value in vars(args).items():\n    print(name, value)\n",
        "import importlib\nyaml = importlib.import_module('yaml')\n",
    ],
)
def test_what_names_no_function_of_the_project(tmp_path: Path, other: str) -> None:
    assert not is_near(tmp_path, other=other)
