"""Switches that decide on the wrapping, where a function of another file is given the model."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP, WRAP, after


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_OPTIM = (
    "import torch\ndef build_optimizer(model):\n    decay = [p for p in model.parameters() if p.dim() == 2]\n"
    "    return torch.optim.AdamW(decay)\n"
)
_USES = (
    "import torch.distributed as dist\ndef share(m):\n    for p in m.parameters():\n"
    "        dist.broadcast(p.data, 0)\n"
)
_START = "from dist_wrap import wrap\nfrom optim import *\ndef build(on, args, net, xs):\n"
_ELSE = "else:\n    raw = net\n"


def _main(body: str) -> str:
    return _START + textwrap.indent(f"{body}\n", "    ")


def _given(folder: Path, body: str, text: str = _USES) -> str:
    return after(folder, {"dist_wrap.py": WRAP, "optim.py": text, "main.py": _main(body)}, "optim.py")


_OFF = [
    f"if on:\n    raw = wrap(net)\n{_ELSE}    share(raw)",
    f"plain = ready() and not on\nif on and ready():\n    raw = wrap(net)\n{_ELSE}if plain:\n    share(raw)",
    "if args.x == 'fsdp':\n    net = wrap(net)\nfor x in xs:\n    if args.x != 'fsdp':\n        share(net)",
    "if args.x == 'fsdp':\n    net = wrap(net)\nif args.x == 'ddp':\n    share(net)",
    "raw = wrap(net) if on else net\nif not on:\n    share(raw)",
    "if on:\n    net = wrap(net)\n    return net\nshare(net)",
]
_ON = [
    f"if on:\n    raw = wrap(net)\n{_ELSE}share(raw)",
    f"plain = ready() or not on\nif on and ready():\n    raw = wrap(net)\n{_ELSE}if plain:\n    share(raw)",
    f"plain = not on\non = args.on\nif on:\n    raw = wrap(net)\n{_ELSE}if plain:\n    share(raw)",
    "for x in xs:\n    if x():\n        net = wrap(net)\n    else:\n        share(net)",
    "if args.x == 'fsdp':\n    net = wrap(net)\nargs.x = 'ddp'\nif args.x == 'ddp':\n    share(net)",
    "if args.x() == 'fsdp':\n    net = wrap(net)\nif args.x() == 'ddp':\n    share(net)",
    "if on:\n    net = wrap(net)\nif not args.on:\n    share(net)",
    "if on:\n    net = wrap(net)\n    args.done()\nshare(net)",
    "if on:\n    net = wrap(net)\nelse:\n    net = wrap(net)\n    share(net)",
]


@pytest.mark.parametrize("body", _OFF)
def test_what_is_given_only_without_the_wrapping_is_plain(tmp_path: Path, body: str) -> None:
    assert "fsdp-migrate" not in _given(tmp_path, body)


@pytest.mark.parametrize("body", _ON)
def test_what_may_be_given_with_it_is_sharded(tmp_path: Path, body: str) -> None:
    assert "FM423" in _given(tmp_path, body)


@pytest.mark.parametrize("gives", ["raw = {}\n    optimizer = build_optimizer(raw)", "raw = {}"])
def test_shapes_are_whole_above_the_wrapping_and_without_it(tmp_path: Path, gives: str) -> None:
    above = "optimizer = build_optimizer(net)\n    raw = wrap(net)"
    body = f"if on:\n    {above}\nelse:\n    {gives.format('net')}"
    assert "fsdp-migrate" not in _given(tmp_path, body, _OPTIM)
    assert "FM318" in _given(tmp_path, f"raw = wrap(net)\nbuild_optimizer(raw)\n{body}", _OPTIM)


def test_an_optimizer_that_is_made_above_the_wrapping_steps_the_sharded_model(tmp_path: Path) -> None:
    own = (
        "import torch\nclass Muon(torch.optim.Optimizer):\n    def step(self):\n"
        "        for p in self.params:\n            p.add_(torch.linalg.qr(p.grad)[0])\n"
        "def build_optimizer(model):\n    return Muon(model.parameters())\n"
    )
    body = (
        "if on:\n    optimizer = build_optimizer(net)\n    raw = wrap(net)\nelse:\n    raw = Net(net)\n"
        "    optimizer = build_optimizer(raw)"
    )
    assert "FM445" in _given(tmp_path, body, own)
    assert "FM445" not in _given(tmp_path, "optimizer = build_optimizer(net)", own)


@pytest.mark.parametrize(("switch", "is_off"), [("self.on", True), ("on", False), ("self.step == 0", False)])
def test_what_an_object_keeps_is_there_when_its_method_runs_again(
    tmp_path: Path, switch: str, *, is_off: bool
) -> None:
    main = (
        f"{_START.partition('def build')[0]}class Run:\n    def step(self, on):\n        if {switch}:\n"
        "            self.net = wrap(self.net)\n        else:\n            share(self.net)\n"
        "        self.step += 1\n"
    )
    text = after(tmp_path, {"dist_wrap.py": WRAP, "optim.py": _USES, "main.py": main}, "optim.py")
    assert ("FM423" not in text) is is_off


_SAVERS = "import torch\n\ndef save(opt, path):\n    torch.save(opt.state_dict(), path)\n"
_MAIN = f"""\
import torch
import savers
{FSDP}
def main(net, mode):
    use_fsdp = mode == 'fsdp'
    model = FSDP(net) if use_fsdp else DDP(net)
    taken = model if use_fsdp else model.module
    opt = torch.optim.AdamW(taken.parameters())
    {{}}
