"""Flags of ``accelerate launch`` in a launcher that is written in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.samples import codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

RUN = "os.system(f'accelerate launch {flags} train.py')\n"
LINE = 'flags = "--use_fsdp --fsdp_sharding_strategy=2"\n'


@pytest.mark.parametrize(
    ("body", "number"),
    [
        (LINE + RUN, 1),
        ("flags = '--mixed_precision=\"fp16\" --use_fsdp'\n" + RUN, 1),
        ("run(['accelerate', 'launch', '--use_fsdp', '--fsdp_offload_params', 'true', 'train.py'])\n", 1),
        ("os.system(f'accelerate launch --use_fsdp {more} train.py')\n", 1),
        ("flags = ' --use_fsdp' if on else ''\n" + RUN, 1),
        (LINE.replace("--use_fsdp", "--use_fsdp --fsdp_version 2") + RUN, 0),
        ("parser.add_argument('--use_fsdp')\n" + RUN, 0),
        ("def f():\n    '''accelerate launch --use_fsdp train.py'''\n", 0),
        ("if '--use_fsdp' in argv:\n    pass\n" + RUN, 0),
        (LINE + "os.system(f'python train.py {flags}')\n", 0),
        ("flags = '--no-use_fsdp --use_fsdps'\n" + RUN, 0),
    ],
)
def test_the_flag_in_a_text(body: str, number: int) -> None:
    assert codes(body, "import os\n\n\n").count(("FM320", "commented")) == number


def test_what_it_launches_may_be_sharded(tmp_path: Path) -> None:
    train = "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    train += "model, optimizer = accelerator.prepare(model, optimizer)\nmodel.state_dict()\n"
    (tmp_path / "train.py").write_text(train)
    for line, expected in ((LINE, {"FM320", "FM333"}), ("flags = ''\n", set())):
        (tmp_path / "run.py").write_text(f"import os\n\n{line}{RUN}")
        uses = scan_paths([tmp_path]).uses
        assert {use.code for use in uses if use.action == "commented"} == expected
