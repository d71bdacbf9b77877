"""Models of a kind that the project defines, of which transformers alone knows nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.own_model_types import of_transformers


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("source", "is_own"),
    [
        ('class TinyConfig(PretrainedConfig):\n    model_type = "tiny_policy"\n', True),
        ("class TinyConfig(PretrainedConfig):\n    model_type: str = 'tiny_policy'\n", True),
        ('class TinyConfig(PretrainedConfig):\n    model_type = "other"\n', False),
        ('if config.model_type == "tiny_policy":\n    pass\n', False),
        ("", False),
    ],
)
def test_a_model_whose_kind_a_source_defines(tmp_path: Path, source: str, *, is_own: bool) -> None:
    (tmp_path / "model.py").write_text(source)
    for name, kind in (("own", "tiny_policy"), ("known", "qwen2")):
        (tmp_path / name).mkdir()
        found = {"model_type": kind, "architectures": ["M"]}
        (tmp_path / name / "config.json").write_text(json.dumps(found))
    (tmp_path / "empty").mkdir()
    folders = [str(tmp_path / name) for name in ("own", "known", "empty")]
    assert of_transformers(folders, [tmp_path]) == (folders[1:] if is_own else folders)
