"""Which bindings a name may have where it stands: those of its branch, and since its last import."""

from __future__ import annotations

import pytest

from tests.source.samples import codes


pytestmark = pytest.mark.any_torch

TORCHS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
XLAS = "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP"
MAKES = f"""\
def wrap(model, xla, x):
    if not xla:
        {TORCHS}
        model = FSDP(model)
    else:
        {{tried}}{{indent}}{XLAS}
{{after}}
    {{below}}
    return model
"""
INNER = "        def call(m, *args):\n            return FSDP(m, *args)\n"


def _said(text: str) -> list[tuple[str, str]]:
    return [each for each in codes(text, header="") if each[0] in {"FM301", "FM303"}]


@pytest.mark.parametrize(
    ("tried", "after"),
    [
        ("", INNER),
        ("", "        if x:\n            def call(m, *args):\n                return FSDP(m, *args)\n"),
        ("", "        call = lambda m, *args: FSDP(m, *args)\n"),
        (
            "",
            "        class A:\n            def call(self, m, *y):\n                return FSDP(m, *y)\n",
        ),
        ("try:\n            ", "        except ImportError:\n            raise RuntimeError\n" + INNER),
    ],
)
def test_a_function_in_a_branch_has_that_branchs_import(tried: str, after: str) -> None:
    text = MAKES.format(tried=tried, indent="", after=after, below="pass")
    assert _said(text) == [("FM301", "rewritten")]


def test_a_function_in_a_branch_of_the_file_too() -> None:
    text = (
        f"if on:\n    {TORCHS}\nelse:\n    {XLAS}\n    def call(m, *args):\n        return FSDP(m, *args)\n"
    )
    assert _said(text) == []


@pytest.mark.parametrize(
    "below",
    [
        "def call(m, *args):\n        return FSDP(m, *args)\n",
        "if x:\n        def call(m, *args):\n            return FSDP(m, *args)\n",
        "other = FSDP(x, *x)\n",
    ],
)
def test_below_both_branches_it_may_be_either(below: str) -> None:
    text = MAKES.format(tried="", indent="", after="        pass", below=below)
    assert _said(text) == [("FM301", "rewritten"), ("FM303", "commented")]


def test_in_a_loop_the_other_branch_may_have_run() -> None:
    text = f"def f(m, y):\n    for x in y:\n        if x:\n            {TORCHS}\n        else:\n"
    text += f"            {XLAS}\n"
    text += "            def call(*args):\n                return FSDP(*args)\n"
    assert _said(text) == [("FM303", "commented")]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (TORCHS, XLAS, []),
        (XLAS, TORCHS, [("FM303", "commented")]),
        (f"{TORCHS}\n    if xla:\n        {XLAS}", "pass", [("FM303", "commented")]),
        (f"{TORCHS}\n    {XLAS}", f"if xla:\n        {TORCHS}", [("FM303", "commented")]),
    ],
)
def test_the_last_import_that_runs_in_any_case_counts(
    first: str, second: str, said: list[tuple[str, str]]
) -> None:
    text = f"def wrap(m, args, xla):\n    {first}\n    {second}\n    return FSDP(m, *args)\n"
    assert _said(text) == said
