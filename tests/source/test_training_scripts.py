"""Which files of a project are run to train: of several, `compare` is run with each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.training_scripts import texts_of, training_scripts


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WRAP = "from torch.distributed import fsdp\ndef wrap(net):\n    return fsdp.FullyShardedDataParallel(net)\n"
TRAINS = 'def main():\n    loss.backward()\n\n\nif __name__ == "__main__":\n    main()\n'
FILES = {
    "lm/sharding.py": WRAP,
    "pretrain.py": f"from lm.sharding import wrap\n{TRAINS}",
    "finetune.py": f"from lm import sharding\n{TRAINS}",
    "tune.py": f"import lm.sharding as made\n{TRAINS}",
    "alone.py": WRAP + TRAINS,
    # Without a step, without FSDP, not run, and a test.
    "evaluate.py": f"from lm.sharding import wrap\n{TRAINS.replace('loss.backward', 'print')}",
    "tokenize.py": TRAINS,
    "lm/loop.py": f"from lm.sharding import wrap\n{TRAINS.partition('if')[0]}",
    "tests/test_train.py": WRAP + TRAINS,
}


@pytest.mark.parametrize("is_turned", [False, True])
def test_scripts_that_train_and_shard_are_named(tmp_path: Path, *, is_turned: bool) -> None:
    turned = (
        "from fsdp_migrate import prepare_fully_shard\ndef wrap(net):\n    return prepare_fully_shard(net)\n"
    )
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(WRAP, turned) if is_turned else text)
    found = training_scripts(texts_of([tmp_path]), scan_paths([tmp_path]))
    names = ["alone.py", "finetune.py", "pretrain.py", "tune.py"]
    assert sorted(found) == [str(tmp_path / name) for name in names]