"""


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("if use_fsdp:\n        pass\n    else:\n        savers.save(opt, 'x')", False),
        ("if not use_fsdp:\n        savers.save(opt, 'x')", False),
        ("if use_fsdp:\n        return\n    savers.save(opt, 'x')", False),
        ("if use_fsdp:\n        savers.save(opt, 'x')", True),
        ("savers.save(opt, 'x')", True),
        ("if use_fsdp and mode:\n        pass\n    else:\n        savers.save(opt, 'x')", True),
        ("if not use_fsdp:\n        savers.save(opt, 'x')\n    savers.save(opt, 'y')", True),
    ],
)
def test_a_helper_that_is_called_without_fsdp_alone(use: str, tmp_path: Path, *, is_said: bool) -> None:
    """mohame54/Dit saves optimizers so: one file for each of both."""
    (tmp_path / "savers.py").write_text(_SAVERS)
    (tmp_path / "main.py").write_text(_MAIN.format(use))
    files = {each.path: each.uses for each in scan_paths([tmp_path]).files}
    assert bool(files.get(str(tmp_path / "savers.py"))) is is_said


@pytest.mark.parametrize(("given", "is_said"), [("model", True), ("net", False)])
def test_parameters_of_another_callers_model(given: str, tmp_path: Path, *, is_said: bool) -> None:
    """Groups that a function makes of a model are sharded where that is, and no others."""
    (tmp_path / "savers.py").write_text(_SAVERS)
    (tmp_path / "parts.py").write_text(
        "def groups(m):\n    return [{'params': [p for p in m.parameters() if p.ndim > 1]}]\n"
    )
    (tmp_path / "main.py").write_text(_MAIN.format("import parts; return parts.groups(model)"))
    (tmp_path / "single.py").write_text(
        f"import torch\nimport parts\nimport savers\n{FSDP if is_said else ''}\n\ndef main(net):\n"
        f"    {'model = FSDP(net)' if is_said else 'net = net.cuda()'}\n"
        f"    opt = torch.optim.AdamW(parts.groups({given}))\n    savers.save(opt, 'x')\n"
    )
    uses = [use for each in scan_paths([tmp_path]).files for use in each.uses]
    assert any(use.code == "FM425" for use in uses) is is_said


_WRAPPER = (
    f"import copy\nimport torch.nn as nn\n{FSDP}\n\nclass Attn(nn.Module): pass\n\n\n"
    "class Warper(nn.Module):\n"
    "    def __init__(self, module):\n        super().__init__()\n        self.module = module\n"
    "        self.spare = copy.deepcopy(self.module)\n"
    "        self.module.q.weight = nn.Parameter(self.module.q.weight.chunk(2)[0])\n"
    "        self.wrap('o', self.module.o)\n\n"
    "    def wrap(self, name, module):\n        module = FSDP(module)\n"
    "        setattr(self.module, name, module)\n\n\n"
)
_VISIT = (
    "def visit(parent):\n    for name, module in parent.named_children():\n        {}:\n"
    "            module = {}(module)\n        else:\n            module = {}(module)\n"
    "        setattr(parent, name, module)\n"
)
_ASKS = "if isinstance(module, Attn)"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (_VISIT.format(_ASKS, "Warper", "FSDP"), False),
        (_VISIT.format("if name == 'attn'", "FSDP", "Warper"), False),
        (_VISIT.format(_ASKS, "Warper", "FSDP").replace("else", "if name == 'mlp'"), False),
        # What is sharded in the same round comes to the class, and what a loop does not bind anew.
        (_VISIT.format(_ASKS, "FSDP", "Warper").replace("        else:\n    ", ""), True),
        (_VISIT.format(_ASKS, "Warper", "FSDP").replace("for name, module in", "for name, _ in"), True),
        (
            (
                "def visit(parent):\n    for module in parent.children():\n        for i in range(2):\n"
                "            if i:\n                Warper(module)\n            else:\n"
                "                module = FSDP(module)\n"
            ),
            True,
        ),
        (
            (
                "def visit(parent):\n    while parent:\n        if parent.x:\n            Warper(parent)\n"
                "        else:\n            parent = FSDP(parent)\n"
            ),
            True,
        ),
    ],
)
def test_a_name_that_each_round_of_a_loop_binds(tmp_path: Path, body: str, *, is_said: bool) -> None:
    (tmp_path / "a.py").write_text(_WRAPPER + body)
    found = {use.code for use in scan_paths([tmp_path]).uses}
    assert (not found.isdisjoint({"FM323", "FM423"})) is is_said
