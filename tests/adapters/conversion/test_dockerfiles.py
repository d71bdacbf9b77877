"""Dockerfiles: what their commands and variables become is said, and counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.adapters.conversion.dockerfiles import dockerfile_becomes
from fsdp_migrate.config_files import convert_config_file
from fsdp_migrate.errors import NothingToConvertError
from fsdp_migrate.source.surroundings import find_configs


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


NEW = "accelerate launch --use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT t.py"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('CMD ["accelerate", "launch", "--use_fsdp", "t.py"]', "CMD, line 3"),
        ("RUN accelerate launch --use_fsdp t.py", "RUN, line 3"),
        ("ENTRYPOINT accelerate launch \\\n    --use_fsdp t.py", "ENTRYPOINT, line 3"),
    ],
)
def test_commands_of_an_image(line: str, where: str) -> None:
    said = dockerfile_becomes(f"FROM x\n# one\n{line}\n")
    assert f"The command in `{where}` becomes `accelerate launch" in said
    assert "--fsdp_version 2" in said


@pytest.mark.parametrize(
    "line",
    [
        "ENV ACCELERATE_USE_FSDP=true FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
        "ENV ACCELERATE_USE_FSDP true\nENV FSDP_SHARDING_STRATEGY SHARD_GRAD_OP",
        "ENV ACCELERATE_USE_FSDP=true \\\n    FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP",
    ],
)
def test_variables_of_an_image(line: str) -> None:
    assert "FSDP_RESHARD_AFTER_FORWARD=false" in dockerfile_becomes(f"FROM x\n{line}\n")


def test_a_file_of_an_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM x\nCMD accelerate launch --use_fsdp t.py\n")
    with pytest.raises(NothingToConvertError, match="a Dockerfile, which is not changed"):
        convert_config_file(path)
    assert [(each.state, NEW in each.message) for each in find_configs([tmp_path])] == [("unclear", True)]
    path.write_text("FROM x\n# no fsdp\nCMD python t.py\n")
    assert find_configs([tmp_path]) == []
