"""Parameters that are chosen by the layers that hold them, which of FSDP1's flat ones none did."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP
from tests.source.samples import codes


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_TAKES = "xs.extend(m._parameters.values())\n"
_EACH = "for m in model.modules():\n"
_NORMS = f"{_EACH}    if isinstance(m, LayerNorm):\n"
MEGATRONS = """\
def groups(module):
    decay, rest = [], []
    for m in module.modules():
        if isinstance(m, LayerNorm):
            rest.extend([p for p in list(m._parameters.values()) if p is not None])
        else:
            decay.extend([p for n, p in list(m._parameters.items()) if p is not None and n != "bias"])
            rest.extend([p for n, p in list(m._parameters.items()) if p is not None and n == "bias"])
    return decay, rest
"""
CHOSEN = [
    f"{MEGATRONS}xs = groups(model)\n",
    f"{_NORMS}        xs.extend(m._parameters.values())\n",
    f"{_NORMS}        xs += list(m.parameters(recurse=False))\n",
    f"{_NORMS}        xs.append({{'params': m.parameters()}})\n",
    f"{_NORMS}        for p in m.parameters():\n            p.requires_grad = False\n",
    f"{_NORMS}        m.requires_grad_(False)\n",
    f"{_EACH}    (xs if isinstance(m, nn.LayerNorm) else ys).extend(m.parameters(recurse=False))\n",
    f"{_EACH}    if not isinstance(m, kinds):\n        continue\n    xs.extend(m._parameters.values())\n",
    f"{_EACH}    for p in m._parameters.values():\n        if type(m) in kinds:\n            xs.append(p)\n",
    f"{_EACH}    for n, p in m._parameters.items():\n        if n == 'bias':\n            xs.append(p)\n",
    f"{_EACH}    for n, p in m.named_parameters():\n        if 'bias' in n:\n            xs.append(p)\n",
    "xs = [p for m in model.modules() if isinstance(m, LayerNorm) for p in m.parameters()]\n",
    f"for n, m in model.module.named_modules():\n    if isinstance(m, Block):\n        {_TAKES}",
]
OTHERWISE = [
    # All of them, whatever holds them.
    f"{_EACH}    xs.extend(m.parameters(recurse=False))\n",
    f"{_EACH}    if isinstance(m, Dropout):\n        m.p = 0\n    xs.extend(m._parameters.values())\n",
    # Of a unit all that stands below was its flat parameter.
    f"{_EACH}    if isinstance(m, Block):\n        xs.extend(m.parameters())\n",
    f"{_EACH}    if isinstance(m, FSDP):\n        xs.extend(m._parameters.values())\n",
    # Nothing is chosen.
    f"{_NORMS}        print(sum(p.numel() for p in m.parameters()))\n",
    f"{_NORMS}        m.eval()\n",
    # Another model, and this one before it is sharded.
    f"{_NORMS.replace('model', 'net')}        xs.extend(m._parameters.values())\n",
]


@pytest.mark.parametrize("body", [*CHOSEN, *OTHERWISE])
def test_parameters_that_are_chosen_by_what_holds_them(body: str) -> None:
    found = [code for code, _ in codes(f"model = FSDP(net)\n{body}") if code == "FM318"]
    assert len(found) == (body in CHOSEN)
    assert "FM318" not in dict(codes(f"model = FSDP(net, use_orig_params=True)\n{body}"))
    summoned = body.replace("\n", "\n    ").rstrip(" ")
    within = f"model = FSDP(net)\nwith FSDP.summon_full_params(model):\n    {summoned}"
    assert "FM318" not in dict(codes(within)) or "def groups" in body


def test_what_the_run_alone_decides_is_said_with_that() -> None:
    made = "model = FSDP(net, use_orig_params=args.orig)\n"
    assert ("FM318", "commented") in codes(f"{made}{CHOSEN[1]}")


def test_a_function_of_another_file_is_given_the_model(tmp_path: Path) -> None:
    (tmp_path / "groups.py").write_text(f"from torch.nn import LayerNorm\n{MEGATRONS}")
    train = f"{FSDP}from groups import groups\nmodel = {{}}\nopt = AdamW(groups(model))\nmodel(x)\n"
    for made, count in (("FSDP(net)", 1), ("FSDP(net, use_orig_params=True)", 0), ("net", 0)):
        (tmp_path / "train.py").write_text(train.format(made))
        found = [use for use in scan_paths([tmp_path]).uses if use.code == "FM318"]
        assert [(use.path.endswith("groups.py"), use.line) for use in found] == [(True, 5)] * count


@pytest.mark.parametrize(("keeps", "counts"), [(False, [0, 1, 0, 0]), (True, [0, 0, 2, 2])])
def test_fsdp1s_flat_parameter_stands_in_its_unit_alone(counts: list[int], *, keeps: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(net, use_orig_params=keeps, device_id=torch.device("cpu"))
    end_process_group()
    held = [dict(each.named_parameters(recurse=False)) for each in model.modules()]
    assert [len(each) for each in held] == counts
    assert ("_flat_param" in held[1]) is not keeps
