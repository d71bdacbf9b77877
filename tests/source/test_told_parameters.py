"""Parameters of a sharded model that other files give or keep, and what optimizers hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

HEADERS = {
    "accelerate": (
        "import torch\nfrom accelerate import Accelerator, FullyShardedDataParallelPlugin\n"
        "from parts import {}\n"
        "accelerator = Accelerator(fsdp_plugin=FullyShardedDataParallelPlugin())\n"
    ),
    "torch": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom parts import {}\n",
}
SHARDS = {
    "accelerate": "    net, opt = accelerator.prepare(net, opt)\n",
    "torch": "    net = FSDP(net)\n",
}
LOOP = (
    "def pick(model):\n    found = []\n    base = getattr(model, 'base', model)\n"
    "    for name, p in base.named_parameters():\n        if 'head' in name:\n            found.append(p)\n"
    "    return found\n"
)
TWO = (
    "def pick(cfg, model):\n    decay, rest = [], []\n    for n, p in model.named_parameters():\n"
    "        (decay if p.ndim > 1 else rest).append(p)\n    return decay, rest\n"
)
OF_ITSELF = "class pick:\n    def parts(self):\n        return {n: p for n, p in self.named_parameters()}\n"
BUILDS = "def pick(cfg):\n    net = make()\n    kept = list(net.parameters())\n    return net, kept\n"
KEEPS = (
    "class Pick:\n    def __init__(self, decay, model):\n"
    "        self.named = dict(model.named_parameters())\n"
    "    def log(self):\n        return [p.grad for p in self.named.values()]\n"
)
CLIPS = "    clip_grad_norm_(kept, 1.0)\n"


def is_said(folder: Path, parts: str, made: str, used: str, by: str) -> bool:
    name = "Pick" if "class Pick" in parts else "pick"
    (folder / "parts.py").write_text(parts)
    main = f"def main(net, opt):\n{made}{SHARDS[by]}{used}"
    (folder / "run.py").write_text(HEADERS[by].format(name) + main)
    found = {use.code for use in scan_paths([folder]).uses if use.path.endswith("run.py")}
    return "FM446" in found


@pytest.mark.parametrize("by", ["accelerate", "torch"])
@pytest.mark.parametrize(
    ("parts", "made", "used", "expected"),
    [
        (LOOP, "    kept = pick(net)\n", CLIPS, True),
        (LOOP, "    kept = list(pick(net.tower))\n", CLIPS, True),
        (f"{LOOP}def more(m):\n    return pick(m)\n", "    kept = pick(net)\n", CLIPS, True),
        (LOOP, "    kept = pick(other)\n", CLIPS, False),
        (LOOP, "    kept = pick(net)\n", "", False),
        (LOOP.replace("append(p)", "append(p.numel())"), "    kept = pick(net)\n", CLIPS, False),
        (TWO, "    kept, rest = pick(1, net)\n", CLIPS, True),
        (TWO, "    kept, rest = pick(cfg=1, model=net)\n", CLIPS, True),
        (
            OF_ITSELF,
            "    net = pick()\n    kept = net.parts()\n",
            "    clip_grad_norm_(kept.values())\n",
            True,
        ),
        (BUILDS, "    net, kept = pick(1)\n", CLIPS, True),
        (BUILDS.replace("net.parameters()", "net.buffers()"), "    net, kept = pick(1)\n", CLIPS, False),
        (KEEPS, "    log = Pick(0.9, net)\n", "    log.log()\n", True),
        (KEEPS, "    log = Pick(model=other, decay=net)\n", "    log.log()\n", False),
        # Copies by name, and a model that is asked again each time.
        (
            KEEPS.replace("dict(model.named_parameters())", "model"),
            "    log = Pick(0, net)\n",
            "    log.log()\n",
            False,
        ),
        (
            KEEPS.replace(
                "dict(model.named_parameters())", "{n: p.clone() for n, p in model.named_parameters()}"
            ),
            "    log = Pick(0, net)\n",
            "    log.log()\n",
            False,
        ),
    ],
)
def test_what_other_files_give_and_keep(
    tmp_path: Path, parts: str, made: str, used: str, by: str, *, expected: bool
) -> None:
    assert is_said(tmp_path, parts, made, used, by) is expected


def test_a_list_of_another_file_where_fsdp1s_functions_show_the_model(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(LOOP)
    run = (
        "from accelerate import Accelerator\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from parts import pick\n\n\nclass Run:\n    def setup(self, make):\n"
        "        self.accelerator = Accelerator()\n        self.net = make()\n"
        "        self.kept = pick(self.net)\n"
        "        self.net, self.o = self.accelerator.prepare(self.net, AdamW(self.kept))\n"
        "    def step(self):\n        self.accelerator.clip_grad_norm_(self.kept, 1.0)\n    def save(self):\n"
        "        with FSDP.state_dict_type(self.net, 1):\n            return self.net.state_dict()\n"
    )
    (tmp_path / "run.py").write_text(run)
    assert "FM446" in {use.code for use in scan_paths([tmp_path]).uses}
    (tmp_path / "run.py").write_text(run.replace("pick(self.net)", "pick(self.other)"))
    assert "FM446" not in {use.code for use in scan_paths([tmp_path]).uses}


RUNS = (
    "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "class Loop:\n    def __init__(self, model, optimizer):\n        self.model = {}\n"
    "        self.optimizer = optimizer\n        self.scaler = torch.amp.GradScaler('cuda')\n"
    "    def step(self, x):\n        self.scaler.scale(self.model(x).sum()).backward()\n"
    "        self.scaler.unscale_(self.optimizer)\n        self.scaler.step(self.optimizer)\n\n\n"
    "def main(net, x):\n    model = {}\n    optimizer = torch.optim.AdamW(model.parameters())\n"
    "    Loop(model, optimizer).step(x)\n"
)


@pytest.mark.parametrize(
    ("kept", "made", "expected"), [("model", "FSDP(net)", False), ("FSDP(model)", "net", True)]
)
def test_an_optimizer_that_comes_with_a_model_which_is_sharded_already(
    tmp_path: Path, kept: str, made: str, *, expected: bool
) -> None:
    (tmp_path / "train.py").write_text(RUNS.format(kept, made))
    assert ("FM446" in {use.code for use in scan_paths([tmp_path]).uses}) is expected


LISTS = (
    "class Pick:\n    def __init__(self, net, opt, params):\n        self.net, self.opt = net, opt\n"
    "        self.net = net\n        self.params = list(params)\n        self.shard()\n"
    "    def shard(self):\n        self.net, self.opt = accelerator.prepare(self.net, self.opt)\n"
    "    def step(self):\n        {}\n"
)
TAKES = "accelerator.clip_grad_norm_(self.params, 1.0)"
ASKED = "    params = [p for p in net.parameters() if p.requires_grad]\n"


@pytest.mark.parametrize(
    ("takes", "made", "expected"),
    [
        (TAKES, f"{ASKED}    loop = Pick(net, 1, params)\n", True),
        (TAKES, "    loop = Pick(net, 1, params=list(net.parameters()))\n", True),
        (TAKES, f"{ASKED}    loop = Pick(other, 1, params)\n", False),
        ("print(len(self.params))", f"{ASKED}    loop = Pick(net, 1, params)\n", False),
    ],
)
def test_a_list_that_is_handed_to_what_shards(
    tmp_path: Path, takes: str, made: str, *, expected: bool
) -> None:
    trainer = HEADERS["accelerate"].replace("from parts import {}\n", "") + LISTS.format(takes)
    (tmp_path / "parts.py").write_text(trainer)
    (tmp_path / "run.py").write_text(f"from parts import Pick\n\n\ndef main(net):\n{made}    loop.step()\n")
    found = {use.code for use in scan_paths([tmp_path]).uses if use.path.endswith("run.py")}
    assert ("FM446" in found) is expected


@pytest.mark.parametrize(("given", "expected"), [("net", True), ("net, wrap=False", False)])
def test_a_backend_that_is_told_not_to_wrap(tmp_path: Path, given: str, *, expected: bool) -> None:
    backend = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\nclass Backend:\n"
        "    def prepare_model(self, model, wrap=True):\n        if wrap:\n            model = FSDP(model)\n"
        "        self.model = model\n        return model\n"
    )
    run = (
        "from backend import Backend\nfrom parts import Pick\n\n\ndef main(net):\n"
        "    log = Pick(0, net.head)\n"
        f"    backend = Backend()\n    backend.prepare_model({given})\n    log.log()\n"
    )
    for name, text in {"backend.py": backend, "parts.py": KEEPS, "run.py": run}.items():
        (tmp_path / name).write_text(text)
    assert ("FM446" in {use.code for use in scan_paths([tmp_path]).uses}) is expected


AVERAGE = (
    "class Average:\n    def reset(self, model):\n        self.kept = list(model.parameters())\n"
    "    def names(self, model):\n        self.known = [n for n, p in model.named_parameters()]\n"
    "    def update(self):\n        for p in self.kept:\n            p.mul_(2)\n        print(self.known)\n"
)
IMPORTS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom ema import Average\n"


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("b = Average()\n    b.reset(net)\n    net = FSDP(net)\n    b.update()\n", True),
        ("b = Average()\n    net = FSDP(net)\n    b.reset(net)\n    b.update()\n", False),
        ("b = Average()\n    b.names(net)\n    net = FSDP(net)\n    b.update()\n", False),
        ("b = Average()\n    b.reset(net)\n    net = FSDP(net)\n    b.reset(net)\n    b.update()\n", False),
        ("b = Average()\n    b.reset(other)\n    net = FSDP(net)\n    b.update()\n", False),
        ("b = Average()\n    b.reset(net)\n    net = FSDP(net)\n    return net\n", False),
        ("b = Average()\n    b.reset(net)\n    net = acc.prepare(net)\n    b.update()\n", False),
    ],
)
def test_what_an_object_keeps_by_a_method_of_its_own(tmp_path: Path, does: str, *, is_said: bool) -> None:
    """Only what a constructor is given was looked at."""
    (tmp_path / "ema.py").write_text(AVERAGE)
    (tmp_path / "train.py").write_text(f"{IMPORTS}def main(net, other, acc):\n    {does}")
    found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM446"]
    assert [use.text for use in found] == (["b.reset(net)"] if is_said else [])


LIB = """\
import functools
import torch

