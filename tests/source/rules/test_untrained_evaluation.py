"""``trainer.evaluate()`` where the Trainer has not trained: FSDP2 refuses a model without an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

MADE = (
    "from transformers import Trainer, TrainingArguments\n"
    "args = TrainingArguments('out', fsdp='full_shard')\ntrainer = Trainer(model=model, args=args)\n"
)
IN_CLASS = """\
from transformers import Trainer, TrainingArguments


class Run:
    def __init__(self, model):
        self.trainer = Trainer(model=model, args=TrainingArguments("out", fsdp="full_shard"))

    def train(self):
        {}

    def test(self):
        self.trainer.evaluate()
"""


def said(text: str) -> list[str]:
    return [use.becomes for use in scan_source(text) if use.rule == "untrained-evaluation"]


@pytest.mark.parametrize(
    "body",
    [
        "trainer.evaluate()\n",
        "x = trainer.predict(data).predictions\n",
        "trainer.evaluate()\ntrainer.train()\n",
        "if args.do_train:\n    trainer.train()\nif args.do_eval:\n    trainer.evaluate()\n",
        "if args.do_train:\n    trainer.train()\nelse:\n    trainer.predict(data)\n",
        "other.train()\ntrainer.evaluate()\ntrainer.evaluate()\n",
        "if args.do_train:\n    fit(trainer)\ntrainer.evaluate()\n",
    ],
)
def test_an_evaluation_without_training(body: str) -> None:
    (found,) = said(f"{MADE}{body}")
    assert "`trainer.accelerator.prepare(trainer.model, torch.optim.SGD(" in found
    assert said(f"{MADE.replace(', fsdp=', ', f=')}{body}") == []


@pytest.mark.parametrize(
    "body",
    [
        "trainer.train()\ntrainer.evaluate()\n",
        "if args.do_train:\n    trainer.train()\n    trainer.evaluate()\n",
        "with timed():\n    trainer.train()\ntrainer.predict(data)\n",
        "model.evaluate()\nclassifier.predict(data)\n",
        "if ckpt:\n    trainer.train(ckpt)\nelse:\n    trainer.train()\ntrainer.evaluate()\n",
        "fit(trainer)\ntrainer.evaluate()\n",
        "def f(trainer):\n    trainer.evaluate()\n",
    ],
)
def test_an_evaluation_after_training_or_of_others(body: str) -> None:
    assert said(f"{MADE}{body}") == []


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("if config.use_fsdp:\n    print(1)\nelse:\n    trainer.evaluate()\n", False),
        ("if not config.use_fsdp:\n    trainer.evaluate()\n", False),
        ("if config.use_fsdp:\n    trainer.evaluate()\nelse:\n    print(1)\n", True),
        ("if config.val_steps:\n    print(1)\nelse:\n    trainer.evaluate()\n", True),
    ],
)
def test_an_evaluation_where_fsdp_is_off(body: str, *, is_said: bool) -> None:
    made = MADE.replace("'full_shard'", "'full_shard' if config.use_fsdp else ''")
    assert bool(said(f"{made}{body}trainer.train()\n")) is is_said


@pytest.mark.parametrize(("trains", "is_said"), [("self.trainer.train()", False), ("pass", True)])
def test_another_method_may_have_trained(trains: str, *, is_said: bool) -> None:
    assert bool(said(IN_CLASS.format(trains))) is is_said


@pytest.mark.parametrize(
    ("bases", "is_said"),
    [
        ("", False),
        ("(object)", False),
        ("(ABC, Generic[T])", False),
        ("(torch.nn.Module)", False),
        ("(Base)", False),
        ("(Base, Mixin)", True),
        ("(Mixin)", True),
        ("(Unseen)", True),
        ("(*bases)", True),
        ("(Trainer)", True),
        ("(Above)", True),
    ],
)
def test_a_trainer_of_the_sources_own(bases: str, *, is_said: bool) -> None:
    code = (
        "from abc import ABC\nfrom typing import Generic\nimport torch\nfrom mixins import Mixin\n"
        "from transformers import Trainer, TrainingArguments\n\n\nclass Base(ABC):\n    pass\n\n\n"
        f"class Above(Trainer):\n    pass\n\n\nclass MyTrainer{bases}:\n    pass\n\n\n"
        "args = TrainingArguments('out', fsdp='full_shard')\ntrainer = MyTrainer(model, args)\n"
        "trainer.evaluate()\n"
    )
    assert bool(said(code)) is is_said
    tried = code.replace("class Base(ABC):\n    pass", TRIES.format("unseen import Base"))
    assert bool(said(tried)) is (is_said or bases == "(Base)")
    other = code.replace("\nargs =", "\nif x:\n    from other import MyTrainer\n\nargs =")
    assert said(other)


OTHERS_RUN = """\
{brought}


