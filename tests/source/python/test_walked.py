"""Trees are gone through once, in ``ast.walk``'s order, and let go of with their sources."""

from __future__ import annotations

import ast
import gc
import weakref
from pathlib import Path

from fsdp_migrate.source.python import walked as module
from fsdp_migrate.source.python.walked import children_of, walked


TEXT = Path(module.__file__).read_text()


def test_the_order_is_that_of_the_standard_library() -> None:
    tree = ast.parse(TEXT)
    for part in ast.walk(tree):
        assert list(walked(part)) == list(ast.walk(part))
        assert list(walked(part)) == list(ast.walk(part))


def test_a_tree_that_nobody_has_any_more_is_let_go_of() -> None:
    tree = ast.parse(TEXT)
    kept = weakref.ref(tree)
    assert len(list(walked(tree))) > 100
    del tree
    gc.collect()
    assert kept() is None


def test_what_is_right_in_a_node_is_what_the_standard_library_says() -> None:
    text = """\
async def f(a: int, *b: "x", c=a.b, **d) -> {e: f"{g.h!r:{i}}"}:
    global j
    k.l = m(n=o.p) + (not -q)
"""
    for node in ast.walk(ast.parse(text)):
        assert children_of(node) == list(ast.iter_child_nodes(node))
