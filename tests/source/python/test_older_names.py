"""Names that a model had before it was sharded, in place."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch


ACCELERATE = "from accelerate import Accelerator, FullyShardedDataParallelPlugin as Plugin\n"
BY = {
    "torch": "model = FSDP(model)",
    "on a device": "model = FSDP(model.to(0), device_id=0)",
    "accelerate": "model, opt = accelerator.prepare(model, opt)",
    "alone": "net = accelerator.prepare(model)",
    "fabric": "net, opt = fabric.setup(model, opt)",
}
MADE = {
    "accelerate": f"{ACCELERATE}accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy=1))\n",
    "alone": f"{ACCELERATE}accelerator = Accelerator(fsdp_plugin=Plugin(sharding_strategy=1))\n",
    "fabric": "from lightning.fabric import Fabric\nfabric = Fabric(strategy='fsdp')\n",
}
SAVE = "raw.state_dict()"


def is_named(body: str, how: str = "torch") -> bool:
    lines = body.replace("WRAP", BY[how]).splitlines()
    code = MADE.get(how, "") + "def main(model, opt):\n" + "".join(f"    {line}\n" for line in lines)
    return ("FM333", "commented") in codes(code)


@pytest.mark.parametrize("how", BY)
def test_a_name_from_before_is_the_sharded_model(how: str) -> None:
    assert is_named(f"raw = model\nWRAP\nx = {SAVE}", how)
    assert not is_named(f"raw = model\nx = {SAVE}\nWRAP", how)


@pytest.mark.parametrize(
    ("above", "is_said"),
    [
        ("raw = model\nmodel = model.to(0)", True),
        ("raw = None\nraw = model", True),
        ("raw = copy.deepcopy(model)", False),
        ("raw = model\nmodel = Net()", False),
        ("raw = model\nraw = Net()", False),
        ("raw = other", False),
        ("raw = model.head", False),
    ],
)
def test_what_was_bound_anew_is_another(above: str, *, is_said: bool) -> None:
    assert is_named(f"{above}\nWRAP\nx = {SAVE}") is is_said


FIT = """\
class Trainer:
    def fit(self, model, optimizer):
        self.inner = model
        model, optimizer = self.accelerator.prepare(model, optimizer)
        if self.accelerator.is_main_process:
            print(self.norm())

    def norm(self):
        return sum(p.grad.detach().norm(2) ** 2 for p in {}.parameters())
"""


def test_an_attribute_from_before_is_the_sharded_model_in_other_methods() -> None:
    for name, is_said in (("self.inner", True), ("self.other", False)):
        assert (("FM423", "commented") in codes(MADE["accelerate"] + FIT.format(name))) is is_said
