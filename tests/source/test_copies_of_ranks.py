"""Copies of a sharded model's parameters that an object keeps: saved by each rank, and loaded back."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, uses


pytestmark = pytest.mark.any_torch


OBJECT = """\
class Average:
    def __init__(self, net, rate):
        self.rate = rate
        self.kept = {k: w.detach().clone() for k, w in net.named_parameters()}
        self.typed: dict[str, torch.Tensor] = {k: w.clone() for k, w in net.named_parameters()}
        self.filled: dict[str, torch.Tensor] = {}
        for k, w in net.named_parameters():
            self.filled[k] = w.detach().clone()

    def step(self, net):
        for k, w in net.named_parameters():
            if k in self.kept:
                self.kept[k].lerp_(w.detach(), 1 - self.rate)

    def state(self):
        return self.kept

    def settings(self):
        return self.rate

    def load(self, state):
        self.kept = state

    def set_rate(self, rate):
        self.rate = rate

    def read(self, path):
        self.kept = torch.load(path)


class Heir(Average):
    def save(self, path):
        torch.save(self.kept, path)


"""
MADE = "model = FSDP(net)\naverage = Average(model, 0.9)\n"


def said(body: str) -> list[str]:
    return [use.becomes.split(" ")[0] for use in uses(body, IMPORTS + OBJECT) if use.code == "FM423"]


@pytest.mark.parametrize(
    "use",
    [
        "average.kept",
        "average.filled",
        "average.typed",
        "{'average': average.kept}",
        "average.state()",
    ],
)
def test_what_an_object_keeps_is_found_from_outside(use: str) -> None:
    before = said(MADE)
    after = said(f"{MADE}torch.save({use}, f'average{{rank}}.pt')\n")
    assert len(after) == len(before) + 1


@pytest.mark.parametrize(
    "body",
    [
        f"{MADE}torch.save(average.rate, 'x')\n",
        f"{MADE}torch.save(average.settings(), 'x')\n",
        "model = FSDP(net)\naverage = Average(other, 0.9)\ntorch.save(average.kept, 'x')\n",
        "model = FSDP(net)\naverage = make(model)\ntorch.save(average.kept, 'x')\n",
        (
            "model = FSDP(net)\nwith FSDP.summon_full_params(model):\n    average = Average(model, 0.9)\n"
            "torch.save(average.kept, 'x')\n"
        ),
    ],
)
def test_what_it_has_beside_them_is_not(body: str) -> None:
    assert len(said(body)) == len(said(body.rpartition("torch.save")[0]))


def test_it_is_found_in_a_class_that_derives_from_its_own_and_in_an_object_of_an_object() -> None:
    whole = "class Run:\n    def __init__(self):\n        self.average = Average(model, 0.9)\n"
    whole += "    def save(self):\n        torch.save(self.average.kept, 'x')\n"
    assert len(said(f"model = FSDP(net)\n{whole}")) == len(said(MADE)) + 1
    assert len(said(MADE)) == 1  # that of `Heir`


LOADS = [
    "average.kept = torch.load(f'average_rank{rank}.pt')\n",
    "average.load(torch.load(f'average_rank{rank}.pt'))\n",
    "average.load(state=torch.load(f'average_rank{rank}.pt'))\n",
    "saved = torch.load(f'average_rank{rank}.pt')\naverage.load(saved['average'])\n",
    "average.kept.update(torch.load(f'average_rank{rank}.pt'))\n",
    "average.read(f'average_rank{rank}.pt')\n",
    "kept = [p.clone() for p in model.parameters()]\nif again:\n    kept = torch.load(f'a_rank{rank}.pt')\n",
]


@pytest.mark.parametrize("load", LOADS)
def test_a_ranks_own_file_of_them_is_not_met_by_its_names(load: str) -> None:
    found = [use for use in uses(MADE + load, IMPORTS + OBJECT) if "_fsdp_wrapped_module." in use.becomes]
    assert [(use.code, use.action) for use in found] == [("FM423", "commented")]


@pytest.mark.parametrize(
    "load",
    [
        "average.kept = torch.load('average.pt')\n",
        "average.rate = torch.load(f'average_rank{rank}.pt')\n",
        "average.set_rate(torch.load(f'average_rank{rank}.pt'))\n",
        "average.read('average.pt')\n",
        "batches = torch.load(f'batches_rank{rank}.pt')\n",
        "other.kept = torch.load(f'average_rank{rank}.pt')\n",
    ],
)
def test_another_file_or_what_holds_none_of_them_is_not(load: str) -> None:
    assert "_fsdp_wrapped_module." not in "".join(use.becomes for use in uses(MADE + load, IMPORTS + OBJECT))


OWN_PATH = """\
class Trainer:
    def __init__(self, net, path, rank):
        self.model, self.path = FSDP(net), path.format(rank)
        self.kept = {k: w.detach().clone() for k, w in self.model.named_parameters()}

    def load(self):
        self.kept = torch.load(self.path)


"""


@pytest.mark.parametrize("made", ["Trainer(net, path, 0).load()\n", "trainer.load()\n", ""])
def test_a_file_that_the_object_itself_names_is_looked_at_too(made: str) -> None:
    """Nothing is given for ``self``: asking for that ended the scan of a whole project."""
    assert "FM423" not in {use.code for use in uses(f"{OWN_PATH}{made}", IMPORTS)}
