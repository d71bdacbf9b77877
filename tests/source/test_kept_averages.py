"""States of averages, which a project's own class keeps of a sharded model's parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

AVERAGE = """\
class Average:
    def __init__(self, parameters, decay):
        self.kept = [p.clone().detach() for p in parameters]

    def update(self, parameters):
        for kept, p in zip(self.kept, parameters):
            kept.lerp_(p, 0.1)

    def state_dict(self):
        return {"kept": self.kept}

    def load_state_dict(self, state):
        self.kept = state["kept"]
"""
HOLDER = """\
import torch


class Average:
    def __init__(self, parameters, decay):
        self.inner = torch.optim.SGD(parameters, lr=decay)

    def update(self):
        self.inner.step()

    def state_dict(self):
        return self.inner.state_dict()
"""
TRAIN = f"""\
import torch
{FSDP}
from average import Average


def main(net, path):
    model = FSDP(net, use_orig_params=True)
    ema = Average(model.parameters(), 0.99)
    torch.save({{"model": net.x, "ema": ema.state_dict()}}, path)
    ema.load_state_dict(torch.load(path)["ema"])
"""
NET = """\
import copy
import lightning.pytorch as pl
from lightning.pytorch.strategies import FSDPStrategy
from average import Average


class Net(pl.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.ema = None

    def on_train_start(self):
        self.ema = Average(self.model.parameters(), decay=0.99)
        self.ema_state_dict = copy.deepcopy(self.model.state_dict())

    def on_save_checkpoint(self, checkpoint):
        checkpoint["weights"] = copy.deepcopy(self.ema_state_dict)
        checkpoint["ema"] = self.ema.state_dict()


def main(model, loader):
    pl.Trainer(strategy=FSDPStrategy()).fit(Net(model), loader)
"""


def _said(folder: Path, average: str, name: str, text: str) -> list[tuple[str, str]]:
    (folder / "average.py").write_text(average)
    (folder / name).write_text(text)
    uses = (use for use in scan_paths([folder]).uses if use.path.endswith(name))
    return [(use.code, use.becomes) for use in uses if "ema" in use.text]


def test_its_state_holds_dtensors_and_is_no_optimizers(tmp_path: Path) -> None:
    (saved, loaded) = _said(tmp_path, AVERAGE, "train.py", TRAIN)
    assert saved[0] == loaded[0] == "FM423"
    assert "a file of them holds one rank's part" in saved[1]
    assert "distribute_tensor" in loaded[1]


def test_a_state_that_is_saved_elsewhere_is_said_where_it_is_asked_for(tmp_path: Path) -> None:
    apart = TRAIN.replace("    torch.save({", "    state = {").replace(
        "}, path)", "}\n    torch.save(state, path)"
    )
    assert apart != TRAIN
    found = _said(tmp_path, AVERAGE, "train.py", apart)
    assert any("holds the copies that it keeps" in becomes for _, becomes in found)
    assert {code for code, _ in found} == {"FM423"}


def test_what_a_docstring_says_of_steps_makes_no_optimizer(tmp_path: Path) -> None:
    told = AVERAGE.replace(
        "class Average:\n", 'class Average:\n    """Call it below optimizer.step()."""\n\n'
    )
    given = TRAIN.replace(
        "Average(model.parameters(), 0.99)", "Average(parameters=model.parameters(), decay=0.9)"
    )
    assert {code for code, _ in _said(tmp_path, told, "train.py", given)} == {"FM423"}


def test_what_holds_an_optimizer_is_one(tmp_path: Path) -> None:
    codes = [code for code, _ in _said(tmp_path, HOLDER, "train.py", TRAIN)]
    assert codes == ["FM425", "FM425"]


@pytest.mark.parametrize("base", ["Adafactor", "lib.Lion", "torch.optim.SGD", "(\n    Base,\n)"])
def test_of_what_derives_from_others_it_is_not_seen_whether_it_steps(tmp_path: Path, base: str) -> None:
    derived = AVERAGE.replace("class Average:", f"class Average{base if base[0] == '(' else f'({base})'}:")
    assert {code for code, _ in _said(tmp_path, f"import torch\n{derived}", "train.py", TRAIN)} == {"FM425"}


def test_what_a_function_is_given_of_it_is_said_all_the_same(tmp_path: Path) -> None:
    """Another rule speaks of what goes into the file as it is, and of nothing else."""
    packed = TRAIN.replace("torch.save({", "torch.save(pack({").replace("}, path)", "}), path)")
    assert packed != TRAIN
    found = _said(tmp_path, AVERAGE, "train.py", packed)
    assert any("holds the copies that it keeps" in becomes for _, becomes in found)


def test_lightning_saves_it_and_a_copy_of_a_state_is_no_copy_of_the_model(tmp_path: Path) -> None:
    found = _said(tmp_path, AVERAGE, "net.py", NET)
    assert [code for code, _ in found if code != "FM333"] == ["FM423"]
    assert "DTensors now" in found[-1][1]
