"""Lists of parameters from before Accelerate's ``prepare``, and norms of a part of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths, scan_source
from tests.source.samples import comments


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


FSDP1 = (
    "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    'plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")\n'
    "accelerator = Accelerator(fsdp_plugin=plugin)\n"
)
PREPARE = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
CLIP = "accelerator.clip_grad_norm_(trained, 1.0)\n"
FILTERED = "trained = [p for p in model.parameters() if p.requires_grad]\n"


@pytest.mark.parametrize(
    ("made", "used", "is_said"),
    [
        (FILTERED, CLIP, True),
        (
            "model = Pair(unet, encoder)\ntrained = list(unet.parameters()) + list(encoder.parameters())\n",
            CLIP,
            True,
        ),
        ("trained = list(filter(lambda p: p.requires_grad, model.parameters()))\n", CLIP, True),
        ("trained = dict(model.named_parameters())\n", "trained['a'].grad.zero_()\n", True),
        (FILTERED, "for p in trained:\n    p.register_hook(check)\n", True),
        (FILTERED, "print(sum(p.numel() for p in trained))\n", False),
        (FILTERED, f"{FILTERED}{CLIP}", False),
        (FILTERED, "optimizer.step()\n", False),
        ("trained = build()\n", CLIP, False),
    ],
)
def test_a_list_from_before_prepare_gets_a_comment(made: str, used: str, *, is_said: bool) -> None:
    body = f"{made}optimizer = torch.optim.AdamW(trained)\n{PREPARE}{used}"
    said = comments(body, FSDP1)
    assert ("this holds the parameters from before that" in said) is is_said
    plain = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
    assert "FM446" not in {use.code for use in scan_source(plain + body)}


def test_a_list_that_an_object_keeps_gets_a_comment() -> None:
    body = (
        "class Run:\n    def __init__(self, model, accelerator):\n"
        "        self.trained = [p for p in model.parameters() if p.requires_grad]\n"
        "        self.optimizer = torch.optim.AdamW(self.trained)\n"
        "        self.model, self.optimizer = accelerator.prepare(model, self.optimizer)\n"
        "    def step(self):\n        self.accelerator.clip_grad_norm_(self.trained, 1.0)\n"
    )
    assert "FM446" in comments(body, FSDP1)


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("model.head.parameters()", True),
        ("model.layers[0].parameters()", True),
        ("accelerator.unwrap_model(model).head.parameters()", True),
        ("[p for p in model.parameters() if p.requires_grad]", True),
        ("filter(lambda p: p.requires_grad, model.parameters())", True),
        ("model.parameters()", False),
        ("model.module.parameters()", False),
        ("accelerator.unwrap_model(model).parameters()", False),
        ("[p for p in model.parameters()]", False),
        ("other.parameters()", False),
    ],
)
def test_the_norm_of_a_part_gets_a_comment(given: str, *, is_said: bool) -> None:
    body = f"{PREPARE}accelerator.clip_grad_norm_({given}, 1.0)\n"
    assert ("FM326 where Accelerate shards this model, the norm" in comments(body, FSDP1)) is is_said
    named = f"{PREPARE}chosen = {given}\naccelerator.clip_grad_norm_(chosen, 1.0)\n"
    assert ("FM326" in comments(named, FSDP1)) is is_said


_MUON = (
    "import torch\nclass Muon(torch.optim.Optimizer):\n    def __init__(self, params):\n"
    "        for p in params:\n            assert p.ndim == 2\n"
)
_STEP = "    def step(self):\n        for p in self.params:\n            x = p.ndim == 2\n"
_TOGETHER = "optimizer = Muon(model.parameters())\nmodel, optimizer = accelerator.prepare(model, optimizer)\n"
_LISTED = (
    "optimizer = Muon(model.parameters())\nthings = [model, optimizer]\n"
    "model, optimizer = accelerator.prepare(*things)\n"
)
_APART = (
    "model = accelerator.prepare(model)\noptimizer = Muon(model.parameters())\n"
    "optimizer = accelerator.prepare(optimizer)\n"
)


@pytest.mark.parametrize(
    ("step", "use", "is_said"),
    [
        ("", _TOGETHER, False),
        ("", _LISTED, False),
        ("", _APART, True),
        ("", _TOGETHER + _APART, True),
        (_STEP, _TOGETHER, True),
    ],
)
def test_an_optimizers_constructor_sees_whole_shapes_above_prepare(
    tmp_path: Path, step: str, use: str, *, is_said: bool
) -> None:
    assert ("FM318" in comments(f"{_MUON}{step}{use}", FSDP1)) is is_said
    (tmp_path / "muon.py").write_text(f"{_MUON}{step}")
    (tmp_path / "train.py").write_text(f"{FSDP1}from muon import Muon\n{use}")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("muon.py")}
    assert ("FM318" in found) is is_said


@pytest.mark.parametrize(
    ("prepare", "is_said"),
    [
        ("model, optimizer = accelerator.prepare(model, optimizer)\n", True),
        ("prepare = accelerator.prepare\nmodel, optimizer = prepare(model, optimizer)\n", True),
        ("things = [model, optimizer]\nmodel, optimizer = accelerator.prepare(*things)\n", True),
        ("optimizer = accelerator.prepare(optimizer)\n", False),
        ("other, model = accelerator.prepare(other, model)\n", False),
    ],
)
def test_an_optimizer_of_another_package_that_is_prepared_with_its_model(
    prepare: str, *, is_said: bool
) -> None:
    made = "import bitsandbytes\noptimizer = bitsandbytes.optim.AdamW8bit(model.parameters())\n"
    assert ("FM445" in comments(f"{made}{prepare}", FSDP1)) is is_said


_CHOSEN = "if eight:\n    cls = {}\nelse:\n    cls = torch.optim.AdamW\n"
_TRY = "try:\n    import bitsandbytes as bnb\n{}except ImportError:\n    {}\n"
_EIGHT = "cls = bnb.optim.AdamW8bit\n"


@pytest.mark.parametrize(
    ("before", "is_said"),
    [
        ("import bitsandbytes as bnb\n" + _CHOSEN.format("bnb.optim.AdamW8bit"), True),
        (_TRY.format("", "raise") + _EIGHT, True),
        (_TRY.format(f"    {_EIGHT}", "cls = AdamW"), True),
        ("from came_pytorch import CAME\n" + _CHOSEN.format("CAME"), True),
        (_CHOSEN.format("torch.optim.SGD"), False),
        ("from nets import make_parts\n" + _CHOSEN.format("make_parts"), False),
    ],
)
def test_an_optimizers_class_that_is_chosen(before: str, *, is_said: bool) -> None:
    made = f"{before}optimizer = cls(model.parameters(), lr=1e-3)\n"
    prepare = "model, optimizer = accelerator.prepare(model, optimizer)\n"
    assert ("FM445" in comments(f"{made}{prepare}", FSDP1)) is is_said
    alone = f"model = DDP(net)\n{made}"
    assert "FM445" not in {use.code for use in scan_source(alone)}


_GLOBAL = "def setup():\n    global model, optimizer\n    {}def train():\n    {}"


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("kept: list = list(model.parameters())\n", "clip_grad_norm_(kept, 1.0)\n"),
        ("kept = {id(p): n for n, p in model.named_parameters()}\n", "x = id(q) in kept\n"),
        ("kept = set(map(id, model.head.parameters()))\n", "x = id(q) in kept\n"),
        ("kept = [p for m in (model.a, model.b) for p in m.parameters()]\n", "clip_grad_norm_(kept, 1.0)\n"),
        ("kept = list(chain.from_iterable(m.parameters() for m in [model.a]))\n", "clip_grad_norm_(kept)\n"),
        ("kept = [model.head.weight, model.head.bias]\n", "clip_grad_norm_(kept, 1.0)\n"),
        ("kept = []\nkept.extend(model.a.parameters())\n", "clip_grad_norm_(kept, 1.0)\n"),
        ("kept = []\nkept += list(model.a.parameters())\n", "clip_grad_norm_(kept, 1.0)\n"),
        ("kept = []\nfor m in model.modules():\n    kept.append(m.weight)\n", "clip_grad_norm_(kept, 1.0)\n"),
        ("kept = {}\nfor n, p in model.named_parameters():\n    kept[n] = p\n", "kept['a'].grad.zero_()\n"),
        (
            "kept = defaultdict(list)\nfor p in model.parameters():\n    kept[p.ndim].append(p)\n",
            "use(kept)\n",
        ),
        ("kept = {'ema': EMA(model.parameters()), 'step': 0}\n", "kept['ema'].step()\n"),
        ("kept = partial(clip_grad_norm_, list(model.parameters()))\n", "kept(1.0)\n"),
        ("def step():\n    clip_grad_norm_(kept, 1.0)\nkept = list(model.parameters())\n", "step()\n"),
    ],
)
def test_forms_in_which_parameters_are_kept(made: str, used: str) -> None:
    lines = "".join(f"    {line}\n" for line in f"{made}{PREPARE}{used}".splitlines())
    assert "FM446" in comments(f"def main(model, optimizer, loader):\n{lines}", FSDP1)
    others = lines.replace("model.", "other.")
    assert "FM446" not in comments(f"def main(model, optimizer, loader, other):\n{others}", FSDP1)


def test_what_the_top_level_of_a_file_keeps() -> None:
    prepare = "model, optimizer = accelerator.prepare(model, optimizer)\n"
    made = "model = Net()\nkept = list(model.parameters())\noptimizer = AdamW(kept)\n"
    assert "FM446" in comments(made + _GLOBAL.format(prepare, "clip_grad_norm_(kept, 1.0)\n"), FSDP1)
    assert "FM446" not in comments(made + _GLOBAL.format(prepare, "optimizer.step()\n"), FSDP1)


def test_an_object_that_is_given_the_model_and_prepared_from_outside() -> None:
    body = (
        "state = State(net, AdamW(kept), kept)\n"
        "state.model, state.optimizer = accelerator.prepare(state.model, state.optimizer)\n"
        "accelerator.clip_grad_norm_(state.params, 1.0)\n"
    )
    assert "FM446" in comments(f"kept = list(net.parameters())\n{body}", FSDP1)
    own = body.replace("State(net, AdamW(kept), kept)", "State(net)\nstate.params = kept", 1)
    assert "FM446" in comments(f"kept = list(net.parameters())\n{own}", FSDP1)
    assert "FM446" not in comments(f"kept = list(other.parameters())\n{body}", FSDP1)
