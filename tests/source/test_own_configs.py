"""A file in the words of Hugging Face's Trainer, and who reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source.surroundings import find_configs


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SETTINGS = {"transformer_layer_cls_to_wrap": "Block", "limit_all_gathers": True, "use_orig_params": True}
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
READ = "config = json.load(open('conf/fsdp.json'))\n"
USED = "model = FSDP(net, limit_all_gathers=config['limit_all_gathers'])\n"


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (FSDP + READ + USED, "unclear"),
        (FSDP + READ + USED.replace("['limit_all_gathers']", ".get('limit_all_gathers')"), "unclear"),
        (FSDP + USED, "changes"),
        (FSDP + READ, "changes"),
        (READ + USED, "changes"),
        ("arguments = TrainingArguments(fsdp='full_shard', fsdp_config='conf/fsdp.json')\n", "changes"),
    ],
)
def test_what_code_looks_up_by_itself_is_left_to_it(tmp_path: Path, source: str, state: str) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "fsdp.json").write_text(json.dumps(SETTINGS))
    (tmp_path / "train.py").write_text(source)
    (found,) = find_configs([tmp_path])
    assert (found.state, found.holds_arguments) == (state, state == "unclear")
    assert ("train.py looks its keys up" in found.message) is (state == "unclear")


def test_the_trainers_own_arguments_are_theirs(tmp_path: Path) -> None:
    arguments = {"output_dir": "out", "fsdp": "full_shard", "fsdp_config": SETTINGS, "learning_rate": 1.0}
    (tmp_path / "fsdp.json").write_text(json.dumps(arguments))
    (tmp_path / "train.py").write_text(FSDP + "x = json.load(open('fsdp.json'))['fsdp']\n")
    (found,) = find_configs([tmp_path])
    assert found.state == "changes"
