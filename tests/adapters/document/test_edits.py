"""Text edits: what is asked for changes, and no other character does."""

from __future__ import annotations

from typing import Any

import pytest

from fsdp_migrate.adapters.document.edits import Change, Edits
from fsdp_migrate.adapters.document.json_reader import read_json
from fsdp_migrate.adapters.document.nodes import Mapping, Sequence, effective, plain, target
from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError


pytestmark = pytest.mark.any_torch


def edit(text: str, *, json: bool = False, at: str = "", **what: Any) -> str:
    """Change keys of the mapping at a path: None takes a key out, a value replaces it, or adds it."""
    root = read_json(text) if json else read_yaml(text)[0]
    node = root
    for part in filter(None, at.split(".")):
        assert isinstance(node, Mapping)
        node = target(effective(node)[part].value)
    assert isinstance(node, Mapping)
    edits = Edits(text, json)
    for name, value in what.items():
        entry = effective(node).get(name)
        if entry is None:
            edits.add(node, name, value)
        elif value is None:
            edits.change(node, Change(entry, remove=True))
        else:
            edits.change(node, Change(entry, value=value, has_value=True))
    result = edits.apply()
    again = read_json(result) if json else read_yaml(result)[0]
    assert plain(again) == edits.expected(root)
    return result


_OF_LINES = "# a: x\n# k: y\n# a: z\n# m: w\nb: 2\n"


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        ("a: 1\nb: 2\n", {"a": None}, "b: 2\n"),
        ("a: 1\nb: 2", {"b": None}, "a: 1"),
        ("a: 1  # why\nb: 2\n", {"a": None}, "# a: why\nb: 2\n"),
        ("# above\na: 1\n\nb: 2\n", {"a": 5, "c": "x"}, "# above\na: 5\n\nb: 2\nc: x\n"),
        ("a:\n  - x # one\n  - y\nb: 2\n", {"a": None}, "# a: one\nb: 2\n"),
        ("a:\n- x\n- y\nb: 2\n", {"a": True}, "a: true\nb: 2\n"),
        ("a: |\n  text\n  more\nb: 2\n", {"a": None}, "b: 2\n"),
        ("a: >-\n  text\nb: 2\n", {"a": 7}, "a: 7\nb: 2\n"),
        ("a:\nb: 2\n", {"a": 7}, "a: 7\nb: 2\n"),
        ("a: 'x'\n", {"a": "y"}, "a: 'y'\n"),
        ("a: 1\n", {"a": {"b": 1, "c": {"d": "e"}}}, "a:\n  b: 1\n  c:\n    d: e\n"),
        ("a: 1\r\nb: 2\r\n", {"a": None, "c": 3}, "b: 2\r\nc: 3\r\n"),
        ("a: 1\n", {"a": None, "b": 2}, "b: 2\n"),
        ("{a: 1, b: 2, c: 3}\n", {"b": None}, "{a: 1, c: 3}\n"),
        ("{a: 1, b: 2, c: 3}\n", {"b": None, "c": None, "d": 4}, "{a: 1, d: 4}\n"),
        ("{a: 1}\n", {"a": None, "d": 4}, "{d: 4}\n"),
        ("{}\n", {"d": [1, "x y"]}, "{d: [1, x y]}\n"),
        ("k:\n  a: 1 # x", {"k": "v"}, "k: v # x"),
        # A comment above is about what stands below it: it does not come to stand above another key.
        ("# on a\na: 1\n\nb: 2\n", {"a": None}, "# a: on a\n\nb: 2\n"),
        (
            "# on a\n# still\na: 1  # x\n# on b\nb: 2\n",
            {"a": None},
            "# a: on a\n# still\n# a: x\n# on b\nb: 2\n",
        ),
        ("# a is on\na: 1  # a, too\n\nb: 2\n", {"a": None}, "# a is on\n# a, too\n\nb: 2\n"),
        ("# on both\na: 1\nb: 2\n", {"a": None}, "# on both\nb: 2\n"),
        ("# on both\na: 1\nb: 2\n\nc: 3\n", {"a": None, "b": None}, "# a: on both\n\nc: 3\n"),
        ("# on what a does\na: 1\nb: 2\n", {"a": None}, "# a: on what a does\nb: 2\n"),
        ("# on a and b\na: 1\nb: 2\n", {"a": None}, "# on a and b\nb: 2\n"),
        ("c: 3\n# on a\na: 1", {"a": None}, "c: 3\n# a: on a"),
        ("k:\n  c: 3\n  # on a\n  a: 1\nd: 4\n", {"d": 5}, "k:\n  c: 3\n  # on a\n  a: 1\nd: 5\n"),
        # A comment in a line of an inner key is about that.
        ("a:  # x\n  k: 1  # y\n  l:\n    - 2  # z\n  m: {n: 1}  # w\nb: 2\n", {"a": None}, _OF_LINES),
        ("a: 1\n# on b\nb: 2\n", {"a": None, "b": None, "c": 3}, "# b: on b\nc: 3\n"),
    ],
)
def test_edits_of_yaml(text: str, what: dict[str, Any], expected: str) -> None:
    assert edit(text, **what) == expected


