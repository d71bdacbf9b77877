"""Other packages' classes and functions for FSDP that are given a sharded model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

TRAIN = """\
import store
from accelerate.utils import save_fsdp_model
from store import Checkpointer, FSDP2Checkpointer, FSDPCheckpointer
from store.fsdp_tools import copy_all, move_fsdp_model
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from own.tools import save_fsdp


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)
        self.saver = {made}
        self.state = {{}}
        self.state = self.state.copy()

    def save(self, path):
        state = {{"extra": 1}}
        state["model"] = self.model
        {does}
"""


def _said(folder: Path, does: str, made: str = "FSDPCheckpointer('x')") -> list[str]:
    (folder / "own").mkdir()
    (folder / "own" / "tools.py").write_text("def save_fsdp(model):\n    pass\n")
    (folder / "train.py").write_text(TRAIN.format(does=does, made=made))
    uses = [each for each in scan_paths([folder]).uses if each.rule == "other-packages"]
    assert {(each.code, each.action) for each in uses} <= {("FM317", "commented")}
    rewrite_paths([folder], write=True)
    after = (folder / "train.py").read_text()
    assert does in after
    assert after.count("# fsdp-migrate: FM317 ") == len(uses)
    return [each.becomes.split("`")[1] for each in uses]


@pytest.mark.parametrize(
    ("does", "name"),
    [
        ("FSDPCheckpointer.save(path, self.model)", "FSDPCheckpointer"),
        ("FSDPCheckpointer.save(path=path, state={'model': self.model})", "FSDPCheckpointer"),
        ("FSDPCheckpointer.save(state)", "FSDPCheckpointer"),
        ("store.FSDPCheckpointer(path).save([self.model])", "FSDPCheckpointer"),
        ("self.saver.save(self.model, path)", "FSDPCheckpointer"),
    ],
)
def test_it_gets_a_comment(tmp_path: Path, does: str, name: str) -> None:
    assert _said(tmp_path, does) == [name]


@pytest.mark.parametrize(
    "does",
    [
        "FSDPCheckpointer.save(path)",
        "FSDPCheckpointer.save(self.model.config)",
        "FSDPCheckpointer.save(self)",
        "FSDP2Checkpointer.save(self.model)",
        "Checkpointer.save(self.model)",
        "store.FSDP.save(self.model)",  # torch's own class, handed on
        "copy_all(self.model)",
        "save_fsdp(self.model)",
        "save_fsdp_model(self.plugin, self.accelerator, self.model, path)",
    ],
)
def test_what_takes_fsdp2s_and_what_is_the_projects_own_does_not(tmp_path: Path, does: str) -> None:
    assert _said(tmp_path, does) == []


def test_a_function_is_to_be_looked_at(tmp_path: Path) -> None:
    """One that sets activation checkpointing does the same for both."""
    (tmp_path / "train.py").write_text(TRAIN.format(does="move_fsdp_model(self.model)", made="None"))
    uses = [each for each in scan_paths([tmp_path]).uses if each.rule == "other-packages"]
    assert [(each.code, each.action) for each in uses] == [("FM450", "unclear")]


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("copies.save_checkpoint(self.model, path)", True),
        ("resume_lora_optimizer(self.model, path)", True),
        ("copies.save_checkpoint(self.model.config, path)", False),
        ("copies.show(self.model)", False),
        ("copies.loaded_bytes(self.model)", False),
        ("tools.save_checkpoint(self.model, path)", False),  # the project's own, which is read
        ("net.save_checkpoint(self.model, path)", False),  # nothing shows where it is
    ],
)
def test_a_function_that_saves_or_loads_is_to_be_looked_at(
    tmp_path: Path, does: str, *, is_said: bool
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tools.py").write_text("def save_checkpoint(model, path):\n    print(model, path)\n")
    imports = (
        "from own import tools\nfrom store import copies\nfrom store.lora import resume_lora_optimizer\n"
    )
    (tmp_path / "train.py").write_text(f"{imports}{TRAIN.format(does=does, made='None')}")
    uses = [each for each in scan_paths([tmp_path]).uses if each.rule == "other-packages"]
    assert [(each.code, each.action) for each in uses] == [("FM450", "unclear")] * is_said


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("clip_grad_norm_(self.model, 1.0)", True),
        ("clip_grad_norm_(model=self.model)", True),
        ("copies.clip_grads(self.model.parameters(), 1.0)", True),
        ("copies.clip_by_global_norm([p for p in self.model.parameters()], 1.0)", True),
        ("copies.clip_grads(AdamW(self.model.parameters()), 1.0)", True),
        ("copies.clip_grad_value(self.model.parameters(), 1.0)", False),  # of each value by itself
        ("copies.clip_grads(self.other.parameters(), 1.0)", False),
        ("copies.clip_text(self.model)", False),
        ("tools.clip_grads(self.model, 1.0)", False),  # the project's own, which is read
    ],
)
def test_a_function_that_clips_is_to_be_looked_at(tmp_path: Path, does: str, *, is_said: bool) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tools.py").write_text("def clip_grads(model, norm):\n    print(model, norm)\n")
    imports = (
        "from own import tools\nfrom store import copies\nfrom torch.sagemaker.norm import clip_grad_norm_\n"
    )
    (tmp_path / "train.py").write_text(f"{imports}{TRAIN.format(does=does, made='None')}")
    uses = [each for each in scan_paths([tmp_path]).uses if each.rule == "other-packages"]
    assert [(each.code, each.action) for each in uses] == [("FM450", "unclear")] * is_said


def test_what_another_rule_says_of_clipping_is_said_once(tmp_path: Path) -> None:
    for imports, clips in (
        ("from timm.utils import dispatch_clip_grad as clip\n", "clip(self.model.parameters(), 1.0)"),
        ("from torch.nn.utils import clip_grad_norm_ as clip\n", "clip(self.model.parameters(), 1.0)"),
    ):
        (tmp_path / "train.py").write_text(f"{imports}{TRAIN.format(does=clips, made='None')}")
        uses = scan_paths([tmp_path]).uses
        assert [each.code for each in uses if "clip(" in each.text] == ["FM326"]


def test_a_function_that_loads_a_model_before_it_is_sharded_is_not(tmp_path: Path) -> None:
    imports = (
        "from store import load_checkpoint\nfrom torch.distributed.fsdp import FullyShardedDataParallel as F"
    )
    text = "def build(net, path):\n    load_checkpoint(net, path)\n    return F(net)\n"
    (tmp_path / "train.py").write_text(f"{imports}\n{text}")
    assert not [each for each in scan_paths([tmp_path]).uses if each.rule == "other-packages"]


def test_an_object_of_another_class_does_not(tmp_path: Path) -> None:
    assert _said(tmp_path, "self.saver.save(self.model)", "Checkpointer('x')") == []


def test_what_is_made_of_itself_ends(tmp_path: Path) -> None:
    assert _said(tmp_path, "self.saver.save(self.model)", "self.saver.to('cpu')") == []
