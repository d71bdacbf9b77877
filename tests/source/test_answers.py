"""Answers that are kept are those that asking anew would give, and long chains of questions end soon."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import libcst as cst
import pytest

from fsdp_migrate.source import scan_source
from fsdp_migrate.source.answers import Answers


@dataclass(eq=False)
class _Graph:
    """Nodes that ask one another; those of ``sure`` are known."""

    leads: dict[cst.BaseExpression, list[cst.BaseExpression]]
    sure: set[cst.BaseExpression]
    deepest: int
    answers: Answers = field(init=False)
    stack: list[cst.BaseExpression] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.answers = Answers(self.deepest)

    def kept(self, node: cst.BaseExpression) -> bool:
        self.count += 1
        return node in self.sure or any(self.answers.once(each, self.kept) for each in self.leads[node])

    def anew(self, node: cst.BaseExpression) -> bool:
        if node in self.stack or len(self.stack) > self.deepest:
            return False
        self.stack.append(node)
        try:
            return node in self.sure or any(map(self.anew, self.leads[node]))
        finally:
            self.stack.pop()


@pytest.mark.parametrize("seed", range(60))
def test_what_is_kept_is_what_asking_anew_gives(seed: int) -> None:
    draw = random.Random(seed)
    nodes: list[cst.BaseExpression] = [cst.Name(f"x{count}") for count in range(draw.randint(3, 9))]
    leads = {each: draw.choices(nodes, k=draw.randint(0, 3)) for each in nodes}
    sure = set(draw.sample(nodes, draw.randint(0, 2)))
    graph = _Graph(leads, sure, draw.randint(1, 6))
    for node in [*nodes, *nodes]:
        assert graph.answers.once(node, graph.kept) == graph.anew(node)


def test_a_question_with_many_ways_to_it_is_answered_once() -> None:
    nodes: list[cst.BaseExpression] = [cst.Name(f"x{count}") for count in range(9)]
    leads = {each: [below] * 6 for each, below in itertools.pairwise(nodes)} | {nodes[-1]: []}
    graph = _Graph(leads, set(), 20)
    assert not graph.answers.once(nodes[0], graph.kept)
    assert graph.count == len(nodes)


def test_lists_that_fill_one_another_are_looked_at_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate.source import parameter_values

    count = 0
    real = parameter_values.ParameterValues.is_many

    def is_many(self: parameter_values.ParameterValues, node: cst.BaseExpression) -> bool:
        nonlocal count
        count += 1
        return real(self, node)

    monkeypatch.setattr(parameter_values.ParameterValues, "is_many", is_many)
    names = "abcdef"
    fills = "".join(f"    {x}['{y}'] = {y}['v']\n" for x in names for y in names)
    code = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        f"model = FSDP(net)\ndef step({', '.join(names)}):\n{fills}    a['u'] = a['v'] + torch.ones(3)\n"
    )
    scan_source(code)
    assert count < 3000
