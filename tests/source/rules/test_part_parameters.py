"""Parameters that are frozen, grouped or trained by the part they are in, which had none under FSDP1."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.runtime import end_process_group
from fsdp_migrate.source import scan_paths
from tests.source.samples import uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WRAP = "from torch.distributed.fsdp.wrap import *\nimport torch.nn as nn\nnet = Net()\nmodel = FSDP(net{})\n"
NET = """\
class Block(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(2, 2)
class Encoder(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(2)
class Net(nn.Module):
    def __init__(self):
        self.encoder, self.tower = Encoder(), nn.Sequential(Block(), Block())
        self.body = Encoder()
        self.stem = nn.Linear(2, 2)
        self.both = nn.Sequential(nn.Linear(2, 2), Block())
        self.side = nn.Sequential(Block(), Block())
        self.head = Other()
net = Net()
"""
_LOOP = "for p in model.head.parameters():\n    "
ACTS = [
    "opt = torch.optim.AdamW(model.head.parameters())\n",
    "opt = torch.optim.SGD([{'params': net.head.parameters()}, {'params': rest}])\n",
    "params = list(model.head.parameters()) + rest\nopt = torch.optim.SGD(params)\n",
    "opt.add_param_group(dict(params=model.head.parameters()))\n",
    "opt = build_optimizer(model.head.parameters())\n",
    "opt = torch.optim.SGD(p for p in model.head.parameters() if p.requires_grad)\n",
    "ids = {id(p) for p in model.head.parameters()}\nxs = [p for p in model.parameters() if id(p) in ids]\n",
    "heads = set(map(id, model.module.head.parameters()))\nrest = [p for p in ps if id(p) not in heads]\n",
    "groups = [{'params': m.parameters(), 'lr': 0.1 ** i} for i, m in enumerate(model.heads)]\n",
    "xs = []\nxs += model.head.parameters()\n",
    f"{_LOOP}p.requires_grad_(False)\n",
    f"{_LOOP}p.requires_grad = False\n",
    f"{_LOOP}p.grad.mul_(0.1)\n",
    f"{_LOOP}xs.append(p)\n",
    "for n, p in model.head.named_parameters():\n    p.requires_grad = False\n",
    "model.head.requires_grad_(False)\n",
    "model.get_input_embeddings().requires_grad_(False)\n",
    "head = model.head\nhead.requires_grad_(False)\n",
    "for m in (model.head, model.stem):\n    m.requires_grad_(False)\n",
    "for m in model.heads[:2]:\n    m.requires_grad_(False)\n",
    "freeze(model.head)\n",
    "model.head.freeze_all()\n",
    "def off(m):\n    for p in m.parameters():\n        p.requires_grad = False\noff(model.head)\n",
]
LEAVES = [
    "print(sum(p.numel() for p in model.head.parameters()))\n",
    "device = next(model.head.parameters()).device\n",
    "any(p.requires_grad for p in model.head.parameters())\n",
    "assert len(list(model.head.parameters())) == 2\n",
    # Of the whole nothing is left out.
    "opt = torch.optim.AdamW(model.module.parameters())\nmodel.requires_grad_(False)\n",
    # FSDP1 raised at what had been a parameter: "you can only change requires_grad flags of leaf variables".
    "model.head.weight.requires_grad_(False)\n",
    "with FSDP.summon_full_params(model):\n    model.head.requires_grad_(False)\n",
    "model.layers[0].set_requires_gradient_sync(False)\n",
    "def size(m):\n    return sum(p.numel() for p in m.parameters())\nsize(model.head)\n",
]
UNSURE = [", auto_wrap_policy=policy()", ", auto_wrap_policy=partial(size_based_auto_wrap_policy)"]


def said(body: str) -> list[str]:
    """Return what is said of parts of a model."""
    return [use.becomes for use in uses(body) if use.rule == "part-parameters"]


@pytest.mark.parametrize("body", [*ACTS, *LEAVES])
def test_parts_without_parameters(body: str) -> None:
    found = said(WRAP.format("") + body)
    assert len(found) == (body in ACTS)
    assert all("this part, which is no unit, had none of its own" in each for each in found)
    assert not said(WRAP.format(", use_orig_params=True") + body)
    assert not said(f"{body}{WRAP.format('')}")


@pytest.mark.parametrize("body", [each for each in ACTS if "heads" not in each])
def test_whether_a_part_is_a_unit_may_not_be_seen(body: str) -> None:
    for policy in UNSURE:
        (only,) = said(WRAP.format(policy) + body)
        assert "If this part is a unit itself, all is as before" in only
    assert not said(WRAP.format(", auto_wrap_policy=always_wrap_policy") + body)
    (at_run,) = said(WRAP.format(", use_orig_params=args.orig") + body)
    assert at_run.startswith("unless use_orig_params is true when this runs")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("tower", ""),  # all of it stands in units
        ("encoder.layers", ""),
        ("encoder.layers[0]", ""),
        ("side", ""),
        ("encoder.layers[0].fc", "is no unit"),
        ("stem", "is no unit"),
        ("body", "had none but those of units"),
        ("both", "had none but those of units"),
        ("head", "If this part is a unit"),
    ],
)
def test_units_are_seen_by_their_classes(part: str, words: str) -> None:
    net = NET.replace(
        "self.encoder, self.tower = Encoder(), ", "self.encoder = Encoder()\n        self.tower = "
    )
    partial = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
    for policy in ("ModuleWrapPolicy({Block})", partial):
        header, _, wrap = WRAP.partition("net = Net()\n")
        made = f"{header}{net}{wrap.format(f', auto_wrap_policy={policy}')}"
        found = said(f"{made}model.{part}.requires_grad_(False)\n")
        assert [words in each for each in found] == [True] * bool(words)
        assert all(("If this part" in each) is (part == "head") for each in found)


def test_parts_that_are_wrapped_by_hand_are_units() -> None:
    wraps = "net.body = FSDP(net.body)\nnet.all[0] = FSDP(net.all[0])\n"
    by_hand = WRAP.format("").replace("model =", f"{wraps}model =")
    for part, is_said in (("body", False), ("all[0]", False), ("head", True)):
        assert bool(said(f"{by_hand}model.{part}.requires_grad_(False)\n")) is is_said
    alone = "net.body = FSDP(net.body)\nnet.head.requires_grad_(False)\nnet.body.requires_grad_(False)\n"
    assert not said(alone)


def test_what_fsdp_ignores_keeps_its_own() -> None:
    for given in ("modules=[net.head]", "states=list(net.head.parameters())"):
        assert not said(WRAP.format(f", ignored_{given}") + ACTS[0])
    assert said(WRAP.format(", ignored_modules=[net.tail]") + ACTS[0])


def test_an_optimizer_of_nothing_stopped_and_a_freeze_is_in_no_checkpoint() -> None:
    (alone,) = said(WRAP.format("") + ACTS[0])
    assert "FSDP1 stopped at this optimizer, which got an empty list" in alone
    (group,) = said(WRAP.format("") + ACTS[1])
    assert "a checkpoint of FSDP1 has the old groups" in group
    assert "stopped" not in group
    (frozen,) = said(WRAP.format("") + "model.head.requires_grad_(False)\n")
    assert "groups" not in frozen


def test_a_part_that_was_taken_out_above_the_wrapping() -> None:
    for text, count in (("net.head", 1), ("other.head", 0)):
        wrapped = WRAP.format("").replace("model =", f"head = {text}\nmodel =")
        assert len(said(f"{wrapped}opt = torch.optim.SGD(head.parameters())\n")) == count


MODEL = f"""\
import torch.nn as nn
{NET}
class Shell(nn.Module):
    def __init__(self):
        self.embed, self.layers = nn.Linear(2, 2), []
        self.tail = Block()
    def freeze_embed(self):
        for p in self.embed.parameters():
            p.requires_grad = False
    def early(self):
        self.embed.requires_grad_(False)
"""
TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from model import Block, Shell
from groups import build
net = Shell()
net.early()
model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}))
model.freeze_embed()
opt = build(model)
model(x)
"""
BUILD = """\
import torch
def build(model):
    return torch.optim.AdamW(
        [{'params': model.tail.parameters()},
         {'params': model.head.parameters()}]
    )
"""


def test_methods_and_functions_of_other_files(tmp_path: Path) -> None:
    for names, count in (("", 1), (", use_orig_params=True", 0)):
        train = TRAIN.replace("{Block})", f"{{Block}}){names}")
        for name, text in (("model", MODEL), ("groups", BUILD), ("train", train)):
            (tmp_path / f"{name}.py").write_text(text)
        found = [use for use in scan_paths([tmp_path]).uses if use.rule == "part-parameters"]
        texts = [(use.path.rpartition("/")[2], use.text) for use in found]
        assert (
            texts
            == [
                ("groups.py", "model.head.parameters()"),
                ("model.py", "self.embed.parameters()"),
            ]
            * count
        )


def test_what_accelerate_shards_has_its_own_parameters_by_default(tmp_path: Path) -> None:
    train = (
        "from accelerate import Accelerator\nfrom model import Shell\nnet = Shell()\nacc = Accelerator()\n"
    )
    train += "model, opt = acc.prepare(net, AdamW(net.parameters()))\nmodel.freeze_embed()\n"
    (tmp_path / "train.py").write_text(f"{train}model.head.requires_grad_(False)\nmodel(x)\n")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "fsdp.yaml").write_text(
        "distributed_type: FSDP\nfsdp_config:\n  fsdp_use_orig_params: true\n"
    )
    assert not [use for use in scan_paths([tmp_path]).uses if use.rule == "part-parameters"]


@pytest.mark.parametrize("keeps", [False, True])
def test_fsdp1_gave_parts_the_parameters_of_units_alone(*, keeps: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    unit = torch.nn.Sequential(torch.nn.Linear(2, 2))
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), unit, torch.nn.Sequential(unit, torch.nn.LayerNorm(2)))
    policy = ModuleWrapPolicy({torch.nn.Sequential})
    policy = policy if keeps else ModuleWrapPolicy([torch.nn.LayerNorm])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(
            net, auto_wrap_policy=policy, use_orig_params=keeps, device_id=torch.device("cpu")
        )
    end_process_group()
    assert [len(list(each.parameters())) for each in net] == ([2, 2, 4] if keeps else [0, 0, 1])
    model[0].requires_grad_(requires_grad=False)
    assert all(each.requires_grad for each in model.parameters()) is not keeps
    if not keeps:
        with pytest.raises(ValueError, match="optimizer got an empty parameter list"):
            torch.optim.SGD(model[0].parameters())


def test_parts_that_fabric_shards_have_their_own_parameters(tmp_path: Path) -> None:
    """Fabric asks for use_orig_params itself."""
    (tmp_path / "parts.py").write_text(
        "import torch\n\n\n"
        "def setup(fabric, net):\n    model = Parts(net)\n    model.unet = fabric.setup(model.unet)\n"
        "    groups = [{'params': model.unet.parameters()}]\n"
        "    groups.append({'params': model.text.parameters()})\n    optimizer = torch.optim.AdamW(groups)\n"
        "    model.text = fabric.setup(model.text)\n    return model, optimizer\n\n\n"
        "class Parts(torch.nn.Module):\n    def __init__(self, net):\n        self.unet = net\n"
        "        self.text = net.text\n\n    def save(self):\n        return self.text.state_dict()\n"
    )
    (tmp_path / "main.py").write_text(
        "from lightning.fabric import Fabric\nfrom lightning.fabric.strategies import FSDPStrategy\n"
        "from parts import setup\n\nsetup(Fabric(strategy=FSDPStrategy()), net)\n"
    )
    found = {use.code for use in scan_paths([tmp_path]).uses}
    assert "FM333" in found, "the parts are sharded"
    assert "FM318" not in found
