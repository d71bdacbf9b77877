"""Averages of weights that stay plain beside the model that is sharded."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

UPDATES = (
    """def update(target, source, rate):
    values = dict(source.named_parameters())
    for name, p in target.named_parameters():
        p.data.mul_(rate).add_((1 - rate) * values[name].data)
""",
    """def update(target, source, rate):
    for p, q in zip(target.parameters(), source.parameters()):
        p.data.lerp_(q.data, rate)
""",
    """def update(target, source, rate):
    for (n, p), (m, q) in zip(target.named_parameters(), source.named_parameters()):
        p.copy_(p * rate + q.detach() * (1 - rate))
""",
    """def update(target, source, rate):
    new = {n: p for n, p in source.named_parameters()}
    for n, p in target.named_parameters():
        p.data.copy_(new[n])
""",
)
OF_ACCELERATE = """from accelerate import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=1))
net, ema = Net(), Net()
model, optimizer = accelerator.prepare(net, optimizer)
update(ema, model, 0.999)
"""
OF_TORCH = "net = Net()\nema = copy.deepcopy(net)\nmodel = FSDP(net)\nema.eval()\nupdate(ema, model, 0.999)\n"


def said(body: str) -> int:
    return codes(body).count(("FM423", "commented"))


@pytest.mark.parametrize("update", UPDATES)
def test_an_average_that_stays_plain_meets_the_sharded_model(update: str) -> None:
    assert said(update + OF_TORCH) == 1
    assert said(update + OF_ACCELERATE.replace("net, ema = Net(), Net()", "net = Net()\nema = Net()")) == 1


def test_in_the_loop_itself_too() -> None:
    loop = "for p, q in zip(ema.parameters(), model.parameters()):\n    p.data.mul_(0.9).add_(q.data)\n"
    assert said(OF_TORCH.replace("update(ema, model, 0.999)\n", loop)) == 1


@pytest.mark.parametrize("update", UPDATES[:2])
@pytest.mark.parametrize(
    "change",
    [
        ("ema = copy.deepcopy(net)\nmodel = FSDP(net)", "model = FSDP(net)\nema = copy.deepcopy(model)"),
        ("ema.eval()", "ema = FSDP(ema)"),
        ("ema.eval()", "ema = prepare_model(ema)"),
        ("ema = copy.deepcopy(net)", "ema = given"),
        ("model = FSDP(net)", "model = net"),
        ("update(ema, model, 0.999)", "with FSDP.summon_full_params(model):\n    update(ema, model, 0.999)"),
        ("update(ema, model, 0.999)", "update(model, ema, 0.999)\nupdate(other, model, 0.9)"),
    ],
)
def test_what_may_be_sharded_alike_is_left_alone(update: str, change: tuple[str, str]) -> None:
    assert change[0] in OF_TORCH
    assert said(update + OF_TORCH.replace(*change)) == 0


@pytest.mark.parametrize("update", UPDATES[:2])
def test_whole_tensors_are_plain(update: str) -> None:
    whole = update.replace("values[name].data", "values[name].full_tensor()").replace(
        "q.data", "q.full_tensor()"
    )
    assert said(whole + OF_TORCH) == 0


OF_A_CLASS = """class Trainer:
    def __init__(self, net, opt):
        self.ema = None
        self.ema = copy.deepcopy(net)
        self.model = FSDP(net)
    def step(self):
        update(self.ema, self.model, 0.999)
"""


@pytest.mark.parametrize("update", UPDATES)
def test_an_average_that_an_object_has(update: str) -> None:
    assert said(update + OF_A_CLASS) == 1
    prepared = OF_A_CLASS.replace("FSDP(net)", "accelerator.prepare(net, opt)[0]")
    header = OF_ACCELERATE.partition("net, ema")[0]
    assert said(update + header + prepared) == 1
    for change in (
        ("copy.deepcopy(net)", "net.ema"),
        ("copy.deepcopy(net)", "prepare_model(net)"),
        ("self.ema = None\n", "self.ema = prepare(net)\n        self.ema = FSDP(self.ema)\n"),
        ("    def step", "        accelerator.prepare(self.ema)\n    def step"),
        ("self.model = FSDP(net)", "self.model = net"),
    ):
        assert change[0] in OF_A_CLASS
        assert said(update + OF_A_CLASS.replace(*change)) == 0, change