def main(net, args):
    trainer = {made}(net, args=args)
    trainer.evaluate()
    trainer.train()
"""
ASKS = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
OF_MODULES = "import torch\nclass Base(torch.nn.Module):\n    pass\nclass Trainer(Base):\n    pass\n"
TRIES = "try:\n    from {}\nexcept ImportError:\n    class Base:\n        pass\n"
HOLDS_ONE = """\
import transformers
class Trainer:
    def __init__(self, net, args):
        self.its = transformers.Trainer(net, args=args)
"""


@pytest.mark.parametrize(
    ("loop", "is_said"),
    [
        ("class Trainer:\n    pass\n", False),
        ("class Trainer(object):\n    pass\n", False),
        (OF_MODULES, False),
        ("from typing import Generic\nclass Trainer(Generic[T]):\n    pass\n", False),
        ("class Trainer(*bases):\n    pass\n", True),
        ("class Trainer(Base):\n    pass\nclass Base(Trainer):\n    pass\n", True),
        ("from unseen import Base\nclass Trainer(Base):\n    pass\n", True),
        (f"{TRIES.format('transformers import Trainer as Base')}class Trainer(Base):\n    pass\n", True),
        (f"{TRIES.format('unseen import Base')}class Trainer(Base):\n    pass\n", True),
        (f"{TRIES.format('torch.nn import Module as Base')}class Trainer(Base):\n    pass\n", False),
        ("import transformers\nclass Trainer(transformers.Trainer):\n    pass\n", True),
        (HOLDS_ONE, True),
    ],
)
@pytest.mark.parametrize(
    ("brought", "made"),
    [
        ("import transformers\nfrom loop import Trainer", "Trainer"),
        ("import transformers\nfrom loop import Trainer as MyTrainer", "MyTrainer"),
        ("import transformers\nimport loop", "loop.Trainer"),
    ],
)
def test_a_trainer_of_another_file(
    tmp_path: Path, loop: str, brought: str, made: str, *, is_said: bool
) -> None:
    (tmp_path / "loop.py").write_text(loop)
    (tmp_path / "train.py").write_text(OTHERS_RUN.format(brought=brought, made=made))
    (tmp_path / "fsdp.yaml").write_text(ASKS)
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "untrained-evaluation"]
    assert bool(found) is is_said


SAYS = (
    '"""Scores what was trained, on one GPU.\n\n    {}\n"""\n'
    "from transformers import Trainer, TrainingArguments\n\n"
    "trainer = Trainer(model=make(), args=TrainingArguments('out'))\nprint(trainer.evaluate())\n"
)
RUN = "accelerate launch --config_file {} -m tools.train --x 1\n"


@pytest.mark.parametrize(
    ("shown", "run", "is_said"),
    [
        ("python -m tools.score --dir out", RUN.format('"$CONFIG"'), False),
        (
            "CUDA_VISIBLE_DEVICES=0 python tools/score.py \\\\\n        --dir out",
            RUN.format("fsdp.yaml"),
            False,
        ),
        # Nothing shows how it is started, or by several processes, or another script is.
        ("It reads the checkpoints.", RUN.format('"$CONFIG"'), True),
        ("torchrun --nproc_per_node 2 tools/score.py", RUN.format('"$CONFIG"'), True),
        ("python -m torch.distributed.run tools/score.py", RUN.format('"$CONFIG"'), True),
        ("python -m tools.train --dir out", RUN.format('"$CONFIG"'), True),
        # A launch may be of any script, or is of this one too.
        ("python -m tools.score --dir out", 'accelerate launch --config_file fsdp.yaml "$SCRIPT"\n', True),
        (
            "python -m tools.score --dir out",
            RUN.format("fsdp.yaml").replace("tools.train", "tools.score"),
            True,
        ),
    ],
)
def test_a_script_whose_own_docstring_starts_it_as_one_process(
    tmp_path: Path, shown: str, run: str, *, is_said: bool
) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "fsdp.yaml").write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: true\n")
    (tmp_path / "run.sh").write_text(run)
    (tmp_path / "tools" / "train.py").write_text(
        "from transformers import Trainer\nTrainer(make()).train()\n"
    )
    (tmp_path / "tools" / "score.py").write_text(SAYS.format(shown))
    found = [use for use in scan_paths([tmp_path]).uses if use.rule == "untrained-evaluation"]
    assert bool(found) is is_said
