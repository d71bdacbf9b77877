"""What holds a model's parameters from before a framework shards it is said, and what is right is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import rewrite_paths, scan_source


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

ACCELERATE = (
    "import itertools\nimport torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
    "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin(activation_checkpointing=False))\n"
)
PREPARE = (
    "optimizer = torch.optim.AdamW(model.parameters())\n"
    "model, optimizer = accelerator.prepare(model, optimizer)\n"
)
CLIP = "accelerator.clip_grad_norm_(kept, 1.0)\n"
FABRIC = "import torch\nfrom lightning.fabric import Fabric\nfabric = Fabric(strategy='fsdp', devices=2)\n"


def lines(code: str) -> list[int]:
    return [use.line for use in scan_source(code) if use.code == "FM446"]


@pytest.mark.parametrize(
    ("made", "used", "is_said"),
    [
        ("kept = [p for p in model.parameters() if p.requires_grad]\n", CLIP, True),
        ("kept = list(filter(lambda p: p.requires_grad, model.parameters()))\n", CLIP, True),
        ("kept = itertools.chain(model.head.parameters(), model.body.parameters())\n", CLIP, True),
        ("kept = list(model.head.parameters()) + list(model.body.parameters())\n", CLIP, True),
        ("kept = []\nfor p in model.parameters():\n    kept.append(p.clone())\n", CLIP, False),
        ("kept, no = [], []\nfor n, p in model.named_parameters():\n    kept.append(p)\n", CLIP, True),
        ("kept = []\nfor p in other.parameters():\n    kept.append(p)\n", CLIP, False),
        ("kept = []\nfor p in model.parameters():\n    kept.append(p.shape)\n", "print(len(kept))\n", False),
        ("kept = dict(model.named_parameters())\n", "print(kept['x'].grad)\n", True),
        ("kept = Averaging(model.parameters())\n", "kept.update()\n", True),
        ("kept = trainable_params(model)\n", CLIP, True),
        ("kept = model.trainable_parameters()\n", "for p in kept:\n    p.mul_(2)\n", True),
        ("groups, kept = split_params(model)\n", CLIP, True),
        ("kept = list(model.parameters())\n", f"def step():\n    {CLIP}", True),
        # What is right: of a copy, of another model, made anew, counted, or not used any more.
        ("kept = [p.detach().clone() for p in model.parameters()]\n", CLIP, False),
        ("kept = list(other.parameters())\n", CLIP, False),
        ("kept = list(model.parameters())\n", f"kept = list(model.parameters())\n{CLIP}", False),
        ("kept = list(model.parameters())\n", "print(len(kept), sum(p.numel() for p in kept))\n", False),
        ("kept = list(model.parameters())\n", "", False),
        ("kept = num_trainable_params(model)\n", "print(kept)\n", False),
        ("kept = trainable_params(model)\n", "print(kept)\n", False),
        ("kept = torch.optim.SGD(model.parameters())\n", "kept.step()\n", False),
        ("", "kept = list(model.parameters())\n" + CLIP, False),
    ],
)
def test_lists_from_before_prepare(made: str, used: str, *, is_said: bool) -> None:
    assert lines(ACCELERATE + made + PREPARE + used) == ([5] if is_said else [])
    without = (
        "import itertools\nimport torch\nfrom accelerate import Accelerator\naccelerator = Accelerator()\n"
    )
    assert not lines(without + made + PREPARE + used)


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        (
            "things = [model, optimizer]\ndone = accelerator.prepare(*things)\nmodel, optimizer = done[:2]\n",
            True,
        ),
        ("things = [model, optimizer]\nmodel, optimizer = accelerator.prepare(*things)\n", True),
        ("model, optimizer, x = accelerator.prepare(*(model, optimizer), x)\n", True),
        (
            "things = []\nthings.append(model)\nthings += [optimizer]\nx = accelerator.prepare(*things)\n",
            True,
        ),
        ("things = [model]\nif x:\n    things += [optimizer]\nx = accelerator.prepare(*things)\n", True),
        ("things = [loader, optimizer]\nx = accelerator.prepare(*things)\n", False),
        ("things = [model, optimizer]\nx = other.prepare(*things)\n", False),
    ],
)
def test_lists_from_before_prepare_of_what_a_list_holds(given: str, *, is_said: bool) -> None:
    made = "kept = [p for p in {}.parameters() if p.requires_grad]\noptimizer = torch.optim.AdamW(kept)\n"
    assert lines(ACCELERATE + made.format("model") + given + CLIP) == ([5] if is_said else [])
    assert not lines(ACCELERATE + f"{given.replace('optimizer', 'loader')}{made.format('model')}{CLIP}")


PICK = (
    "def pick(net, lr=0):\n    names, picked = [], []\n    for name, p in net.named_parameters():\n"
    "        if 'head' in name:\n            names.append(name)\n            picked.append({put})\n"
    "    return {given}\n"
)


@pytest.mark.parametrize(
    ("put", "given", "made", "is_said"),
    [
        ("p", "picked", "kept = pick(model)\n", True),
        ("p", "picked", "kept = list(pick(net=model, lr=1))\n", True),
        ("p", "picked", "kept = pick(model.decoder)\n", True),
        ("{'params': [p]}", "picked", "kept = pick(model)\n", True),
        ("p", "names, picked", "no, kept = pick(model)\n", True),
        ("p", "[p for p in net.parameters() if p.requires_grad]", "kept = pick(model)\n", True),
        ("p", "names, picked", "kept, no = pick(model)\n", False),
        ("p", "names, picked", "kept = pick(model)\n", False),
        ("p", "names", "kept = pick(model)\n", False),
        ("p", "len(picked)", "kept = pick(model)\n", False),
        ("p.shape", "picked", "kept = pick(model)\n", False),
        ("p.detach().clone()", "picked", "kept = pick(model)\n", False),
        ("p", "picked", "kept = pick(other)\n", False),
        ("p", "picked", "kept = pick(copy.deepcopy(model))\n", False),
        ("p", "picked", "kept = pick(other, model)\n", False),
    ],
)
def test_lists_that_a_function_fills(put: str, given: str, made: str, *, is_said: bool) -> None:
    after = ACCELERATE + made + PREPARE + CLIP
    pick = PICK.replace("{put}", put).replace("{given}", given)
    assert lines(after + pick) == ([5] if is_said else [])


@pytest.mark.parametrize(
    ("base", "is_said"),
    [
        ("net.base", True),
        ("getattr(net, 'base', net)", True),
        ("accelerator.unwrap_model(net)", True),
        ("copy.deepcopy(net)", False),
        ("build(net)", False),
    ],
)
def test_lists_that_a_function_fills_of_a_part(base: str, *, is_said: bool) -> None:
    pick = (
        f"def pick(net):\n    picked = []\n    base = {base}\n    for p in base.parameters():\n"
        "        picked.append(p)\n    return picked\n"
    )
    assert lines(f"{ACCELERATE}kept = pick(model)\n{PREPARE}{CLIP}{pick}") == ([5] if is_said else [])


@pytest.mark.parametrize(
    ("bound", "is_said"),
    [
        ("for net in others: pass", False),
        ("net = make(net)", False),
        ("net = net.base", True),
        ("pass", True),
    ],
)
def test_lists_of_what_a_parameter_was_bound_to_anew(bound: str, *, is_said: bool) -> None:
    pick = f"def pick(net):\n    {bound}\n    return [p for p in net.parameters()]\n"
    assert lines(f"{ACCELERATE}kept = pick(model)\n{PREPARE}{CLIP}{pick}") == ([5] if is_said else [])


def test_what_a_model_was_made_of() -> None:
    made = "kept = list(unet.parameters()) + list(encoder.parameters())\nmodel = Both(unet, encoder)\n"
    assert lines(ACCELERATE + made + PREPARE + CLIP) == [5]
    assert not lines(ACCELERATE + made.replace("Both(unet, encoder)", "Both()") + PREPARE + CLIP)


def test_the_words_name_the_framework_and_what_it_has() -> None:
    code = f"{ACCELERATE}kept = list(model.parameters())\n{PREPARE}{CLIP}"
    (said,) = [use.becomes for use in scan_source(code) if use.code == "FM446"]
    assert said.startswith("where Accelerate shards this model, ")
    assert "accelerator.clip_grad_norm_(model.parameters(), max_norm)" in said


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("kept = list(net.parameters())\nmodel = fabric.setup_module(net)\nclip(kept)\n", [4]),
        # Fabric's FSDP2 puts nothing into an optimizer; both in one call it refuses, and says so.
        (
            (
                "o = torch.optim.SGD(net.parameters())\nmodel = fabric.setup_module(net)\n"
                "o = fabric.setup_optimizers(o)\n"
            ),
            [4],
        ),
        ("o = torch.optim.SGD(net.parameters())\nmodel, o = fabric.setup(net, o)\no.step()\n", []),
        ("model = fabric.setup_module(net)\nkept = list(model.parameters())\nclip(kept)\n", []),
    ],
)
def test_lists_from_before_fabric_shards(body: str, found: list[int]) -> None:
    assert lines(FABRIC + body) == found


@pytest.mark.parametrize(
    ("made", "used", "found"),
    [
        ("kept = [p for p in model.parameters()]\n", "print([p.norm() for p in kept])\n", [2]),
        ("kept = [p for p in model.parameters()]\n", "print(sum(p.numel() for p in kept))\n", []),
        ("", "kept = list(model.parameters())\nprint(kept)\n", []),
    ],
)
def test_lists_from_before_a_trainer_trains(made: str, used: str, found: list[int]) -> None:
    header = "from transformers import Trainer, TrainingArguments\n"
    train = (
        "trainer = Trainer(model=model, args=TrainingArguments('out', fsdp='full_shard'))\ntrainer.train()\n"
    )
    assert lines(header + made + train + used) == found
    assert not lines(header + made + train.replace(", fsdp='full_shard'", "") + used)


def test_what_callbacks_are_given() -> None:
    code = (
        "from transformers import Trainer, TrainingArguments\n"
        "args = TrainingArguments('out', fsdp='full_shard')\n"
        "trainer = Trainer(model=model, args=args, callbacks=[Average(model.parameters())])\n"
        "trainer.add_callback(Average(list(model.parameters())))\ntrainer.add_callback(Average(model))\n"
        "trainer.train()\n"
    )
    assert lines(code) == [3, 4]


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_function_of_the_project_that_prepares(tmp_path: Path, *, is_elsewhere: bool) -> None:
    prepares = "def wrap(accelerator, model, optimizer):\n    return accelerator.prepare(model, optimizer)\n"
    body = (
        "def main(model):\n    kept = list(model.parameters())\n    optimizer = torch.optim.SGD(kept)\n"
        "    model, optimizer = wrap(accelerator, model, optimizer)\n"
        "    accelerator.clip_grad_norm_(kept, 1.0)\n"
    )
    imports = "from wraps import wrap\n" if is_elsewhere else prepares
    (tmp_path / "wraps.py").write_text(ACCELERATE + prepares)
    (tmp_path / "main.py").write_text(ACCELERATE + imports + body)
    changed = {each.path.rpartition("/")[2]: each.after for each in rewrite_paths([tmp_path]).changed}
    assert changed["main.py"].count("fsdp-migrate: FM446") == 1
    below = changed["main.py"].partition("fsdp-migrate: FM446")[2]
    assert below.splitlines()[1] == "    kept = list(model.parameters())"


def test_an_optimizer_comes_with_its_model() -> None:
    code = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model, optimizer = set_up(cfg)\nmodel = FSDP(model)\ntrain(model, optimizer)\n"
    )
    assert lines(code) == [2]
    assert not lines(code.replace("model, optimizer =", "other, optimizer ="))
    assert not lines(code.replace("FSDP(model)", "FSDP(net)"))


def test_another_branch_says_nothing_of_the_one_that_shards() -> None:
    code = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def wrap(model):\n    model = FSDP(model)\n    return model\n\n\n"
        "def build(sharded, device):\n    model = make()\n    if sharded:\n"
        "        optimizer = build_optimizer(model, 0.05)\n        active = wrap(model)\n"
        "    else:\n        active = model.to(device)\n        optimizer = build_optimizer(active, 0.05)\n"
        "    return active, optimizer\n"
    )
    assert lines(code) == [12]


BASE = "from lib import Base\n"
STEPS = (
    "class Runner({base}):\n    def {make}(self):\n        optimizer = torch.optim.AdamW(self.ps, lr=1)\n"
    "        self.net, self.o = self.accelerator.prepare(self.net, {prepared})\n"
    "    def train(self):\n        {used}\n        self.o.step()\n"
)
OF_BASE = {"base": "Base", "make": "set_up", "prepared": "optimizer"}
CLIPPED = "self.accelerator.clip_grad_norm_(self.ps, 1.0)"


@pytest.mark.parametrize(
    ("parts", "used", "line"),
    [
        ({}, CLIPPED, 11),
        ({"prepared": "torch.optim.SGD(self.ps)"}, CLIPPED, 11),
        ({}, "torch.nn.utils.clip_grad_norm_(self.ps, 1.0)", 11),
        ({}, "for p in self.ps: p.grad.mul_(2)", 11),
        ({}, "x = [p.grad for p in self.ps]", 11),
        # What is clipped is the prepared model's, another list, or only asked how large it is.
        ({}, "self.accelerator.clip_grad_norm_(self.net.parameters(), 1.0)", None),
        ({}, "self.accelerator.clip_grad_norm_(self.others, 1.0)", None),
        ({}, "print(len(self.ps), sum(p.numel() for p in self.ps))", None),
        ({}, "for p in self.ps: print(p.shape)", None),
        ({"prepared": "self.loader"}, CLIPPED, None),
    ],
)
def test_a_list_that_another_package_makes_and_an_optimizer_steps(
    parts: dict[str, str], used: str, line: int | None
) -> None:
    code = ACCELERATE + BASE + STEPS.format(**{**OF_BASE, **parts}, used=used)
    assert lines(code) == ([] if line is None else [line])
    assert not lines(
        code.replace("fsdp_plugin=FullyShardedDataParallelPlugin(activation_checkpointing=False)", "")
    )


def test_a_list_that_an_optimizer_steps_is_said_where_its_model_is_seen() -> None:
    keeps = "    def __init__(self):\n        self.ps = list(self.{}.parameters())\n"
    code = ACCELERATE + BASE + STEPS.format(**OF_BASE, used=CLIPPED)
    above, _, below = code.partition("    def set_up")
    # Of the model that is sharded, the line that makes it; of another one, nothing.
    assert lines(f"{above}{keeps.format('net')}    def set_up{below}") == [8]
    assert lines(f"{above}{keeps.format('other')}    def set_up{below}") == []


PLAIN = "import torch\nimport lib\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


@pytest.mark.parametrize(
    ("made", "arguments", "used", "is_said"),
    [
        ("params = lib.get(cfg)", "", "torch.nn.utils.clip_grad_norm_(params, 1.0)", True),
        ("params = list(given)", "", "torch.nn.utils.clip_grad_norm_(params, 1.0)", True),
        ("params = lib.get(cfg)", "", "for p in params: p.grad.mul_(2)", True),
        ("params = lib.get(cfg)", "", "for p in params: print(p.shape)", False),
        ("params = lib.get(cfg)", "", "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)", False),
        ("params = lib.get(cfg)", ", ignored_states=params", "clip_grad_norm_(params, 1.0)", False),
        ("params = list(other.parameters())", "", "torch.nn.utils.clip_grad_norm_(params, 1.0)", False),
        ("params = params_of(other)", "", "torch.nn.utils.clip_grad_norm_(params, 1.0)", False),
        # Of two optimizers one steps another model, and nothing tells which.
        (
            "params, others = lib.get(cfg)\n    o2 = torch.optim.SGD(others, lr=1)",
            *("", "torch.nn.utils.clip_grad_norm_(params, 1.0)", False),
        ),
    ],
)
def test_a_list_that_an_optimizer_steps_above_fsdp(
    made: str, arguments: str, used: str, *, is_said: bool
) -> None:
    steps = "    optimizer = torch.optim.AdamW([{'params': params}], lr=1)\n"
    shards = f"    net = FSDP(net, use_orig_params=True{arguments})\n"
    code = f"{PLAIN}def main(net, other, given, cfg):\n    {made}\n{{}}    {used}\n    optimizer.step()\n"
    found = lines(code.format(steps + shards))
    assert found == ([8] if is_said else [])
    assert not lines(code.format(shards + steps))
