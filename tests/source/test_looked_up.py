"""Parameters that are looked up by themselves among whole ones, or were taken before."""

from __future__ import annotations

import pytest

from tests.source.samples import found_comments, uses


pytestmark = pytest.mark.any_torch

START = """\
m = FSDP(net, use_orig_params=True)
names = {p: n for n, p in m.named_parameters()}
taken = list(m.parameters())
seen = set()
with FSDP.summon_full_params(m):
    mine = {p: n for n, p in m.named_parameters()}
    new = list(m.parameters())
"""


@pytest.mark.parametrize(
    ("inner", "is_said"),
    [
        ("send(names[p], p.data)", True),
        ("x = names.get(p)", True),
        ("x = optimizer.state[p]", True),
        ("x = numbers[id(p)]", True),
        ("x = p in names", True),
        ("x = p is not other.weight", True),
        ("x = [names[q] for q in m.parameters()]", True),
        ("send(mine[p], p.data)", False),
        ("x = names['weight'], p is None", False),
        ("if id(p) in seen:\n            continue\n        seen.add(id(p))", False),
    ],
)
def test_a_parameter_as_a_key(inner: str, is_said: bool) -> None:
    """In the context parameters are other objects: under FSDP1's ``use_orig_params`` they were the same."""
    numbers = "numbers, other = {}, net\noptimizer = Adam(m.parameters())\n"
    body = f"{numbers}{START}    for p in m.parameters():\n        {inner}\n"
    assert (("FM313", 11) in found_comments(body)) is is_said


@pytest.mark.parametrize(
    ("loop", "is_said"),
    [
        ("for p in taken:\n        p.data.mul_(2)", True),
        ("for p in new:\n        p.data.mul_(2)", False),
        ("for group in o.param_groups:\n        for p in group['params']:\n            p.data.mul_(2)", True),
        ("for group in o.param_groups:\n        group['lr'] = 0.1", False),
    ],
)
def test_parameters_that_were_taken_outside(loop: str, is_said: bool) -> None:
    found = found_comments(f"o = Adam(net.parameters())\n{START}    {loop}\n")
    assert ("FM313" in {code for code, _ in found}) is is_said


@pytest.mark.parametrize(
    ("before", "inner", "is_said"),
    [
        ("w = m.weight", "send(w.norm())", True),
        ("w = m.head.bias", "w.data.zero_()", True),
        ("w = dict(m.named_parameters())[name]", "send(w.data.clone())", True),
        ("w = next(m.parameters())", "send(w)", True),
        ("w = m.get_parameter('a.weight')", "send(w[0])", True),
        ("w = m.weight", "send(w.shape, w.dtype)", False),
        ("w = m.weight", "w = m.weight\n    send(w)", False),
        ("w = m.config", "send(w.size)", False),
        ("w = other.weight", "send(w)", False),
        ("", "send(m.weight)", False),
    ],
)
def test_one_parameter_that_was_taken_outside(before: str, inner: str, is_said: bool) -> None:
    body = f"m = FSDP(net, use_orig_params=True)\n{before}\nwith FSDP.summon_full_params(m):\n    {inner}\n"
    assert ("FM313" in {code for code, _ in found_comments(body)}) is is_said


@pytest.mark.parametrize(
    ("given", "is_said"), [("param", True), ("new_param", True), ("value", False), ("params", False)]
)
def test_a_parameter_that_a_function_is_given(given: str, is_said: bool) -> None:
    summons = "    with FSDP.summon_full_params(m):\n"
    body = (
        f"def read(m, {given}):\n{summons}        return {given}.data.clone()\nread(FSDP(net), net.weight)\n"
    )
    assert ("FM313" in {code for code, _ in found_comments(body)}) is is_said


def test_what_a_parameter_is_filled_with_may_be_a_plain_tensor() -> None:
    summons = "    with FSDP.summon_full_params(m):\n"
    body = f"def fill(m, param):\n{summons}        m.weight.data.copy_(param)\nfill(FSDP(net), x)\n"
    assert "FM313" not in {code for code, _ in found_comments(body)}


def test_each_parameter_of_a_loop_around_the_context() -> None:
    loop = "for n, p in m.named_parameters():\n    with FSDP.summon_full_params(m):\n        p.data.mul_(2)\n"
    assert "FM313" in {code for code, _ in found_comments(f"m = FSDP(net)\n{loop}")}


