"""Lists and dicts that a loop fills with a model's parameters."""

from __future__ import annotations

import pytest

from fsdp_migrate.source.python.filled_lists import filled_from, is_made_empty
from fsdp_migrate.source.python.nodes import text_of
from fsdp_migrate.source.python.text import Source


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("made", "is_empty"),
    [
        ("[]", True),
        ("{}", True),
        ("defaultdict(list)", True),
        ("set()", True),
        ("[1]", False),
        ("list(x())", False),
    ],
)
def test_what_is_made_empty(made: str, *, is_empty: bool) -> None:
    assert is_made_empty(Source(f"kept = {made}\n", "a.py").assignments[0].value) is is_empty


@pytest.mark.parametrize(
    ("fills", "model"),
    [
        ("for p in net.parameters():\n    kept.append(p)\n", "net"),
        ("for n, p in net.named_parameters():\n    kept[n] = p\n", "net"),
        ("for n, p in net.named_parameters():\n    kept.setdefault(n, []).append(p)\n", "net"),
        ("for n, p in net.named_parameters():\n    kept[n].append({'params': [p]})\n", "net"),
        ("for n, p in net.named_parameters():\n    kept.append(n)\n", ""),
        ("for p in net.parameters():\n    kept.append(p.numel())\n", ""),
        ("for m in net.modules():\n    kept.append(m.weight)\n", "net"),
        ("for m in net.modules():\n    kept.append(m)\n", ""),
        ("for m in net.modules():\n    other.append(m.weight)\n", ""),
        ("for p in net.parameters():\n    other.append(p)\n", ""),
        ("for m in (net.a, net.b):\n    kept.extend(m.parameters())\n", "net.a"),
        ("kept += list(net.parameters())\n", "net"),
        ("kept.extend(net.buffers())\n", ""),
    ],
)
def test_the_models_of_what_is_put_in(fills: str, model: str) -> None:
    source = Source(f"kept = []\n{fills}", "a.py")
    found = [text_of(each) for each in filled_from(source.index, source.assignments[0], "kept")]
    assert found[:1] == ([model] if model else [])
