"""Plain tensors and names of a model before it is sharded, or of its full state, beside the sharded one's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from fsdp_migrate.source.plain_copies import COPIES
from tests.source.projects import FSDP
from tests.source.samples import IMPORTS, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

_WRAP = "model = FSDP(net, use_orig_params=True)\n"
_STEP = "for n, p in model.named_parameters():\n    {}\n"
_LIKE = "kept = {n: torch.ones_like(p) for n, p in net.named_parameters()}\n"
_FILLED = "kept = {}\nfor n, p in net.named_parameters():\n    kept[n] = p.detach().clone()\n"
_LISTED = "kept = []\nfor p in net.parameters():\n    kept.append(p.detach().clone())\n"
_ADDED = "kept = set()\nfor n, _ in net.named_parameters():\n    kept.add(n)\n"
_PULL = "def pull(model, kept):\n    for n, p in model.named_parameters():\n        p.data.add_(kept[n])\n\n"
_EMPTY = "g = [torch.zeros_like(p) for p in model.parameters()]\n"
_STATE = "kept = {k: v.detach().clone().cpu() for k, v in model.state_dict().items()}\n"


def _said(body: str) -> tuple[bool, bool]:
    """Return whether the tensors are said to meet, and whether the names are."""
    found = uses(body)
    names = any(use.code == "FM318" and "before sharding" in use.becomes for use in found)
    return any(use.becomes == COPIES for use in found), names


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (_LIKE, _STEP.format("p.grad.mul_(kept[n])")),
        (_LIKE, _STEP.format("p.grad *= kept[n]")),
        (_LIKE, _STEP.format("p.grad.masked_fill_(kept[n] == 0, 0.0)")),
        (_LIKE, _STEP.format("p.data = torch.where(kept[n] > 0, p, 0)")),
        (_LIKE, _STEP.format("p.grad.mul_(kept.get(n))")),
        (_LIKE, _STEP.format("total = (p.detach() - kept[n]).abs().sum().item()")),
        (_LIKE, _STEP.format("moved = p != kept[n]")),
        (_FILLED, _STEP.format("p.data.add_(kept[n], alpha=0.1)")),
        (
            "kept = [p.clone() for p in net.parameters()]\n",
            "d = [p - q for p, q in zip(model.parameters(), kept)]\n",
        ),
        (_LISTED, "for i, p in enumerate(model.parameters()):\n    p.grad.add_(kept[i])\n"),
        ("kept = copy.deepcopy(net.state_dict())\n", _STEP.format("p.data.lerp_(kept[n], 0.5)")),
        ("kept = dict(net.named_parameters())\n", _STEP.format("p.grad.add_(p - kept[n])")),
        (
            f"{_PULL}{_LIKE}",
            "pull(model, kept)\n",
        ),
    ],
)
def test_copies_of_the_plain_model(before: str, after: str) -> None:
    assert _said(f"{before}{_WRAP}{after}")[0]
    # Copies of the sharded model's own parameters are DTensors as well.
    assert not _said(f"{_WRAP}{before.replace('net.', 'model.').replace('.state_dict()', '')}{after}")[0]


@pytest.mark.parametrize(
    ("after", "is_said"),
    [
        (_STEP.format("d = p - kept[n]"), True),
        ("for p, q in zip(model.parameters(), kept.values()):\n    d = (p.cpu() - q).norm().item()\n", True),
        (
            f"{_EMPTY}for a, b in zip(g, kept.values()):\n    a.copy_(b)\n",
            True,
        ),
        # Both are plain, or both whole.
        ("now = model.state_dict()\nd = [now[k] - v for k, v in kept.items()]\n", False),
        (
            f"{_EMPTY}for a, b, c in zip(g, kept.values(), kept.values()):\n    d = b - c\n",
            False,
        ),
        (_STEP.format("d = p.full_tensor() - kept[n]"), False),
        (_STEP.format("d = p - other[n]"), False),
        ("for k in kept:\n    print(k)\n", False),
    ],
)
def test_full_states(after: str, is_said: bool) -> None:
    assert _said(f"{_WRAP}{_STATE}{after}")[0] is is_said
    sharded = "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
    assert not _said(f"{_WRAP}{sharded}{_STATE}{after}")[0]


@pytest.mark.parametrize(
    ("before", "after", "is_said"),
    [
        (_LIKE, _STEP.format("if n in kept:\n        p.grad.zero_()"), True),
        (_LIKE, _STEP.format("if n not in kept:\n        p.grad = None"), True),
        (
            "kept = [n for n, p in net.named_parameters()]\n",
            _STEP.format("if n in kept:\n        xs.append(p)"),
            True,
        ),
        ("kept = set(net.state_dict().keys())\n", _STEP.format("if n in kept:\n        p.data *= 2"), True),
        (
            "kept = get_parameter_names(net, [])\n",
            "xs = [p for n, p in model.named_parameters() if n in kept]\n",
            True,
        ),
        (_ADDED, "xs = [p for n, p in model.named_parameters() if n in kept]\n", True),
        (_LISTED, _STEP.format("if n in kept:\n        p.grad.zero_()"), False),
        (_LIKE, _STEP.format("if n in kept:\n        print(p)"), False),
        (
            _LIKE,
            _STEP.format(
                "m = n.replace('_fsdp_wrapped_module.', '')\n    if m in kept:\n        p.grad = None"
            ),
            False,
        ),
        (
            _LIKE,
            "for n, p in model.module.named_parameters():\n    if n in kept:\n        p.grad = None\n",
            False,
        ),
    ],
)
def test_names_from_before(before: str, after: str, is_said: bool) -> None:
    assert _said(f"{before}{_WRAP}{after}")[1] is is_said
    assert not _said(f"{_WRAP}{before.replace('net', 'model')}{after}")[1] or "state_dict" in before


TRAINER = """
import torch
from transformers import AutoModel, Trainer, TrainingArguments

