"""What Fabric sets up beside FSDP1's strategy is a sharded model, in Fabric's own module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEADER = "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"


@pytest.mark.parametrize("call", ["setup(net, optimizer)", "setup(net, optimizer, other)"])
def test_fabric_gives_its_optimizers_behind_the_model(call: str) -> None:
    body = 'fabric = Fabric(strategy="fsdp")\nmodel, optimizer, *rest = fabric.' + call + "\n"
    used = "optimizer.load_state_dict(state)\nx.load_state_dict(state)\nmodel.load_state_dict(state)\n"
    texts = [use.text for use in scan_source(HEADER + body + used) if use.code == "FM333"]
    assert texts == ["model.load_state_dict(state)"]


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("{n for n, p in model.state_dict(keep_vars=True).items() if p.requires_grad}", False),
        ("[(n, p) for n, p in model.state_dict(keep_vars=True).items() if p.requires_grad]", True),
        ("{n: p.grad for n, p in model.state_dict(keep_vars=True).items()}", True),
        ("model.state_dict(keep_vars=True)", True),
    ],
)
def test_a_state_that_is_read_for_names_alone(asked: str, *, is_said: bool) -> None:
    body = f'fabric = Fabric(strategy="fsdp")\nmodel = fabric.setup(net)\nx = {asked}\n'
    assert ("FM333" in {use.code for use in scan_source(HEADER + body)}) is is_said


@pytest.mark.parametrize(
    ("test", "first", "second"),
    [
        ("isinstance(fabric.strategy, FSDPStrategy)", True, False),
        ("not isinstance(fabric.strategy, FSDPStrategy)", False, True),
        ("isinstance(fabric.strategy, DDPStrategy)", True, True),
    ],
)
def test_a_model_below_a_question_for_the_strategy(test: str, *, first: bool, second: bool) -> None:
    body = f"if {test}:\n    {{}}\nelse:\n    {{}}\n"
    saves = "torch.save(model.state_dict(), p)"
    for inner, is_said in ((body.format(saves, "pass"), first), (body.format("pass", saves), second)):
        made = f'fabric = Fabric(strategy="fsdp")\nmodel = fabric.setup(net)\n{inner}'
        assert ("FM333" in {use.code for use in scan_source(HEADER + made)}) is is_said


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("devices=1", False),
        ("devices=1, plugins=quantized", False),
        ("devices=4, strategy='ddp'", False),
        ("devices=1, strategy='fsdp'", True),
        ("devices=1, **options", True),
        ("devices=1, strategy=strategy", True),
        ("devices=1, num_nodes=2", True),
        ("devices=2", True),  # `fabric run --strategy` may choose FSDP
        ("1", True),
    ],
)
def test_a_fabric_that_shards_nothing_beside_one_that_does(
    given: str, tmp_path: Path, *, is_said: bool
) -> None:
    other = 'def other():\n    fabric = Fabric(strategy="fsdp")\n    model = fabric.setup(net)\n'
    made = f"def main(net, opt):\n    fabric = Fabric({given})\n    model, opt = fabric.setup(net, opt)\n"
    code = f"{HEADER}from helpers import dump\n{other}{made}"
    assert ("FM333" in {use.code for use in scan_source(f"{code}    model.state_dict()\n")}) is is_said
    (tmp_path / "helpers.py").write_text("def dump(model):\n    return model.state_dict()\n")
    (tmp_path / "main.py").write_text(f"{code}    dump(model)\n")
    uses = [use for use in scan_paths([tmp_path]).uses if use.path.endswith("helpers.py")]
    assert ([use.code for use in uses] == ["FM333"]) is is_said


def test_what_fabrics_module_holds_is_the_wrapper() -> None:
    made = (
        'fabric = Fabric(strategy="fsdp")\nmodel = fabric.setup_module(net)\ninner = model._forward_module\n'
    )
    uses = {use.code: use for use in scan_source(f"{HEADER}{made}inner.clip_grad_norm_(1.0)\n")}
    assert uses["FM311"].action == "rewritten"
    imports = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    loop = "while isinstance(model, FSDP):\n    model = model.module\n"
    said = [use.becomes for use in scan_source(f"{HEADER}{imports}{made}{loop}") if use.code == "FM335"]
    assert any("this loop would not end" in text for text in said)
