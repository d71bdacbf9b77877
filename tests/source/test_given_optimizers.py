"""Optimizers that a framework is given with its model, whose class or maker stands in another place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

OWN = (
    "import torch\n\n\nclass Own(torch.optim.Optimizer):\n    def __init__(self, params, lr=1e-3):\n"
    "        super().__init__([p for p in params if p.ndim >= 2], {'lr': lr})\n\n    def step(self):\n"
    "        for p in self.param_groups[0]['params']:\n            p.add_(p.grad / p.grad.norm())\n"
)
BUILD = "\n\ndef build(cfg, model):\n    if cfg.name == 'adamw':\n        return AdamW(model.parameters())\n"
TRAIN = "\n\ndef main(cfg):\n    model = make_model()\n    {}\n    trainer = Trainer(model=model, {})\n"
IMPORTS = "from composer import Trainer\nfrom torch.optim import AdamW\n"
ASKS = "optimizers=optimizer, fsdp_config=cfg.get('fsdp_config')"
BUILT = "optimizer = build(cfg, model)"


def said(folder: Path, **files: str) -> set[tuple[str, str]]:
    """Return what is said of optimizers in some files: the file and what it is said of."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    uses = (use for use in scan_paths([folder]).uses if use.code in {"FM445", "FM318"})
    return {
        (f"{use.code} {use.path.rpartition('/')[2]}", use.text.split("(", maxsplit=1)[0])
        for use in uses
        if use.action == "commented"
    }


CLASS = {("FM445 own.py", "class Own")}


@pytest.mark.parametrize(
    "made",
    [
        "optimizer = Own(model.parameters())",
        "cls = Own\n    optimizer = cls(model.parameters())",
        "optimizer = functools.partial(Own, lr=1)(model.parameters())",
        "optimizer = own.Own(model.parameters())",
        "inner = Own(model.parameters())\n    optimizer = [inner]",
        "optimizer: torch.optim.Optimizer = Own(model.parameters())",
        "optimizer, scheduler = Own(model.parameters()), None",
        "optimizer = scheduler = None\n    optimizer, *rest = [Own(model.parameters()), 1]",
    ],
)
def test_a_class_of_another_file(tmp_path: Path, made: str) -> None:
    train = f"import functools\nimport own\nfrom own import Own\n{IMPORTS}{TRAIN.format(made, ASKS)}"
    assert said(tmp_path, own=OWN, train=train) == CLASS


@pytest.mark.parametrize("given", ["optimizers=optimizer", "optimizers=optimizer, fsdp_config=None", "lr=1"])
def test_a_trainer_that_shards_nothing(tmp_path: Path, given: str) -> None:
    train = f"from own import Own\n{IMPORTS}{TRAIN.format('optimizer = Own(model.parameters())', given)}"
    assert said(tmp_path, own=OWN, train=train) == set()


@pytest.mark.parametrize("given", [ASKS, ASKS.replace("=optimizer,", "=build(cfg, model),")])
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize(
    "ends",
    ["return Own(params)", "found = Own(params)\n    return found", "return pick(cfg)(params, lr=cfg.lr)"],
)
def test_a_function_that_makes_it(tmp_path: Path, ends: str, given: str, *, is_apart: bool) -> None:
    pick = "\n\ndef pick(cfg):\n    if cfg.is_own:\n        return Own\n    raise ValueError(cfg)\n"
    build = f"{pick}{BUILD}    params = model.parameters()\n    {ends}\n"
    train = TRAIN.format(BUILT, given)
    files = {"build": f"from own import Own\n{build}", "train": f"from build import build\n{IMPORTS}{train}"}
    files = files if is_apart else {"train": f"from own import Own\n{IMPORTS}{build}{train}"}
    assert said(tmp_path, own=OWN, **files) == CLASS


@pytest.mark.parametrize("is_apart", [False, True])
def test_what_it_makes_of_other_packages(tmp_path: Path, *, is_apart: bool) -> None:
    build = f"{BUILD}    from optimi import StableAdamW\n    return StableAdamW(model.parameters())\n"
    build += "\n\ndef other(model):\n    from optimi import Lion\n    return Lion(model.parameters())\n"
    train = TRAIN.format(BUILT, ASKS)
    apart = {"build": build, "train": f"from build import build\n{IMPORTS}{train}"}
    found = said(tmp_path, **(apart if is_apart else {"train": f"{IMPORTS}{build}{train}"}))
    assert found == {(f"FM445 {'build' if is_apart else 'train'}.py", "StableAdamW")}


