"""Classes of a project whose bases lead to a framework's Trainer, Fabric or Accelerator count as that."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from fsdp_migrate.source.composer_project import run_by_composer
from fsdp_migrate.source.heirs import heirs
from fsdp_migrate.source.lightning_project import run_by_lightning
from fsdp_migrate.source.project import Project


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.any_torch

SAVES = "torch.save(model.state_dict(), 'x')"
MODEL = "import torch\n\n\nclass Net(torch.nn.Module):\n    pass\n\n\ndef main(args, o):\n    model = Net()\n"
HF = f"{MODEL}    t = Mine(model=model, args=args)\n    t.train()\n    {SAVES}\n"
COMPOSER = (
    f"{MODEL}    t = Mine(model=model, fsdp_config={{'sharding_strategy': 'FULL_SHARD'}})\n    {SAVES}\n"
)
FITS = f"{MODEL}    t = {{}}\n    t.fit(model)\n    {SAVES}\n"
LIGHTNING = f"{MODEL}    t = Mine(devices=2, strategy='fsdp')\n    t.fit(model)\n    {SAVES}\n"
FABRIC = f"{MODEL}    t = Mine(strategy='fsdp')\n    model, o = t.setup(model, o)\n    {SAVES}\n"
ACCELERATE = f"{MODEL}    t = Mine()\n    model, o = t.prepare(model, o)\n    {SAVES}\n"
ASKS = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n"
FRAMEWORKS = [
    ("from transformers import Trainer", "Trainer", HF),
    ("from trl import SFTTrainer", "SFTTrainer", HF),
    ("from composer import Trainer", "Trainer", COMPOSER),
    ("import lightning as L", "L.Trainer", LIGHTNING),
    ("from lightning.fabric import Fabric", "Fabric", FABRIC),
    ("from lightning.pytorch.lite import LightningLite", "LightningLite", FABRIC),
    ("import accelerate", "accelerate.Accelerator", ACCELERATE),
]


def said(folder: Path, files: dict[str, str], code: str = "FM333") -> list[int]:
    """Return the lines of the file `train` at which something is said, in a project that asks for FSDP1."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "fsdp.yaml").write_text(ASKS)
    found = (use for use in scan_paths([folder]).uses if use.code == code)
    return [use.line for use in found if use.path.endswith("train.py")]


def last(text: str) -> list[int]:
    return [text.count("\n")]


@pytest.mark.parametrize(("imports", "base", "train"), FRAMEWORKS)
def test_a_class_of_the_same_file(tmp_path: Path, imports: str, base: str, train: str) -> None:
    both = f"{imports}\n\n\nclass Base({base}):\n    pass\n\n\nclass Mine(Base):\n    pass\n\n\n{train}"
    assert said(tmp_path, {"train": both}) == last(both)
    plain = both.replace(f"Base({base})", "Base(Other)")
    assert said(tmp_path, {"train": plain}) == []


@pytest.mark.parametrize(("imports", "base", "train"), FRAMEWORKS)
@pytest.mark.parametrize(
    ("brought", "called"),
    [
        ("from own import Mine\n", "Mine("),
        ("from own import Mine as Ours\n", "Ours("),
        ("import own\n", "own.Mine("),
    ],
)
@pytest.mark.parametrize("beside", ["", "import lightning\nimport composer\n"])
def test_a_class_of_another_file(
    tmp_path: Path, imports: str, base: str, train: str, brought: str, called: str, beside: str
) -> None:
    own = "from base import Base\n\n\nclass Mine(Base):\n    pass\n"
    above = f"{imports}\n\n\nclass Base({base}):\n    pass\n"
    files = {"base": above, "own": own, "train": beside + brought + train.replace("Mine(", called)}
    assert said(tmp_path, files) == last(files["train"])
    files["base"] = above.replace(f"({base})", "")
    assert said(tmp_path, files) == []


@pytest.mark.parametrize(
    ("imports", "base", "asks"),
    [
        ("from lightning.fabric import Fabric", "Fabric", "self.setup(model, o)"),
        ("from lightning.fabric import Fabric", "Fabric", "super().setup(model, o)"),
        ("from accelerate import Accelerator", "Accelerator", "self.prepare(model, o)"),
    ],
)
def test_what_such_a_class_shards_itself(tmp_path: Path, imports: str, base: str, asks: str) -> None:
    body = f"    def run(self, model, o):\n        model, o = {asks}\n        {SAVES}\n"
    made = "Mine(strategy='fsdp').run(net, o)\n" if base == "Fabric" else "Mine().run(net, o)\n"
    train = f"import torch\n{imports}\n\n\nclass Mine({base}):\n{body}"
    assert said(tmp_path, {"train": f"{train}\n\n{made}"}) == last(train)
    plain = train.replace(f"({base})", "(Other)")
    assert said(tmp_path, {"train": f"{plain}\n\n{made}"}) == []


