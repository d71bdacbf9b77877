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
        ("flags = '--no-use_fsdp --use_fsdps --use_fsdp-x'\n" + RUN, 0),
        (LINE.replace("use_fsdp", "use-fsdp") + RUN, 1),
        # What is only said of FSDP2, or holds for another line, makes no line FSDP2's.
        (f"def f():\n    'New runs have --fsdp_version 2.'\n    {LINE}    {RUN}", 1),
        (f"print('--fsdp_version 2')\n{LINE}{RUN}", 1),
        (LINE + LINE.replace("--use_fsdp", "--use_fsdp --fsdp_version 2") + RUN, 1),
        ("run(['accelerate', 'launch', '--use_fsdp', '--fsdp_version', '1', 'train.py'])\n", 1),
        ("run(['accelerate', 'launch', '--use_fsdp', '--fsdp_version', '2', 'train.py'])\n", 0),
        ("run(['accelerate', 'launch', '--use-fsdp', '--fsdp-version=2', 'train.py'])\n", 0),
        (LINE + "if new:\n    flags += ' --fsdp_version 2'\n" + RUN, 0),
        (LINE + "if new:\n    flags += ' --fsdp_version 1'\n" + RUN, 1),
        (f"{LINE}{RUN}def f():\n    return '--fsdp_version 2'\n", 1),
        # What is only said of the flag runs nothing.
        (f"logger.info(f'accelerate launch --use_fsdp {{n}}')\n{RUN}", 0),
        (f"print('accelerate launch --use_fsdp {{}}'.format(n))\n{RUN}", 0),
        (f"print(' '.join(['accelerate', 'launch', '--use_fsdp']), file=f)\n{RUN}", 0),
        (f"raise ValueError('give ' + '--use_fsdp to it')\n{RUN}", 0),
        (f"msg = f'give --use_fsdp to {{x}}'\nlog(msg)\nraise ValueError(msg)\n{RUN}", 0),
        (f"msg = f'give --use_fsdp to {{x}}'\nprint(msg)\nos.system(msg)\n{RUN}", 1),
        (f"msg = 'give --use_fsdp to'\nmsg = msg + x\nprint(msg)\n{RUN}", 1),
        (f"assert on, 'give --use_fsdp to it'\n{RUN}", 0),
        (f"assert os.system('x --use_fsdp y') == 0\n{RUN}", 1),
        (f"print(os.system('accelerate launch --use_fsdp train.py'))\n{RUN}", 1),
        (f"Run('accelerate launch --use_fsdp train.py').info()\n{RUN}", 1),
    ],
)
def test_the_flag_in_a_text(body: str, number: int) -> None:
    assert codes(body, "import os\n\n\n").count(("FM320", "commented")) == number


def test_what_it_launches_may_be_sharded(tmp_path: Path) -> None:
    train = "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    train += "model, optimizer = accelerator.prepare(model, optimizer)\nmodel.state_dict()\n"
    (tmp_path / "train.py").write_text(train)
    both = {"FM320", "FM333"}
    for line, expected in ((LINE, both), (LINE.replace("use_", "use-"), both), ("flags = ''\n", set())):
        (tmp_path / "run.py").write_text(f"import os\n\n{line}{RUN}")
        uses = scan_paths([tmp_path]).uses
        assert {use.code for use in uses if use.action == "commented"} == expected


HF_LINE = "'torchrun train.py --fsdp \"full_shard auto_wrap\" --fsdp_config f.json'"


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ("run(['torchrun', 'train.py', '--fsdp', 'full_shard auto_wrap', '--bf16'])\n", 1),
        (f"os.system({HF_LINE})\n", 1),
        (f"line = {HF_LINE}\nos.system(line)\n", 1),
        ("os.system(f'torchrun train.py --fsdp=shard_grad_op {more}')\n", 1),
        (f"print({HF_LINE})\n", 0),
        (f"def f():\n    {HF_LINE}\n", 0),
        ("run(['torchrun', 'train.py', '--fsdp', 'true'])\n", 0),
        ("run(['torchrun', 'train.py', '--fsdp', 'true'])\nkind = 'full_shard'\n", 0),
        ("more = ['--fsdp', 'full_shard']\nrun(['torchrun', 'train.py', *more])\n", 1),
        ("more = ['--fsdp', 'full_shard']\nrun([program, *more])\n", 0),
        ("more = '--fsdp full_shard'\nrun(['torchrun', 'train.py', *given])\n", 0),
        ("run(['torchrun', 'train.py', '--fsdp_kind', 'full_shard'])\n", 0),
    ],
)
def test_flags_of_the_hf_trainer(body: str, number: int) -> None:
    assert codes(body).count(("FM327", "commented")) == number


CALLS = "from argparse import Namespace\nfrom accelerate.commands.launch import launch_command\n\n\n"
GIVEN = (
    "ns = Namespace(mixed_precision='bf16', {}, fsdp_sharding_strategy='FULL_SHARD')\nlaunch_command(ns)\n"
)


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (GIVEN.format("use_fsdp=True"), True),
        (GIVEN.format("use_fsdp=args.fsdp"), True),
        ("ns = make()\nns.use_fsdp = True\nlaunch_command(ns)\n", True),
        ("launch_command(Namespace(**{'use_fsdp': True}))\n", True),
        ("d = {}\nd['use_fsdp'] = True\nlaunch_command(Namespace(**d))\n", True),
        (GIVEN.format("use_fsdp=False"), False),
        (GIVEN.format("use_fsdp=True, fsdp_version=2"), False),
        ("model = build(use_fsdp=True)\nlaunch_command(make())\n", False),
        # What launches nothing by Accelerate's launcher.
        (GIVEN.format("use_fsdp=True").replace("launch_command(ns)", "own(ns)"), False),
    ],
)
def test_the_launcher_that_is_given_an_object(tmp_path: Path, body: str, *, is_said: bool) -> None:
    (tmp_path / "run.py").write_text(CALLS + body)
    said = [use.becomes for use in scan_paths([tmp_path]).uses if use.code == "FM320"]
    assert ["fsdp_version=2: add that" in each for each in said] == [True] * is_said


OWN_TRAINER = (
    "from transformers import Trainer\n\n\nclass Own(Trainer):\n"
    "    def compute_loss(self, model, inputs):\n        return model.module(**inputs)\n"
)
PREPARES = (
    "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\nmodel.state_dict()\n"
)


@pytest.mark.parametrize("more", ["", ", fsdp_version=2"])
@pytest.mark.parametrize("train", [OWN_TRAINER, PREPARES])
def test_what_such_a_launcher_starts_may_be_sharded(tmp_path: Path, train: str, more: str) -> None:
    (tmp_path / "run.py").write_text(CALLS + GIVEN.format(f"use_fsdp=True{more}"))
    (tmp_path / "train.py").write_text(train)
    found = {use.code for use in scan_paths([tmp_path]).uses if use.action == "commented"}
    assert found == (set() if more else {"FM320", "FM333"})