@pytest.mark.parametrize(
    ("text", "what", "expected"),
    [
        ('{"a": 1,\n "b": 2}', {"a": None}, '{"b": 2}'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', {"b": None}, '{\n  "a": 1\n}\n'),
        ('{\n  "a": 1,\n  "b": 2\n}\n', {"b": None, "c": "x"}, '{\n  "a": 1,\n  "c": "x"\n}\n'),
        ("{}", {"a": "b"}, '{"a": "b"}'),
        ('{\n  "a": 1,\n\n  "b": 2,\n\n  "c": 3\n}', {"b": None}, '{\n  "a": 1,\n\n\n  "c": 3\n}'),
        ('{\n  "a": 1,\n\n  "b": 2,\n  "c": 3\n}', {"a": None}, '{\n\n  "b": 2,\n  "c": 3\n}'),
        (
            '{\n  "a": 1,\n  "b": {\n    "x": 1\n  },\n\n  "c": 3\n}',
            {"b": None},
            '{\n  "a": 1,\n\n  "c": 3\n}',
        ),
    ],
)
def test_edits_of_json(text: str, what: dict[str, Any], expected: str | None) -> None:
    result = edit(text, json=True, **what)
    assert expected is None or result == expected


def test_a_list_of_mappings_keeps_its_dashes() -> None:
    text = "jobs:\n  - a: 1\n    b: 2\n  - a: 3\n"
    [root] = read_yaml(text)
    assert isinstance(root, Mapping)
    jobs = root.entries[0].value
    assert isinstance(jobs, Sequence)
    first = jobs.items[0]
    assert isinstance(first, Mapping)
    edits = Edits(text)
    edits.change(first, Change(first.entries[0], remove=True))
    edits.add(first, "c", 4)
    assert edits.apply() == "jobs:\n  - b: 2\n    c: 4\n  - a: 3\n"


def test_an_inner_and_an_outer_mapping_grow_at_the_same_place() -> None:
    text = "a: 1\nb:\n  c: 2\n"
    [root] = read_yaml(text)
    assert isinstance(root, Mapping)
    inner = root.entries[1].value
    assert isinstance(inner, Mapping)
    edits = Edits(text)
    edits.add(root, "z", 9)
    edits.add(inner, "d", 3)
    assert edits.apply() == "a: 1\nb:\n  c: 2\n  d: 3\nz: 9\n"


def test_an_anchor_that_is_used_elsewhere_stays() -> None:
    with pytest.raises(UnsupportedFeatureError, match="Line 1: `&x` would be taken out"):
        edit("a: &x {b: 1}\nc: *x\n", a=None)


def test_merged_entries_are_changed_where_they_stand() -> None:
    text = "base: &b\n  a: 1\nk:\n  <<: *b\n  c: 2\n"
    [root] = read_yaml(text)
    assert isinstance(root, Mapping)
    base = root.entries[0].value
    assert isinstance(base, Mapping)
    edits = Edits(text)
    edits.change(base, Change(base.entries[0], value=5, has_value=True))
    assert edits.apply() == text.replace("a: 1", "a: 5")
    assert edits.expected(root) == {"base": {"a": 5}, "k": {"a": 5, "c": 2}}


@pytest.mark.parametrize("reader", [read_yaml, read_json])
def test_what_is_nested_too_deeply_is_refused(reader: Any) -> None:
    with pytest.raises(ConfigError):
        reader('{"a":' * 5000 + "1" + "}" * 5000)


@pytest.mark.parametrize(
    ("above", "named"),
    [
        (
            "  # FULL_SHARD: ZeRO-3\n  # SHARD_GRAD_OP: ZeRO-2\n",
            "  # old: FULL_SHARD: ZeRO-3\n  # SHARD_GRAD_OP: ZeRO-2\n",
        ),
        ("  # one of\n  # FULL_SHARD | NO_SHARD\n", "  # one of\n  # old: FULL_SHARD | NO_SHARD\n"),
        ("  # old is one of\n  # FULL_SHARD | NO_SHARD\n", None),
        ("  # why\n", None),
        ("  # NCCL_DEBUG is set above\n", None),
        ("  # the launcher exports\n  # FSDP_OTHER (FULL_SHARD) AND this\n", None),
        ("  # OLD, as the launcher calls it, is\n  # FULL_SHARD or NO_SHARD\n", None),
        ("  # FULL_SHARD\n\n", None),
    ],
)
def test_a_list_of_words_above_a_key_that_is_renamed_has_its_name(above: str, named: str | None) -> None:
    text = f"a:\n  first: 0\n{above}  old: FULL_SHARD\n"
    [root] = read_yaml(text)
    assert isinstance(root, Mapping)
    node = root.entries[0].value
    assert isinstance(node, Mapping)
    edits = Edits(text)
    edits.change(node, Change(node.entries[1], key="new", value=True, has_value=True))
    assert edits.apply() == f"a:\n  first: 0\n{named or above}  new: true\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a:\n  b: 1\n  c: 2\n", "a:\n  b: 1\n  e: 4\nd: 3\n"),
        ("a:\n  b: 1\n  c: 2\n\n\n", "a:\n  b: 1\n  e: 4\nd: 3\n\n\n"),
        (
            "a:\n  b:\n    x: 1\n    y: 2  # why\n  c: 2",
            "a:\n  b:\n    x: 1\n    y: 2  # why\n  e: 4\nd: 3\n",
        ),
    ],
)
def test_a_key_is_added_behind_a_block_whose_last_line_goes(text: str, after: str) -> None:
    root = read_yaml(text)[0]
    assert isinstance(root, Mapping)
    inner = root.entries[0].value
    assert isinstance(inner, Mapping)
    edits = Edits(text, is_json=False)
    edits.change(inner, Change(inner.entries[-1], remove=True))
    edits.add(root, "d", 3)
    edits.add(inner, "e", 4)
    assert edits.apply().rstrip() == after.rstrip()
    assert plain(read_yaml(edits.apply())[0]) == edits.expected(root)
