"""What is sharded and goes into code that is not read, or is asked for what is not known of DTensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths
from tests.source.samples import MODEL, uses


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.source import Use


pytestmark = pytest.mark.any_torch

TRAIN = """\
import flops
import torchs
from flops.hooks import Meter, attach
from rich.progress import track
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from own.tools import look


def main(net, plain, optimizer, loader):
    model = FSDP(net)
    meter = Meter()
    {does}
"""


def _said(folder: Path, does: str) -> list[Use]:
    (folder / "own").mkdir()
    (folder / "own" / "tools.py").write_text("def look(model):\n    return model\n")
    (folder / "train.py").write_text(TRAIN.format(does=does))
    found = [each for each in scan_paths([folder]).uses if each.rule == "unread"]
    rewrite_paths([folder], write=True)
    after = (folder / "train.py").read_text()
    assert does in after
    assert "FM454" not in after, "such a place is named, and gets no comment"
    return found


@pytest.mark.parametrize(
    ("does", "name"),
    [
        ("attach(model)", "attach"),
        ("flops.count(net=model, rows=2)", "count"),
        ("kept = Meter(model)", "Meter"),
        ("meter.update(model)", "update"),
        ("meter.update([model, plain])", "update"),
        ("torchs.gather(net=model)", "gather"),
        ("net.engine.start(model)", "start"),
        ("loader(model.parameters())", "loader"),
        ("attach(model.parameters())", "attach"),
        ("attach([p for p in model.parameters() if p.requires_grad])", "attach"),
        ("[attach(p.grad) for p in model.parameters()]", "attach"),
    ],
)
def test_what_another_package_is_given(tmp_path: Path, does: str, name: str) -> None:
    (use,) = _said(tmp_path, does)
    assert (use.code, use.action) == ("FM454", "unclear")
    assert f"`{name}`" in use.becomes
    assert ("parameters or gradients" in use.becomes) == ("parameters()" in does)


@pytest.mark.parametrize(
    "does",
    [
        "attach(plain)",
        "attach(plain.parameters())",
        "attach(model(loader))",
        "look(model)",
        "[print(p.shape) for p in track(model.parameters())]",
        "attach(optimizer)",
        # A function of the project is followed, whatever its object is.
        "net.engine.look(model)",
        "loader(model)",
        "if net.is_wrapped(model): net.register_modules(model)",
        "kept = [net].append(model)",
        "[s.sub_(p) for s, p in zip(net.shadow, model.parameters())]",
        "optimizer_class = pick()\n    optimizer_class(model.parameters())",
        "same = isinstance(model, type(plain))",
    ],
)
def test_what_is_none_of_a_sharded_model_or_is_read(tmp_path: Path, does: str) -> None:
    assert _said(tmp_path, does) == []


def test_it_is_whole_where_parameters_are_gathered(tmp_path: Path) -> None:
    does = "with FSDP.summon_full_params(model):\n        attach(model)"
    (tmp_path / "train.py").write_text(TRAIN.format(does=does))
    assert [each for each in scan_paths([tmp_path]).uses if each.rule == "unread"] == []


def test_a_model_that_a_framework_shards_may_be_whole(tmp_path: Path) -> None:
    makes = "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    (tmp_path / "train.py").write_text(
        "import flops\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n"
        f"{makes}net, optimizer = accelerator.prepare(net, optimizer)\nflops.count(net)\n"
    )
    (use,) = (each for each in scan_paths([tmp_path]).uses if each.rule == "unread")
    assert use.becomes.startswith(
        "where the framework shards this model: the sharded model goes into `count`"
    )


def _of_torch(does: str) -> list[tuple[str, str]]:
    return [(use.text, use.becomes) for use in uses(MODEL + does) if use.code == "FM454"]


@pytest.mark.parametrize(
    "does",
    [
        "torch.onnx.export(model, x)\n",
        "traced = torch.jit.trace(model, x)\n",
        "torch.nn.utils.prune.global_unstructured([(model, 'weight')])\n",
        "torch.optim.swa_utils.update_bn(loader, model)\n",
        "for p in model.parameters():\n    size = p.untyped_storage().size()\n",
        "for p in model.parameters():\n    part = torch.unbind(p)\n",
        "for p in model.parameters():\n    rows = p.grad.index_select(0, rows)\n",
    ],
)
def test_what_torch_is_asked_that_is_not_known_of_a_sharded_model(does: str) -> None:
    ((_, becomes),) = _of_torch(does)
    assert "known here" in becomes


@pytest.mark.parametrize(
    "does",
    [
        "model = torch.compile(model)\n",
        "both = torch.nn.ModuleList([model, head])\n",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        "torch.onnx.export(plain, x)\n",
        "for p in model.parameters():\n    p.grad.mul_(0.5)\n",
        "for p in plain.parameters():\n    size = p.untyped_storage().size()\n",
        # Another rule speaks of it, and once is enough.
        "for p in model.parameters():\n    value = p.storage() if p.sum().item() else 0\n",
    ],
)
def test_what_is_known_or_is_of_a_plain_model(does: str) -> None:
    assert _of_torch(does) == []
