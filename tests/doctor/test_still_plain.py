"""Lines at which a model is no sharded one."""

from __future__ import annotations

import pytest

from fsdp_migrate.doctor.still_plain import asked_dimensions, copied_shards, goes_beside
from tests.doctor.sights import seeing


pytestmark = pytest.mark.any_torch

COPY = "ema = copy.deepcopy(model).requires_grad_(False)\n"
SHARD = "model = fabric.setup_module(model)\n"


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        (COPY, True),
        (SHARD + COPY, True),
        (COPY + SHARD, False),
        (f"def main():\n    {COPY}    model, opt = accelerator.prepare(model, opt)\n", False),
        (f"def main():\n    {COPY}def shard(model):\n    {SHARD}", True),
        (COPY + SHARD.replace("(model)", "(other)"), True),
        (f"for i in x:\n    {COPY}    {SHARD}", True),
        ("print 'Python 2'\n" + COPY + SHARD, True),
    ],
)
def test_a_copy_before_the_model_is_sharded_is_one(text: str, *, is_said: bool) -> None:
    assert bool(copied_shards(seeing(sources={"train.py": text}))) is is_said


@pytest.mark.parametrize(
    ("body", "text", "is_said"),
    [
        ("model = FSDP(model, **settings)\n    return model", "{copy}model = shard(model, cfg)\n", False),
        ("model = FSDP(model, **settings)\n    return model", "model = shard(model, cfg)\n{copy}", True),
        ("return model.to(cfg.device)", "{copy}model = shard(model, cfg)\n", True),
    ],
)
def test_a_function_of_another_file_may_shard(body: str, text: str, *, is_said: bool) -> None:
    sources = {"train.py": text.format(copy=COPY), "own.py": f"def shard(model, cfg):\n    {body}\n"}
    assert bool(copied_shards(seeing(sources=sources))) is is_said


@pytest.mark.parametrize(
    ("head", "is_said"),
    [
        ("with torch.no_grad():\n", True),
        ("with summon_full_params(model):\n", False),
        ("with torch.no_grad(), FSDP.summon_full_params(model):\n", False),
    ],
)
def test_what_is_summoned_is_whole(head: str, *, is_said: bool) -> None:
    loop = "    for e, p in zip(ema.parameters(), model.parameters()):\n        e.lerp_(p, 0.2)\n"
    text = f"model = FSDP(model)\n{head}{loop}"
    assert bool(goes_beside(seeing(sources={"train.py": text}))) is is_said


ASKED = "decayed = [p for p in model.parameters() if p.ndim >= 2]\n"
LOOP = "for n, p in model.named_parameters():\n    if p.dim() < 2:\n        plain.append(p)\n"
WRAP = "model = FSDP(model)\n"
GROUPS = "def groups(net):\n    return [p for p in net.parameters() if p.ndim >= 2]\n"
METHOD = (
    "class Net(nn.Module):\n    def groups(self):\n        named = dict(self.named_parameters())\n"
    "        return [p for n, p in named.items() if p.dim() >= 2]\n"
)


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        (WRAP + ASKED, True),
        (ASKED + WRAP, False),
        (WRAP + LOOP, True),
        (LOOP + WRAP, False),
        (ASKED + WRAP.replace("(model)", "(other)"), True),
        ("for m in model.modules():\n    for p in m.parameters():\n        p.ndim > 1\n" + WRAP, False),
        (WRAP + "for m in model.modules():\n    for p in m.parameters():\n        p.ndim > 1\n", True),
        # In a loop the next round asks the sharded one.
        ("for x in y:\n    " + ASKED + "    " + WRAP, True),
        # By a function or a method that is given the model.
        (f"{GROUPS}g = groups(model)\n{WRAP}", False),
        (f"{GROUPS}{WRAP}g = groups(model)\n", True),
        (f"{GROUPS}g = groups(net=model)\n{WRAP}h = groups(model)\n", True),
        (GROUPS + WRAP, True),
        (f"{METHOD}g = model.groups()\n{WRAP}", False),
        (f"{METHOD}{WRAP}g = model.groups()\n", True),
        # In another function of which nobody knows when it is called.
        (f"def a():\n    {ASKED}def b():\n    {WRAP}", True),
        ("print 'Python 2'\n" + ASKED + WRAP, True),
    ],
)
def test_dimensions_that_are_asked_before_the_model_is_sharded_are_its_own(
    text: str, *, is_said: bool
) -> None:
    assert bool(asked_dimensions(seeing(sources={"train.py": text}))) is is_said