PAIR = "\n\ndef build(cfg, model):\n    first, second = Own(model.parameters()), Lion(model.parameters())\n"


@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize("ends", ["return first, second", "both = (first, second)\n    return both"])
def test_a_function_that_gives_several(tmp_path: Path, ends: str, *, is_apart: bool) -> None:
    build = f"import own\nfrom own import Own\nfrom optimi import Lion\n{PAIR}    {ends}\n"
    train = TRAIN.format("optimizer, other = build(cfg, model)", ASKS)
    apart = {"build": build, "train": f"from build import build\n{IMPORTS}{train}"}
    found = said(tmp_path, own=OWN, **(apart if is_apart else {"train": f"{IMPORTS}{build}{train}"}))
    assert found >= CLASS
    second = train.replace("optimizer, other", "other, optimizer")
    only = said(tmp_path, own=OWN, build=build, train=f"from build import build\n{IMPORTS}{second}")
    assert not CLASS & only


LION = "from optimi import Lion\n"


@pytest.mark.parametrize(
    "made",
    [
        "optimizer: torch.optim.Optimizer = Lion(model.parameters())",
        "optimizer, scheduler = Lion(model.parameters()), None",
        "model, optimizer = [model, Lion(model.parameters())]",
    ],
)
def test_one_of_another_package_in_the_same_file(tmp_path: Path, made: str) -> None:
    found = said(tmp_path, train=f"import torch\n{LION}{IMPORTS}{TRAIN.format(made, ASKS)}")
    assert found == {("FM445 train.py", "Lion")}
    other = TRAIN.format(made.replace("optimizer", "unused"), ASKS)
    assert said(tmp_path, train=f"import torch\n{LION}{IMPORTS}{other}") == set()


@pytest.mark.parametrize("asks", ["return Lion(model.parameters()), 1", "a: int = Lion(model.parameters())"])
def test_one_of_another_package_that_a_function_gives(tmp_path: Path, asks: str) -> None:
    build = f"{LION}\n\ndef build(cfg, model):\n    {asks}\n    return a, 1\n"
    train = TRAIN.format("optimizer, n = build(cfg, model)", ASKS)
    found = said(tmp_path, build=build, train=f"from build import build\n{IMPORTS}{train}")
    assert found == {("FM445 build.py", "Lion")}


def test_what_the_file_itself_has(tmp_path: Path) -> None:
    at_top = "\n\noptimizer = Own(net.parameters())\n" + TRAIN.format("pass", ASKS)
    assert said(tmp_path, own=OWN, train=f"from own import Own\n{IMPORTS}{at_top}") == CLASS


def test_one_function_that_makes_itself_anew(tmp_path: Path) -> None:
    build = "\n\ndef build(cfg, model):\n    optimizer = build(cfg, model)\n    return optimizer\n"
    assert said(tmp_path, train=f"{IMPORTS}{build}{TRAIN.format(BUILT, ASKS)}") == set()


PREPARES = """\
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.optim import LBFGS


def create(model):
    {}


class Run:
    def __init__(self, model):
        accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())
        self.optimizer = create(model)
        optimizer, scheduler = create(model), None
        {}
"""
SETS_UP = """\
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
from torch.optim import LBFGS


def create(model):
    {}


def main(model):
    fabric = Fabric(devices=2, strategy=FSDPStrategy())
    optimizer = create(model)
    {}
"""
RETURNS = "return LBFGS(model.parameters())"
BETWEEN = "made = LBFGS([p for p in model.parameters()])\n    return made"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (PREPARES, "model, optimizer = accelerator.prepare(model, optimizer)"),
        (PREPARES, "model, self.optimizer = accelerator.prepare(model, self.optimizer)"),
        (PREPARES, "model, optimizer = accelerator.prepare(model, create(model))"),
        (SETS_UP, "model, optimizer = fabric.setup(model, optimizer)"),
    ],
)
@pytest.mark.parametrize("made", [RETURNS, BETWEEN])
def test_a_function_that_makes_what_is_prepared(tmp_path: Path, text: str, given: str, made: str) -> None:
    assert said(tmp_path, train=text.format(made, given)) == {("FM445 train.py", "LBFGS")}


def test_a_function_that_makes_what_is_not_prepared(tmp_path: Path) -> None:
    prepared = "model, loader = accelerator.prepare(model, create(model))".replace("create", "make_loader")
    assert said(tmp_path, train=PREPARES.format(RETURNS, prepared)) == set()


