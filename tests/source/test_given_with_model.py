"""Optimizers that a function is given with the model that it shards."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, turned, uses


pytestmark = pytest.mark.any_torch

SETUP = "def setup({given}):\n    {wraps}\n    {uses}\n"
WRAPS = "model = FSDP(model, use_orig_params=True)"


def said(given: str, uses_it: str, wraps: str = WRAPS) -> list[str]:
    body = SETUP.format(given=given, wraps=wraps, uses=uses_it)
    return [use.becomes.split("`")[1] for use in uses(f"{IMPORTS}{body}") if "may hold the" in use.becomes]


@pytest.mark.parametrize(
    ("given", "uses_it", "name"),
    [
        ("model, optimizer", "return model, optimizer", "optimizer"),
        ("model, optimizers=()", "return model, list(optimizers)", "optimizers"),
        ("model, *, optim: torch.optim.Optimizer", "optim.step()", "optim"),
        ("model, main_optimizer=None", "train(model, main_optimizer)", "main_optimizer"),
        ("model, opt", "opt.zero_grad()", "opt"),
        ("self, model, optimizer", "self.optimizer = optimizer", "optimizer"),
        # Options, a name, a class, a config, one that is made anew, and one that is not used any more.
        ("model, opt", "print(opt.lr)", ""),
        ("model, opt", "return model, opt", ""),
        ("model, optimizer: str", "return model, make(optimizer)", ""),
        ("model, optimizer='adam'", "return model, make(optimizer)", ""),
        ("model, optimizer", "return optimizer(model.parameters())", ""),
        ("model, optimizer", "return model, optimizer.lr", ""),
        ("model, optimizer", "optimizer = torch.optim.AdamW(model.parameters())\n    return optimizer", ""),
        ("model, optimizer", "return model", ""),
        ("self, model, optimizer", "self.optimizer.step()", ""),
        ("optimizer", "return model, optimizer", ""),
        ("model, optimizer", "def later(optimizer):\n        optimizer.step()\n    return later", ""),
    ],
)
def test_what_a_function_is_given_with_its_model(given: str, uses_it: str, name: str) -> None:
    assert said(given, uses_it) == ([name] if name else [])


def test_one_that_is_used_above_alone_is_done_with() -> None:
    above = f"optimizer.zero_grad()\n    {WRAPS}"
    assert said("model, optimizer", "return model", above) == []
    assert said("model, optimizer", "return model, optimizer", above) == ["optimizer"]


@pytest.mark.parametrize(
    ("wraps", "name"),
    [
        ("model = shard(model)", "optimizer"),
        ("model, optimizer = shard_both(model, optimizer)", ""),
        ("model, optimizer = shard_both(model, made)", ""),
        ("model = FSDP(model, optimizer)", ""),
        ("model = compile(model)", ""),
    ],
)
def test_by_a_function_that_shards(wraps: str, name: str) -> None:
    functions = (
        "def shard(net):\n    return FSDP(net)\n\n\ndef shard_both(net, a):\n    return FSDP(net), a\n"
    )
    body = SETUP.format(given="model, optimizer", wraps=wraps, uses="return model, optimizer")
    found = [use.becomes for use in uses(f"{IMPORTS}{functions}{body}") if "may hold the" in use.becomes]
    assert len(found) == bool(name)


def test_a_method_of_the_model_that_gives_it_back_shards_nothing() -> None:
    body = (
        "def get(model, device):\n    return FSDP(model, device_id=device)\n\n\n"
        "def load(model, device, optimizer=None, on=False):\n"
        "    if on:\n        model = FSDP(net, device_id=device)\n"
        "    model = model.to(device)\n    optimizer.step()\n"
    )
    assert not [use for use in uses(f"{IMPORTS}{body}") if "may hold the" in use.becomes]


OBJECT = """class Trainer:
    def __init__(self, model, optimizer, other):
        {sets}
        {makes}

    def setup(self):
        {wraps}

    def fit(self):
        {uses}
"""
SETS, MAKES = "self.model = model", "self.opt = torch.optim.SGD(self.model.parameters(), lr=1)"
SHARDS, STEPS = "self.model = FSDP(self.model, use_orig_params=True)", "self.opt.step()"


@pytest.mark.parametrize(
    ("sets", "makes", "wraps", "uses_it", "is_said"),
    [
        (SETS, MAKES, SHARDS, STEPS, True),
        (SETS, "self.opt = optimizer", SHARDS, STEPS, True),
        ("self.model = model.to(0)", "self.opt = optimizer", SHARDS, STEPS, True),
        (SETS, f"self.opt = optimizer\n        {SHARDS}", "pass", STEPS, True),
        # Another model's, one that is made of the sharded model, options, and one that is handed over.
        (SETS, "self.opt = torch.optim.SGD(other.parameters(), lr=1)", SHARDS, STEPS, False),
        (SETS, f"{SHARDS}\n        self.opt = optimizer", "pass", STEPS, False),
        ("self.model = Net()", "self.opt = optimizer", SHARDS, STEPS, False),
        (SETS, f"self.setup()\n        {MAKES}", SHARDS, STEPS, False),
        (SETS, MAKES, f"{SHARDS}\n        {MAKES}", STEPS, False),
        (SETS, MAKES, SHARDS, "print(self.opt.lr)", False),
        (SETS, "self.opt = other", SHARDS, STEPS, False),
    ],
)
def test_what_an_object_is_given_or_makes_before_its_model_is_sharded(
    sets: str, makes: str, wraps: str, uses_it: str, *, is_said: bool
) -> None:
    text = OBJECT.format(sets=sets, makes=makes, wraps=wraps, uses=uses_it)
    found = [use.becomes for use in uses(f"{IMPORTS}import torch\n{text}") if "may hold the" in use.becomes]
    assert [each.split("`")[1] for each in found] == (["self.opt"] if is_said else [])


@pytest.mark.parametrize(
    ("given", "is_said"),
    [("model.parameters()", True), ("other.parameters()", False), ("model.head", False)],
)
def test_a_group_that_an_optimizer_is_given_before(given: str, *, is_said: bool) -> None:
    text = (
        "def main(model, other):\n    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1)\n"
        f"    optimizer.add_param_group({{'params': {given}}})\n"
        "    model = FSDP(model, use_orig_params=True)\n    optimizer.step()\n"
    )
    assert ("optimizers=optimizer" in turned(f"{IMPORTS}import torch\n{text}")) is is_said


@pytest.mark.parametrize(
    ("made", "is_handed"),
    [
        ("torch.optim.RMSprop(net.parameters())", True),
        ("torch.optim.LBFGS(net.parameters())", True),
        ("torch.optim.lr_scheduler.StepLR(net.parameters())", False),
        ("torch.nn.utils.parameters_to_vector(net.parameters())", False),
    ],
)
def test_any_optimizer_of_torchs_is_handed_over(made: str, *, is_handed: bool) -> None:
    text = f"def main(net):\n    it = {made}\n    net = FSDP(net, use_orig_params=True)\n    it.step()\n"
    assert ("optimizers=it" in turned(f"{IMPORTS}import torch\n{text}")) is is_handed