def listed(model):
    return [p for p in model.parameters() if p.requires_grad]

def one_by_one(model):
    for p in model.parameters():
        if p.requires_grad:
            yield p

def named(model):
    return {n: p for n, p in model.named_parameters()}

def split(model):
    decay, rest = [], []
    for n, p in model.named_parameters():
        (rest if "bias" in n else decay).append(p)
    return decay, rest

class Keeper:
    def __init__(self, model):
        self.model = model

    def get(self):
        return [p for p in self.model.parameters() if p.requires_grad]

class Net(torch.nn.Module):
    def trainable(self):
        return [p for p in self.parameters() if p.requires_grad]

def make(model, lr):
    return torch.optim.AdamW(model.parameters(), lr=lr)
"""
MAIN = (
    f"{FSDP}import torch\nfrom lib import Keeper, Net, listed, make, named, one_by_one, split\n\n"
    "def main(net, cfg, kept):\n    model = {}\n    {}\n    {}  # here\n"
)
TAKEN = [
    ("pass", "for p in listed(model): n = p.grad.norm() ** 2"),
    ("pass", "for p in one_by_one(model): n = p.grad.norm() ** 2"),
    ("held = named(model)", "for p in held.values(): n = p.grad.norm() ** 2"),
    ("decay, rest = split(model)", "for p in rest: n = p.grad.norm() ** 2"),
    ("keeper = Keeper(model)", "for p in keeper.get(): n = p.grad.norm() ** 2"),
    ("pass", "for p in model.trainable(): n = p.grad.norm() ** 2"),
    ("own = list(model.a.parameters()) + list(model.b.parameters())", "n = [p.grad.norm() for p in own]"),
    ("own = [*model.a.parameters(), *model.b.parameters()]", "n = [p.grad.norm() for p in own]"),
    ("pass", "for p in [model.a.weight, model.b.weight]: n = p.grad.norm() ** 2"),
    ("pass", "torch.nn.utils.clip_grad_norm_([model.a.weight], 1.0)"),
    ("pass", "n = list(map(lambda p: p.grad.norm() ** 2, model.parameters()))"),
    ("pass", "p = max(model.parameters(), key=lambda p: p.grad.norm())"),
    ("own = next(model.parameters())", "torch.nn.utils.clip_grad_norm_(own, 1.0)"),
]


def _said(folder: Path, body: tuple[str, str], model: str) -> bool:
    main = MAIN.format(model, *body)
    (folder / "lib.py").write_text(LIB)
    (folder / "main.py").write_text(main)
    line = next(number for number, text in enumerate(main.split("\n"), 1) if "# here" in text)
    files = {file.path: file for file in scan_paths([folder]).files}
    file = files.get(str(folder / "main.py"))
    return file is not None and any(use.line == line and use.action == "commented" for use in file.uses)


@pytest.mark.parametrize("body", TAKEN)
def test_parameters_are_a_sharded_models_however_they_are_taken(
    tmp_path: Path, body: tuple[str, str]
) -> None:
    assert _said(tmp_path, body, "FSDP(Net())")


@pytest.mark.parametrize("body", TAKEN)
def test_a_plain_models_parameters_are_plain(tmp_path: Path, body: tuple[str, str]) -> None:
    assert not _said(tmp_path, body, "Net()\n    other = FSDP(net)")


OPTIMIZERS = [
    "opt = getattr(torch.optim, cfg.name)(model.parameters(), lr=0.1)",
    "pick = torch.optim.SGD if cfg.sgd else torch.optim.AdamW\n    opt = pick(model.parameters(), lr=0.1)",
    "opt = instantiate(cfg.optimizer, params=model.parameters())",
    "opt = model.configure_optimizers(0.1)",
    "opt = create_optimizer_v2(model, opt='lamb')",
    "opt = make(model, 0.1)",
]


@pytest.mark.parametrize("made", OPTIMIZERS)
@pytest.mark.parametrize(
    "use",
    [
        "n = opt.state[kept]['exp_avg'].norm() ** 2",
        "n = [p.grad.norm() for group in opt.param_groups for p in group['params']]",
    ],
)
def test_an_optimizer_of_a_sharded_model_holds_dtensors_whatever_makes_it(
    tmp_path: Path, made: str, use: str
) -> None:
    assert _said(tmp_path, (made, use), "FSDP(Net())")
    assert not _said(tmp_path, (made, use), "Net()\n    other = FSDP(net)")


@pytest.mark.parametrize(
    "use", ["torch.save(opt.state_dict(), cfg.path)", "opt.load_state_dict(torch.load(cfg.path))"]
)
@pytest.mark.parametrize("made", OPTIMIZERS)
def test_its_state_is_one_ranks_part(tmp_path: Path, made: str, use: str) -> None:
    assert _said(tmp_path, (made, use), "FSDP(Net())")
    assert not _said(tmp_path, (made, use), "Net()\n    other = FSDP(net)")
