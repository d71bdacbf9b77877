"""Trees as nested lists: every list that opens closes, whatever the depths are."""

from __future__ import annotations

import random

import pytest

from fsdp_migrate.report.html import write_html
from fsdp_migrate.report.model import Node, Report, Tree
from fsdp_migrate.report.tree import DEEPEST, nested
from tests.report.reading import check_page


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    "depths",
    [(0,), (3, 0, 7, 7, 1), tuple(range(1000)), tuple(random.Random(0).choices(range(9), k=200))],
    ids=lambda depths: str(len(depths)),
)
def test_what_opens_closes(depths: tuple[int, ...]) -> None:
    nodes = tuple(Node(depth, f"n{at}", "") for at, depth in enumerate(depths))
    open_lists = 0
    for branch in nested(nodes):
        open_lists += branch.opens - branch.closes
        assert 0 <= open_lists <= DEEPEST
    assert open_lists == 0
    root = check_page(write_html(Report("t", "v", "good", (Tree("Units", nodes),), (), "c", "")))
    names = [each.text for each in root.find("code") if each.text.startswith("n")]
    assert names == [node.name for node in nodes]
