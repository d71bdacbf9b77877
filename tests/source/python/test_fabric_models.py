"""What Fabric sets up beside FSDP1's strategy is a sharded model, in Fabric's own module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_paths, scan_source
from tests.source.samples import turned


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


SHOWN = "with FSDP.summon_full_params(model):\n        pass\n    model.module.save_config(p)\n"
SET_UP = "def main(fabric, net):\n    model = fabric.setup(net)\n"
INNER = SET_UP.replace("setup(net)", "setup(net)._forward_module")
IMPORTS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    ("body", "stays"),
    [
        (f"{SET_UP}    {SHOWN}", True),
        # What FSDP1's function takes below a check is not the wrapper for that.
        (f"{SET_UP}    assert isinstance(fabric.strategy, FSDPStrategy)\n    {SHOWN}", True),
        (f"def save(model):\n    state = model._forward_module.state_dict()\n    {SHOWN}", True),
        (f"def save(fabric, model):\n    fabric.save(p, {{'model': model}})\n    {SHOWN}", True),
        (f"def step(fabric, model):\n    fabric.clip_gradients(model, o, max_norm=1)\n    {SHOWN}", True),
        (f"def save(fabric, model):\n    fabric.save(p, {{'model': other}})\n    {SHOWN}", False),
        (f"def save(fabric, model):\n    model = model._forward_module\n    {SHOWN}", False),
        (f"def save(model):\n    saver.save(p, model)\n    {SHOWN}", False),
        (f"{INNER}    if isinstance(model, FSDP):\n        {SHOWN.replace('    ', '        ')}", False),
    ],
)
def test_module_of_fabrics_own_module_stays(body: str, *, stays: bool) -> None:
    after = turned(f"{HEADER}{IMPORTS}fabric = Fabric(strategy='fsdp')\n{body}", header="")
    assert ("model.module.save_config(p)" in after) is stays
    assert ("model.save_config(p)" in after) is not stays


def test_module_of_what_fabric_gave_stays_in_a_function_of_another_file(tmp_path: Path) -> None:
    body = (
        "def main(net, optimizer):\n    fabric = Fabric(strategy='fsdp')\n"
        "    model, optimizer = fabric.setup(net, optimizer)\n    train(fabric, model)\n"
        "def train(fabric, model):\n    save(fabric=fabric, model=model)\n"
    )
    (tmp_path / "main.py").write_text(f"{HEADER}from helpers import save\n{body}")
    asks = "def save(fabric, model):\n    assert isinstance(fabric.strategy, FSDPStrategy)\n    "
    helpers = tmp_path / "helpers.py"
    helpers.write_text(f"{HEADER}{IMPORTS}{asks}{SHOWN}")
    rewrite_paths([tmp_path], write=True)
    assert "model.module.save_config(p)" in helpers.read_text()
    (tmp_path / "main.py").write_text(f"{IMPORTS}from helpers import save\nsave(fabric, FSDP(net))\n")
    helpers.write_text(f"{HEADER}{IMPORTS}{asks}{SHOWN}")
    rewrite_paths([tmp_path], write=True)
    assert "model.save_config(p)" in helpers.read_text()
