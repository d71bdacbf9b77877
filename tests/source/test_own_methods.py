"""Methods of a class's own that a framework's hooks run: of Trainers, callbacks and LightningModules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

NUMBERS = "        return [p.grad.cpu().numpy() for p in {}.parameters()]\n"
ASKS = (
    "from transformers import TrainingArguments\nargs = TrainingArguments('x', fsdp='full_shard auto_wrap')\n"
)
TRAINER = "from transformers import Trainer\n\n\nclass Own(Trainer):\n"
LIGHTNING = "import lightning as L\nfrom own import Lit\nL.Trainer(strategy={!r}, devices=2).fit(Lit())\n"
MODULE = "import lightning as L\n\n\nclass Lit(L.LightningModule):\n"


def said(folder: Path, files: dict[str, str]) -> set[str]:
    """Return the names of the files in which a number of a sharded model's parameter is told."""
    for name, text in files.items():
        (folder / name).write_text(text)
    return {use.path.rpartition("/")[2] for use in scan_paths([folder]).uses if use.code == "FM423"}


@pytest.mark.parametrize(
    ("caller", "is_one"),
    [
        ("compute_loss(self, model, inputs)", True),
        ("log(self, logs)", True),
        ("_clip_grad_norm(self, model)", True),
        ("get_batch_loss_metrics(self, model, batch)", True),
        ("__init__(self)", False),
        ("create_optimizer(self)", False),
        ("own_too(self)", False),
    ],
)
def test_own_methods_of_a_trainer(tmp_path: Path, caller: str, *, is_one: bool) -> None:
    calls = f"    def {caller}:\n        self.probe()\n\n    def probe(self):\n        return self.deep()\n\n"
    own = f"{TRAINER}{calls}    def deep(self):\n{NUMBERS.format('self.model')}"
    assert said(tmp_path, {"own.py": own, "asks.py": ASKS}) == ({"own.py"} if is_one else set())
    assert said(tmp_path, {"own.py": own, "asks.py": ""}) == set()


def test_own_methods_that_a_trainer_has_of_a_class_of_another_file(tmp_path: Path) -> None:
    base = f"{TRAINER}    def probe(self):\n{NUMBERS.format('self.model')}"
    own = "from base import Own\n\n\nclass Mine(Own):\n    def log(self, logs):\n        self.probe()\n"
    assert said(tmp_path, {"base.py": base, "own.py": own, "asks.py": ASKS}) == {"base.py"}
    assert said(tmp_path, {"base.py": base, "own.py": own.replace("log", "train"), "asks.py": ASKS}) == set()


@pytest.mark.parametrize(
    ("hook", "is_one"),
    [("on_step_end", True), ("on_train_begin", True), ("on_init_end", False), ("own", False)],
)
def test_callbacks_that_hold_their_trainer(tmp_path: Path, hook: str, *, is_one: bool) -> None:
    start = "from transformers import TrainerCallback\n\n\nclass Probe(TrainerCallback):\n"
    holds = "    def __init__(self, trainer):\n        self.trainer = trainer\n\n"
    run = f"    def {hook}(self, args, state, control, **kwargs):\n"
    inline = f"{start}{holds}{run}{NUMBERS.format('self.trainer.model')}"
    below = f"{start}{holds}{run}        self.probe()\n\n    def probe(self):\n"
    for own in (inline, f"{below}{NUMBERS.format('self.trainer.model')}"):
        assert said(tmp_path, {"own.py": own, "asks.py": ASKS}) == ({"own.py"} if is_one else set())
        assert said(tmp_path, {"own.py": own, "asks.py": ""}) == set()


@pytest.mark.parametrize(
    ("caller", "is_one"),
    [
        ("on_train_batch_end(self, outputs, batch, index)", True),
        ("on_before_optimizer_step(self, optimizer)", True),
        ("setup(self, stage)", False),
        ("validation_step(self, batch)", False),
    ],
)
def test_own_methods_of_a_lightning_module(tmp_path: Path, caller: str, *, is_one: bool) -> None:
    calls = f"    def {caller}:\n        self.probe()\n\n    def probe(self):\n        return self.deep()\n\n"
    own = f"{MODULE}{calls}    def deep(self):\n{NUMBERS.format('self.net')}"
    assert said(tmp_path, {"own.py": own, "t.py": LIGHTNING.format("fsdp")}) == (
        {"own.py"} if is_one else set()
    )
    assert said(tmp_path, {"own.py": own, "t.py": LIGHTNING.format("ddp")}) == set()