class Masked(Trainer):
    def __init__(self, *args, masks=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.masks = masks

    def training_step(self, model, inputs, num_items_in_batch=None):
        for n, p in model.named_parameters():
            if n in self.masks:
                p.grad.mul_(self.masks[n])

def main(other):
    net = AutoModel.from_pretrained("m")
    args = TrainingArguments(output_dir="x", fsdp="full_shard")
    masks = {n: torch.ones_like(p) for n, p in net.named_parameters()}
    trainer = Masked(model=net, args=args, masks=masks)
    trainer.train()
"""


@pytest.mark.parametrize("model", ["net", "other"])
def test_what_a_trainer_is_given(tmp_path: Path, model: str) -> None:
    (tmp_path / "train.py").write_text(TRAINER.replace("in net.", f"in {model}."))
    found = [use for use in scan_paths([tmp_path]).uses if use.code in {"FM318", "FM423"}]
    assert [use.line for use in found] == ([12, 13] if model == "net" else [])


OF_A_FILE = """\
def read(path):
    return torch.load(path)


def put(t, v):
    t.copy_(v)


def fill(params, values):
    for p, q in zip(params, values):
        p.copy_(q)


def fill_others(others, values):
    for p, q in zip(others, values):
        p.copy_(q)


def main(net, path):
    m = FSDP(net)
    mean = [torch.zeros_like(p) for p in m.parameters()]
    saved = torch.load(path)
    {}
"""


@pytest.mark.parametrize(
    ("use", "is_said"),
    [
        ("for p, q in zip(m.parameters(), saved['weights']):\n        p.copy_(q)", True),
        ("for a, q in zip(mean, torch.load(path)['mean']):\n        a.copy_(q)", True),
        ("for n, p in m.named_parameters():\n        p.data.copy_(saved['w'][n])", True),
        ("for p, q in zip(m.parameters(), saved):\n        p.data.copy_(q)", True),
        ("for p, q in zip(m.parameters(), torch.load(path)):\n        p.copy_(q)", True),
        ("for p, q in zip(m.parameters(), torch.load(path)):\n        put(p, q)", True),
        ("for p, q in zip(m.parameters(), read(path)):\n        p.copy_(q)", True),
        ("for p, q in zip(m.parameters(), read(path)['w']):\n        put(p, q)", True),
        ("ps = dict(m.named_parameters())\n    for n, v in saved.items():\n        ps[n].copy_(v)", True),
        ("fill(list(m.parameters()), torch.load(path))", True),
        ("def hook():\n        for a, q in zip(mean, torch.load(path)):\n            a.copy_(q)", True),
        ("fill_others(net2.parameters(), torch.load(path))", False),
        ("for p, q in zip(m.parameters(), torch.load(path)):\n        y = p + 1", False),
        ("for p, n in zip(m.parameters(), torch.load(path)):\n        kept[n] = p", False),
        ("for p, q in zip(m.parameters(), saved['weights']):\n        q.copy_(distribute(q))", False),
        ("for a, q in zip(mean, torch.load(path)):\n        a.copy_(q)", True),
        ("for a, q in zip(mean, torch.load(path).get('mean')):\n        a.copy_(q)", True),
        ("for a, q in zip(mean, torch.load(path)['mean'].values()):\n        a.copy_(q)", True),
        ("for a, q in zip(mean, json.load(path)['mean']):\n        a.copy_(q)", False),
        ("for p, q in zip(net2.parameters(), saved['weights']):\n        p.copy_(q)", False),
        ("with FSDP.summon_full_params(m):\n        next(m.parameters()).copy_(saved['w'])", False),
    ],
)
def test_tensors_of_a_file_that_meet_parameters_are_said(use: str, is_said: bool) -> None:
    """Torch refuses them: the file holds plain tensors, and the parameters are DTensors."""
    assert any(each.becomes == COPIES for each in uses(OF_A_FILE.format(use))) is is_said


KEEPS = """\
class Keeper:
    def __init__(self, net, path):
        self.model = FSDP(net)
        self.kept = {}

    def step(self):
        for n, p in self.model.named_parameters():
            p.data.lerp_(self.kept[n], 0.5)
"""


@pytest.mark.parametrize(
    ("kept", "is_said"),
    [
        ("torch.load(path)", True),
        ("torch.load(path)['average']", True),
        ("{n: p.detach().clone() for n, p in self.model.named_parameters()}", False),
        # What takes the place of copies is said where it is loaded.
        (
            "{n: p.clone() for n, p in self.model.named_parameters()}\n        self.kept = torch.load(path)",
            False,
        ),
    ],
)
def test_what_an_object_has_of_a_file(kept: str, *, is_said: bool) -> None:
    assert any(each.becomes == COPIES for each in uses(KEEPS.format(kept))) is is_said


READS = """\
import torch

def read(path):
    saved = torch.load(path)
    return saved["weights"]

def describe(path):
    return str(path)
"""
RESTORES = """\
import torch

def restore(m, saved):
    for p, q in zip(m.parameters(), saved):
        p.copy_(q)

class Averages:
    def __init__(self, m):
        self.mean = [torch.zeros_like(p) for p in m.parameters()]

    def load(self, mean):
        for a, q in zip(self.mean, mean):
            a.copy_(q)
"""
MAIN = """\
from reads import describe, read
from restores import Averages, restore

def main(net, path):
    m = FSDP(net)
    {}
"""


@pytest.mark.parametrize(
    ("use", "file"),
    [
        ("restore(m, read(path))", "restores.py"),
        ("restore(m, saved=read(path))", "restores.py"),
        ("restore(m, torch.load(path)['w'])", "restores.py"),
        ("saved = torch.load(path)\n    restore(m, saved['w'])", "restores.py"),
        ("saved = torch.load(path)\n    weights = saved['w']\n    restore(m, weights)", "restores.py"),
        ("Averages(m).load(torch.load(path))", "restores.py"),
        ("for p, q in zip(m.parameters(), read(path)):\n        p.copy_(q)", "train.py"),
        # Of the model itself, of another one, and of no file.
        ("restore(m, [p.detach() for p in m.parameters()])", ""),
        ("restore(net2, torch.load(path)['w'])", ""),
        ("restore(m, describe(path))", ""),
        ("for p, q in zip(m.parameters(), describe(path)):\n        p.copy_(q)", ""),
    ],
)
def test_tensors_of_a_file_that_other_files_read(tmp_path: Path, use: str, file: str) -> None:
    texts = {"reads.py": READS, "restores.py": RESTORES}
    for name, text in {**texts, "train.py": IMPORTS + MAIN.format(use)}.items():
        (tmp_path / name).write_text(text)
    found = {use.path.rpartition("/")[2] for use in scan_paths([tmp_path]).uses if use.becomes == COPIES}
    assert found == ({file} if file else set())


OWN = """\
import torch

class Smoothed:
    def __init__(self, m):
        self.shadow = {n: p.detach().clone() for n, p in m.named_parameters()}

    def update(self, m):
        for n, p in m.named_parameters():
            self.shadow[n].mul_(0.9).add_(p.detach(), alpha=0.1)

    def load_state_dict(self, state):
        self.shadow = {n: p.clone() for n, p in state.items()}
"""
LOADS_IT = """\
from own import Smoothed
from wraps import shard

def main(net, other, path):
    score = FSDP(net)
    other = shard(other)
    kept = Smoothed(score)
    {}.load_state_dict(torch.load(path))
    kept.update(score)
"""


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        *(("score", False), ("other", False), ("self.model.generator", False)),
        # An average's, one that nothing shows, and what another function makes.
        *(("kept", True), ("generator_ema", True), ("thing", True)),
    ],
)
def test_a_file_that_a_model_loads_comes_to_no_method_of_that_name(
    tmp_path: Path, asked: str, *, is_said: bool
) -> None:
    wraps = f"{FSDP}def shard(net):\n    return FSDP(net)\n"
    texts = {"own.py": OWN, "wraps.py": wraps, "train.py": IMPORTS + LOADS_IT.format(asked)}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = {use.path.rpartition("/")[2] for use in scan_paths([tmp_path]).uses if use.becomes == COPIES}
    assert found == ({"own.py"} if is_said else set())


@pytest.mark.parametrize(
    ("kept", "is_said"),
    [
        ("torch.load(path)['average']", True),
        ("{n: p.float().cpu() for n, p in saved['average'].items()}", True),
        ("{n: p.detach() for n, p in net.named_parameters()}", False),
        ("{n: sizes[n] for n, p in saved['average'].items()}", False),
    ],
)
def test_what_an_object_keeps_of_a_file_for_a_method_of_another(
    tmp_path: Path, kept: str, *, is_said: bool
) -> None:
    lines = (
        f"from own import Smoothed\n\nclass Trainer:\n    def __init__(self, net, path):\n"
        f"        saved = torch.load(path)\n        self.state = None\n        self.state = {kept}\n"
        f"        self.net = FSDP(net)\n        self.average = Smoothed(self.net)\n"
        f"        self.average.load_state_dict(self.state)\n        self.average.update(self.net)\n"
    )
    for name, text in {"own.py": OWN, "train.py": IMPORTS + lines}.items():
        (tmp_path / name).write_text(text)
    found = {use.path.rpartition("/")[2] for use in scan_paths([tmp_path]).uses if use.becomes == COPIES}
    assert found == ({"own.py"} if is_said else set())