def test_composers_config_is_named_at_a_class_of_the_project() -> None:
    code = "from composer import Trainer\nclass Mine(Trainer):\n  pass\nMine(model=m, fsdp_config={'a': 1})\n"
    assert [use.line for use in scan_source(code) if use.code == "FM328"] == [4]
    other = code.replace("class Mine(Trainer)", "class Mine(Other)")
    assert not any(use.code == "FM328" for use in scan_source(other))


def test_the_classes_that_a_file_imports(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("import lightning as L\nclass Base(L.Trainer[int]):\n  pass\n")
    (tmp_path / "own.py").write_text("from base import Base\nclass Own(Base):\n  pass\nclass Else:\n  pass\n")
    train = tmp_path / "train.py"
    train.write_text("import own\nfrom own import Own, Else\n")
    found = heirs(Project.read(sorted(tmp_path.glob("*.py"))))
    assert found[train] == {name: frozenset({"lightning.Trainer"}) for name in ("own.Own", "own.Base")}


@pytest.mark.parametrize(
    ("asks", "above"),
    [
        (heirs, "from transformers import Trainer\nclass Mine(Trainer):\n    pass\n"),
        (
            lambda project: run_by_lightning(project, []),
            "import lightning as L\nL.Trainer(strategy=FSDPStrategy())\ninstantiate(cfg)\n",
        ),
        (lambda project: run_by_composer(project, []), "from composer import Trainer\nfsdp_config = {}\n"),
    ],
)
def test_classes_whose_bases_do_not_end_take_no_time(
    tmp_path: Path, asks: Callable[[Project], object], above: str
) -> None:
    text = above + "class A(\n" * 12_000
    start = time.process_time()
    asks(Project({tmp_path / "train.py": text}))
    assert time.process_time() - start < 2


@pytest.mark.parametrize(("imports", "base", "train"), FRAMEWORKS[:-1])
@pytest.mark.parametrize("is_apart", [False, True])
def test_a_class_that_type_makes(
    tmp_path: Path, imports: str, base: str, train: str, *, is_apart: bool
) -> None:
    made = f"{imports}\n\n\nclass Mixin:\n    pass\n\n\nMine = type('Mine', (Mixin, {base}), {{}})\n"
    apart = {"made": made, "train": f"from made import Mine\n{train}"}
    files = apart if is_apart else {"train": f"{made}{train}"}
    assert said(tmp_path, files) == last(files["train"])


@pytest.mark.parametrize(
    ("made", "imported", "makes"),
    [
        (
            "class Mine(L.Trainer):\n    def __init__(self):\n        super().__init__(strategy='fsdp')\n",
            "Mine",
            "Mine()",
        ),
        ("def make():\n    return L.Trainer(devices=2, strategy='fsdp')\n", "make", "make()"),
        ("def make():\n    t = L.Trainer(strategy='fsdp')\n    return t\n", "make", "make()"),
        ("runner = L.Trainer(devices=2, strategy='fsdp')\n", "runner", "runner"),
    ],
)
def test_another_file_has_the_strategy(tmp_path: Path, made: str, imported: str, makes: str) -> None:
    train = f"from made import {imported}\n{FITS.format(makes)}"
    assert said(tmp_path, {"made": f"import lightning as L\n{made}", "train": train}) == last(train)
    plain = made.replace("'fsdp'", "'ddp'")
    assert said(tmp_path, {"made": f"import lightning as L\n{plain}", "train": train}) == []


MIXED = """\
class Loss:
    def compute_loss(self, model, inputs):
        return sum(p.norm() for p in model.parameters())


"""


@pytest.mark.parametrize(
    "mine", ["class Mine(Loss, Trainer):\n    pass\n", "Mine = type('M', (Loss, Trainer), {})\n"]
)
def test_what_a_mixin_has_of_a_trainer(tmp_path: Path, mine: str) -> None:
    of_trainer = f"from transformers import Trainer\nfrom train import Loss\n\n\n{mine}"
    assert said(tmp_path, {"train": MIXED, "mine": of_trainer}, "FM423") == [3]
    assert said(tmp_path, {"train": MIXED, "mine": of_trainer.replace("Loss, ", "")}, "FM423") == []
