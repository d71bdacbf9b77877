"""Files with a word of FSDP that a project's own commands start without it, or may start with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.source.projects import FSDP
from tests.source.test_reach import near


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WITH_IMPORT = (
    "from accelerate import Accelerator\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType\n\n\n"
    "def main():\n"
    "    accelerator = Accelerator()\n"
    "    model = accelerator.prepare(make())\n"
    "    accelerator.unwrap_model(model).save_pretrained('out')\n\n\n"
    "main()\n"
)
NO_FSDP = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nfsdp_config: {}\n"
ACCELERATE = "accelerate launch --config_file acc_fsdp.yaml --num_processes $N train.py --data a.json $MORE\n"
OF_TRAINER = (
    "from transformers import HfArgumentParser, Trainer, TrainingArguments\n\n\n"
    "def train():\n"
    "    args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]\n"
    "    model = make()\n"
    "    model.set_up(fsdp=args.fsdp)\n"
    "    trainer = Trainer(model, args)\n"
    "    trainer.train()\n"
    "    save(trainer.model.state_dict())\n"
)
ENTRY = "from train import train\n\ntrain()\n"
DEEPSPEED = "deepspeed start.py \\\n    --deepspeed ./zero3.json --model $MODEL\n"


def of_accelerate(folder: Path, **changes: str) -> bool:
    """Tell whether a sharded model may come to the file with the import."""
    files = {"train.py": WITH_IMPORT, "acc_fsdp.yaml": NO_FSDP, "run.sh": ACCELERATE}
    return "train.py" in near(folder, files | {each.replace("__", "."): changes[each] for each in changes})


def of_trainer(folder: Path, **changes: str) -> bool:
    """Tell whether a sharded model may come to the file that hands on the Trainer's argument."""
    files = {"train.py": OF_TRAINER, "start.py": ENTRY, "zero3.json": '{"stage": 3}', "run.sh": DEEPSPEED}
    return "train.py" in near(folder, files | {each.replace("__", "."): changes[each] for each in changes})


def test_every_launch_names_a_config_that_asks_for_no_fsdp(tmp_path: Path) -> None:
    assert not of_accelerate(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"acc_fsdp__yaml": "distributed_type: DEEPSPEED\nfsdp_config: {}\n"},
        {"acc_fsdp__yaml": '{"distributed_type": "MULTI_GPU"}\n'},
        {"run__sh": "accelerate launch --multi_gpu train.py\n"},
        {"run__sh": "accelerate launch --use_deepspeed --deepspeed_config_file a.json train.py $MORE\n"},
        {"run__sh": "torchrun --nproc_per_node=2 train.py\n"},
        {"run__sh": "# accelerate launch train.py\n", "README__md": f"Run it:\n\n```bash\n{ACCELERATE}```\n"},
        {"earlier__py": WITH_IMPORT},
        {"notes__py": "# see train.py for the loop\n"},
    ],
)
def test_commands_that_ask_for_none(tmp_path: Path, changes: dict[str, str]) -> None:
    assert not of_accelerate(tmp_path, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        # A command, or what it names, may ask for it.
        {"acc_fsdp__yaml": "distributed_type: FSDP\n"},
        {"acc_fsdp__yaml": "num_processes: 2\n"},
        {"run__sh": ACCELERATE.replace("acc_fsdp", "machine")},
        {"run__sh": "accelerate launch train.py\n"},
        {"run__sh": "accelerate launch $FLAGS --multi_gpu train.py\n"},
        {"run__sh": "accelerate launch --config_file $CONFIG train.py\n"},
        {"run__sh": "torchrun train.py --config a.yaml\n"},
        {"run__sh": "python start.py\n"},
        {"run__sh": f"{ACCELERATE}SCRIPT=train.py\naccelerate launch $SCRIPT\n"},
        {"run__sh": f"{ACCELERATE}accelerate launch -m train\n"},
        {"more__sh": "accelerate launch train.py\n"},
        {"all__py": "run(['accelerate', 'launch', 'train.py'])\n"},
        {"own__yaml": "wrap: fsdp\n"},
        # The source says more than an import.
        {"train__py": f"{WITH_IMPORT}print(isinstance(model, FSDP))\n"},
        {"train__py": f"{WITH_IMPORT}print(StateDictType.FULL_STATE_DICT)\n"},
        {"train__py": f"{WITH_IMPORT}__all__ = ['FSDP']\n"},
        {"train__py": f"{WITH_IMPORT}if accelerator.distributed_type == DistributedType.FSDP:\n    pass\n"},
        {"more__py": "from train import FSDP\nmodel = FSDP(make())\n"},
        {"more__py": "import train\nmodel = train.FSDP(make())\n"},
        # Another file with the import is started otherwise, or not from there.
        {"more__py": "import train\ntrain.main()\n", "more__sh": "accelerate launch more.py\n"},
        {"train__py": f"import wrap\n{WITH_IMPORT}", "wrap__py": f"{FSDP}model = FSDP(make())\n"},
    ],
)
def test_what_may_ask_for_it(tmp_path: Path, changes: dict[str, str]) -> None:
    assert of_accelerate(tmp_path, **changes)


def test_a_file_of_another_folder_that_nothing_starts(tmp_path: Path) -> None:
    files = {
        "train.py": WITH_IMPORT,
        "acc_fsdp.yaml": NO_FSDP,
        "run.sh": ACCELERATE,
        "old/run.py": WITH_IMPORT,
    }
    assert near(tmp_path, files) == {"old/run.py"}


def test_the_argument_of_a_trainer_that_deepspeed_starts(tmp_path: Path) -> None:
    assert not of_trainer(tmp_path)


@pytest.mark.parametrize(
    "question",
    ["    if len(args.fsdp) > 0:\n        wait()\n", "    if trainer.is_fsdp_enabled:\n        wait()\n"],
)
def test_a_question_that_comes_out_false(tmp_path: Path, question: str) -> None:
    asking = f"{OF_TRAINER}{question}"
    assert not of_trainer(tmp_path, train__py=asking)
    assert of_trainer(tmp_path, train__py=asking, run__sh="torchrun start.py $ARGS\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"run__sh": "torchrun start.py --output_dir out --fsdp 'full_shard auto_wrap'\n"},
        {"run__sh": "torchrun start.py $ARGS\n"},
        {"run__sh": "torchrun start.py args.json\n"},
        {"run__sh": "deepspeed start.py --deepspeed $DS $ARGS\n"},
        {"other__py": ENTRY, "run2__sh": "accelerate launch other.py\n"},
        {"train__py": OF_TRAINER.replace("args.fsdp", "'full_shard'")},
        {"more__py": "class Own(TrainingArguments):\n    fsdp: str = 'full_shard'\n"},
        {"more__py": "parser.add_argument('--fsdp', default='full_shard')\n"},
    ],
)
def test_an_argument_that_may_ask_for_it(tmp_path: Path, changes: dict[str, str]) -> None:
    assert of_trainer(tmp_path, **changes)
