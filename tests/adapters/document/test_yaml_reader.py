"""YAML that cannot be read, and what its words mean."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import yaml  # type: ignore[import-untyped]

from fsdp_migrate import words
from fsdp_migrate.adapters.conversion.text import convert_text
from fsdp_migrate.adapters.document.json_reader import read_json
from fsdp_migrate.adapters.document.nodes import Scalar, plain, scalar_value
from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.errors import ConfigError


pytestmark = pytest.mark.any_torch


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", "Line 2"),
        ("a: 1\n\tb: 2\n", "Line 2"),
        ("a: *x\n", r"Line 1, column 4 is no YAML: there is no anchor `&x`"),
        ("a: {% if x %}[{% endif %}\nb: [{{ y }}\nc: {{ z }}: 1\n", "template language"),
        ("a: b: c\n", "Line 1, column"),
    ],
)
def test_broken_yaml_is_told_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_yaml(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x\n  b: *x\n", r"Line 2: `\*x` stands within"),
        (
            "a0: &a0 [1, 1]\n"
            + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            "more than 200000 values",
        ),
    ],
)
def test_aliases_that_grow_without_end_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_yaml(text)


_NUMBERS = (
    "1e8 1e-5 1.e8 1.e+8 1.5e8 1.5e+8 -2.5e-3 .5 .5e-3 -.5 1. 0. 1_000 1_0.5_0 0o10 010 -010 09 0x1F 0x_ "
    "0b11 0b2 0_ +12 -0 12:30 -1:30 12:61 190:20:30 190:20:30.15 1:00:00 .inf -.Inf +.INF .nan .NaN -.nan"
)
_OTHERS = "inf NaN ~ null Null nULL yes No ON off y n true TRUE tRUE . +. -. 1-2 2024-01-01x 1e 0x 1,000"


@pytest.mark.parametrize("word", [*_NUMBERS.split(), *_OTHERS.split()])
def test_a_word_means_what_the_frameworks_read(word: str) -> None:
    """By PyYAML's reader, which Accelerate, the Trainer and Axolotl call."""
    [node] = read_yaml(f"a: {word}\n")
    try:
        theirs = yaml.safe_load(f"a: {word}\n")["a"]
    except ValueError:  # a number by its looks, which is none
        theirs = word
    ours = plain(node)["a"]
    assert (type(ours), repr(ours)) == (type(theirs), repr(theirs))


def test_every_short_word_of_such_letters_means_the_same() -> None:
    resolver, constructor = yaml.resolver.Resolver(), yaml.constructor.SafeConstructor()
    for letters in itertools.chain(*(itertools.product("018._:e+-x", repeat=size) for size in (1, 2, 3, 4))):
        word = "".join(letters)
        tag = resolver.resolve(yaml.ScalarNode, word, (True, False))
        try:
            theirs = constructor.construct_object(yaml.ScalarNode(tag, word))
        except ValueError:
            theirs = word
        assert repr(scalar_value(Scalar(0, len(word), word, word, quoted=False))) == repr(theirs), word


def test_a_count_is_read_of_what_only_omegaconf_and_jsonargparse_take_for_a_number() -> None:
    for word in ("1e8", "1.e8", "1.5e8"):
        assert plain(read_yaml(word)[0]) == word
        assert words.read_count(word, "count") == float(word)


def test_numbers_of_json_are_those_of_json() -> None:
    text = '{"a": [1e8, 1E-5, 10, -0, true, null, "1e8", "yes", Infinity, NaN]}'
    assert repr(plain(read_json(text))) == repr(json.loads(text))
    assert plain(read_json("[NaN]")) != [math.nan]
    assert plain(read_json("[NaN]")) == plain(read_json("[NaN]"))


def test_dates_stay_words() -> None:
    assert plain(read_yaml("a: 2026-11-25")[0]) == {"a": "2026-11-25"}


def test_a_count_in_octal_stays_that_count_and_a_nan_is_no_obstacle() -> None:
    head = "distributed_type: FSDP\nloss: .nan\nfsdp_config:\n  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n"
    for written, after in (("010", "010"), ("1e8", "100000000"), ("0x10", "0x10")):
        done = convert_text(f"{head}  fsdp_min_num_params: {written}\n")
        assert f"fsdp_min_num_params: {after}\n" in done.text