CHOSEN = (
    "from transformers import Trainer, TrainingArguments\nimport own\nfrom own import Own\n\n\n"
    "class OwnTrainer(Trainer):\n    @staticmethod\n    def get_optimizer_cls_and_kwargs(args, model=None):\n"
    "        {}\n\n\n"
    "def main(model):\n    args = TrainingArguments('o'{})\n    OwnTrainer(model=model, args=args).train()\n"
)
SHARDS = ", fsdp='full_shard auto_wrap'"


@pytest.mark.parametrize(
    ("body", "fsdp", "found"),
    [
        ("return Own, {}", SHARDS, CLASS),
        ("kind = own.Own if args.own else AdamW\n        return kind, {'lr': 1}", SHARDS, CLASS),
        ("return Own, {}", "", set()),
        ("print(Own)\n        return AdamW, {}", SHARDS, set()),
    ],
)
def test_a_class_that_a_trainer_of_hugging_faces_is_told(
    tmp_path: Path, body: str, fsdp: str, found: set[tuple[str, str]]
) -> None:
    assert said(tmp_path, own=OWN, train=CHOSEN.format(body, fsdp)) == found


NORMS = "            p.add_(p.grad / p.grad.norm())\n"
SHORT = {("FM445 train.py", "Own")}


@pytest.mark.parametrize("base", ["optimi.optimizer import OptimiOptimizer", "lion_pytorch import Lion"])
@pytest.mark.parametrize(
    ("step", "found"),
    [
        (NORMS, CLASS),
        ("            p.add_(p.grad)\n", set()),
        (f"{NORMS}        super().step()\n", SHORT),
    ],
)
def test_an_own_step_of_a_class_above_of_another_package(
    tmp_path: Path, base: str, step: str, found: set[tuple[str, str]]
) -> None:
    # What its step does was not looked at: the call alone was named.
    own = OWN.replace("import torch\n", f"from {base}\n").replace(
        "torch.optim.Optimizer", base.rsplit(maxsplit=1)[-1]
    )
    train = f"from own import Own\n{IMPORTS}{TRAIN.format('optimizer = Own(model.parameters())', ASKS)}"
    assert said(tmp_path, own=own.replace(NORMS, step), train=train) == found


HANDED = (
    "import lion\nimport own\nimport torch\nfrom own import Own\n"
    "from transformers import Trainer, TrainingArguments\n\n\n"
    "def build(model):\n    return NAME(model.parameters())\n\n\ndef main(model):\n"
    "    optimizer = build(model)\n    both = (NAME(model.parameters()), None)\n"
    "    trainer = Trainer(model, TrainingArguments('o'), train_dataset=[]{})\n    trainer.train()\n"
)
FSDP = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
HANDS = [
    ", optimizers=(NAME(model.parameters()), None)",
    ", optimizers=both",
    ")\n    trainer.optimizer = NAME(model.parameters()",
]


def handed(folder: Path, given: str, name: str, asked: str = FSDP) -> set[tuple[str, str]]:
    """Return what is said where a Trainer is given an optimizer, and a launch line asks for FSDP."""
    (folder / "fsdp.yaml").write_text(asked)
    (folder / "run.sh").write_text("accelerate launch --config_file fsdp.yaml train.py\n")
    return said(folder, own=OWN, train=HANDED.replace("{}", given).replace("NAME", name))


@pytest.mark.parametrize(
    "given",
    [
        *HANDS,
        ", optimizers=(optimizer, None)",
        ", optimizer_cls_and_kwargs=(Own, {'lr': 1})",
        ", optimizer_cls_and_kwargs=(own.Own, {})",
    ],
)
def test_an_own_class_by_which_a_trainer_of_hugging_faces_steps(tmp_path: Path, given: str) -> None:
    # Nothing was said of it: its norms are of the whole under FSDP2, and no error comes.
    assert handed(tmp_path, given, "Own") == CLASS
    assert handed(tmp_path, given, "Own", "distributed_type: MULTI_GPU\n") == set()


@pytest.mark.parametrize(
    "given", ["", ", data=(Own, {})", ")\n    rates.optimizer = NAME(model.parameters()"]
)
def test_an_own_class_by_which_no_trainer_steps(tmp_path: Path, given: str) -> None:
    assert handed(tmp_path, given, "Own") == set()


@pytest.mark.parametrize("given", HANDS)
@pytest.mark.parametrize(("name", "is_said"), [("lion.Lion", True), ("torch.optim.AdamW", False)])
def test_another_packages_class_by_which_a_trainer_steps(
    tmp_path: Path, given: str, name: str, is_said: bool
) -> None:
    assert handed(tmp_path, given, name) == ({("FM445 train.py", name)} if is_said else set())