def test_own_methods_that_a_lightning_module_has_of_a_class_of_another_file(tmp_path: Path) -> None:
    base = f"{MODULE.replace('Lit(', 'Base(')}    def probe(self):\n{NUMBERS.format('self')}"
    own = "from base import Base\n\n\nclass Lit(Base):\n    def {}(self):\n        self.probe()\n"
    files = {"base.py": base, "own.py": own.format("on_train_epoch_end"), "t.py": LIGHTNING.format("fsdp")}
    assert said(tmp_path, files) == {"base.py"}
    assert said(tmp_path, {**files, "own.py": own.format("forward")}) == set()


PATCH = "def save(self, folder):\n" + NUMBERS.format("self.model")


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("transformers.Trainer.save_model = save", True),
        ("Trainer.compute_loss = save", True),
        ("Trainer.get_train_dataloader = save", False),
        ("Other.save_model = save", False),
    ],
)
def test_functions_that_are_put_into_the_class_of_trainers(
    tmp_path: Path, line: str, *, is_one: bool
) -> None:
    start = "import transformers\nfrom transformers import Trainer\nfrom other import Other\n\n\n"
    own = f"{start}{PATCH}\n\n{line}\n"
    assert said(tmp_path, {"own.py": own, "asks.py": ASKS}) == ({"own.py"} if is_one else set())
    assert said(tmp_path, {"own.py": own, "asks.py": ""}) == set()


@pytest.mark.parametrize(
    ("method", "is_one"),
    [
        ("train(self):\n        super().train()", True),
        ("_inner_training_loop(self):\n        super()._inner_training_loop()", True),
        ("train(self):\n        pass", False),
        ("get_train_dataloader(self):\n        super().get_train_dataloader()", False),
    ],
)
def test_what_stands_below_the_trainers_own_training(tmp_path: Path, method: str, *, is_one: bool) -> None:
    own = f"{TRAINER}    def {method}\n{NUMBERS.format('self.model')}"
    assert said(tmp_path, {"own.py": own, "asks.py": ASKS}) == ({"own.py"} if is_one else set())


def test_what_a_trainers_own_accelerator_prepares(tmp_path: Path) -> None:
    loop = (
        "    def _inner_training_loop(self):\n        model, optimizer = self.accelerator.prepare(net, opt)\n"
    )
    own = f"{TRAINER}{loop}{NUMBERS.format('model')}"
    assert said(tmp_path, {"own.py": own, "asks.py": ASKS}) == {"own.py"}
    assert said(tmp_path, {"own.py": own.replace("(Trainer)", "(object)"), "asks.py": ASKS}) == set()


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        ("self.trainer.train()\n        self.finish()", True),
        ("self.finish()\n        self.trainer.train()", False),
    ],
)
def test_a_method_that_runs_once_another_has_trained(tmp_path: Path, body: str, *, is_one: bool) -> None:
    makes = "        self.trainer = Trainer(model=net, args=args)\n"
    own = (
        "from transformers import Trainer\n\n\nclass Runner:\n    def __init__(self, net, args):\n"
        f"{makes}\n    def run(self):\n        {body}\n\n    def finish(self):\n"
        f"{NUMBERS.format('self.trainer.model')}"
    )
    assert said(tmp_path, {"own.py": own, "asks.py": ASKS}) == ({"own.py"} if is_one else set())


@pytest.mark.parametrize(
    "gives", ["return Trainer(model=net, args=args)", "t = Trainer(net, args)\n    return t"]
)
def test_a_trainer_that_a_function_of_another_file_gives(tmp_path: Path, gives: str) -> None:
    build = f"from transformers import Trainer\n\n\ndef build(net, args):\n    {gives}\n"
    start = "from build import build\n\n\ndef main(net):\n        t = build(net, 1)\n"
    own = f"{start}        t.train()\n{NUMBERS}"
    files = {"build.py": build, "own.py": own.format("t.model"), "asks.py": ASKS}
    assert said(tmp_path, files) == {"own.py"}
    assert said(tmp_path, {**files, "own.py": own.replace("t.train()", "t.log()").format("t.model")}) == set()
    assert said(tmp_path, {**files, "build.py": build.replace("transformers", "other")}) == set()