@pytest.mark.parametrize(
    ("before", "within", "is_said"), [("seen = set()", "", True), ("", "seen = set()", False)]
)
def test_numbers_of_objects_from_one_context_to_the_next(before: str, within: str, *, is_said: bool) -> None:
    """What a context shows is freed after it, and what the next one shows may get the same numbers."""
    body = (
        f"def count(model):\n    {before or 'pass'}\n    for unit in FSDP.fsdp_modules(model):\n"
        f"        {within or 'pass'}\n        with FSDP.summon_full_params(unit, recurse=False):\n"
        "            for p in unit.parameters():\n                if id(p) not in seen:\n"
        "                    seen.add(id(p))\ncount(FSDP(net))\n"
    )
    assert ("FM313" in {code for code, _ in found_comments(body)}) is is_said


BY_WAY = """\
def key_of(entry):
    return (id(entry.parameter), entry.name)

def count(model):
    seen, sizes, kept = set(), {{}}, {{id(p): n for n, p in model.named_parameters()}}
    for unit in FSDP.fsdp_modules(model):
        of_unit = (id(unit.weight), 1)
        with FSDP.summon_full_params(unit, recurse=False):
            for entry in unit.support():
                {}
count(FSDP(net))
"""


@pytest.mark.parametrize(
    ("does", "is_said"),
    [
        ("key = key_of(entry)\n                if key not in seen: seen.add(key)", True),
        ("if key_of(entry) not in seen: seen.add(key_of(entry))", True),
        ("key = (entry.name, id(entry.weight))\n                if key not in seen: seen.add(key)", True),
        ("key = id(entry.weight)\n                if key not in sizes: sizes[key] = 1", True),
        ("key = id(entry.weight)\n                x = kept[key]", True),
        ("key = entry.name\n                if key not in seen: seen.add(key)", False),
        ("key = id(entry.module)\n                if key not in seen: seen.add(key)", False),
        ("if of_unit not in seen: seen.add(of_unit)", False),
        ("key = key_of(unit)\n                if key not in seen: seen.add(key)", False),
        ("key = key_of(entry)\n                show(key)", False),
    ],
)
def test_numbers_of_objects_by_way_of_names_and_functions(does: str, *, is_said: bool) -> None:
    found = found_comments(BY_WAY.format(does))
    assert ("FM313" in {code for code, _ in found}) is is_said


@pytest.mark.parametrize(
    ("given", "key", "is_said"),
    [
        ("parts_of(unit)", "id(entry.parameter)", True),
        ("parts_of(unit)", "entry.name", False),
        # What was taken above keeps its numbers.
        ("outside", "id(entry.parameter)", False),
    ],
)
def test_numbers_of_objects_in_a_function_that_gets_what_is_made_of_the_model(
    given: str, key: str, *, is_said: bool
) -> None:
    body = (
        "def count(model, outside):\n    seen = set()\n\n    def add(parts):\n        for part in parts:\n"
        f"            for entry in part.support():\n                key = {key}\n"
        "                if key in seen: continue\n                seen.add(key)\n\n"
        "    for unit in FSDP.fsdp_modules(model):\n        with FSDP.summon_full_params(unit):\n"
        f"            add({given})\n\ncount(FSDP(net), [])\n"
    )
    assert ("FM313" in {code for code, _ in found_comments(body)}) is is_said


def test_names_that_are_made_of_one_another_come_to_an_end() -> None:
    body = (
        "def count(model, a, b):\n    seen = set()\n    for unit in FSDP.fsdp_modules(model):\n"
        "        with FSDP.summon_full_params(unit):\n            for entry in unit.support():\n"
        "                a, b = (b, 1), (a, 1)\n                if a in seen: break\n"
        "                key = id(entry.weight)\n                if key in seen: continue\n"
        "                seen.add(key)\n\ncount(FSDP(net), 1, 2)\n"
    )
    (line,) = (line for code, line in found_comments(body) if code == "FM313")
    assert body.splitlines()[line - 1].strip() == "if key in seen: continue"


def test_a_function_that_gets_the_model_too_is_said_once() -> None:
    body = (
        "def count(model):\n    seen = set()\n\n    def add(unit, parts):\n        for entry in parts:\n"
        "            key = id(entry.weight)\n            if key in seen: return\n"
        "    for unit in FSDP.fsdp_modules(model):\n        with FSDP.summon_full_params(unit):\n"
        "            add(unit, parts_of(unit))\n\ncount(FSDP(net))\n"
    )
    assert [use.code for use in uses(body) if use.action == "commented"].count("FM313") == 1
