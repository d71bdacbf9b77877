"""Sources for the tests of rules, and what is asked of every rewriting."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.left_comments import GOES_ON
from fsdp_migrate.source import Use, rewrite_source, scan_source


IMPORTS = """\
import functools
import torch
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    MixedPrecision,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)

"""
MARK = "# fsdp-migrate: "
MODEL = "model = FSDP(net)\n"
PREPARED = "model = prepare_fully_shard(net)\n"

ONE_TURNED = "\nfrom fsdp_migrate import prepare_fully_shard\n\nkept = prepare_fully_shard(kept, {})\n"
"""Below a source of which each wrap is left: a model that is turned, without which nothing else would be."""


def turned(body: str, header: str = IMPORTS) -> str:
    """Rewrite a source and return it without its imports, after the checks that hold for every source.

    A comment of ours that is set in several lines comes back in one: tests ask what it says.
    """
    after = rewrite_source(header + body)
    ast.parse(after)
    assert rewrite_source(after) == after, "a second rewriting changes the source again"
    after = in_one_line(after)
    return after.partition("\n\n")[2] if header else after


def in_one_line(text: str) -> str:
    """Return a rewritten source with what each comment of ours says in one line, as it was meant."""
    return re.sub(rf"\n[ \t]*{GOES_ON}(?=\S)", " ", text)


def plain(body: str, header: str = IMPORTS) -> str:
    """Return what :func:`turned` does, each comment of ours cut down to its code."""
    lines = []
    for line in turned(body, header).splitlines(keepends=True):
        text = line.lstrip()
        indent = line[: len(line) - len(text)]
        lines.append(f"{indent}{text[: len(MARK) + 5]}\n" if text.startswith(MARK) else line)
    return "".join(lines)


def uses(body: str, header: str = IMPORTS) -> list[Use]:
    """Return what is found in a body, the words of arguments and the imports left out."""
    return [use for use in scan_source(header + body) if use.rule not in {"argument-words", "import"}]


def codes(body: str, header: str = IMPORTS) -> list[tuple[str, str]]:
    """Return the code and the action of each use."""
    return [(use.code, use.action) for use in uses(body, header)]


def uncommented(after: str) -> str:
    """Return a rewritten source without our comments."""
    return "".join(line for line in after.splitlines(keepends=True) if "# fsdp-migrate" not in line)


def found_comments(body: str) -> set[tuple[str, int]]:
    """Return the codes and lines, counted from the body's first, of what gets a comment."""
    start = IMPORTS.count("\n")
    found = scan_source(IMPORTS + body)
    return {(use.code, use.line - start) for use in found if use.action == "commented"}


def assert_turned(before: str, after: str) -> None:
    """Assert what becomes of the uses of a model that is wrapped in the line before."""
    assert plain(MODEL + before) == PREPARED + after


def assert_commented(body: str, code: str, *, alone: bool = False) -> None:
    """Assert that a use of a wrapped model stays and gets one comment, and no other where it is ``alone``."""
    assert (code, "commented") in codes(MODEL + body)
    after = turned(MODEL + body)
    assert uncommented(after) == PREPARED + body
    assert after.count(MARK if alone else f"{MARK}{code} ") == 1


def assert_kept(body: str, code: str) -> None:
    """Assert that a use of a wrapped model is found and is right as it is."""
    assert {action for found, action in codes(MODEL + body) if found == code} == {"kept"}
    assert turned(MODEL + body) == PREPARED + body


def assert_left_alone(body: str) -> None:
    """Assert that nothing is found but the wrapping in the line before."""
    assert turned(MODEL + body) == PREPARED + body
    assert codes(MODEL + body) == [("FM301", "rewritten")]


def assert_uncertain(body: str, expected: list[str]) -> None:
    """Assert that each use of the class stays and gets its comment."""
    assert codes(body) == [(code, "commented") for code in expected]
    after = turned(body)
    assert uncommented(after) == body
    words = ("FSDP(", "FSDP}", "FSDP,", "FSDP.", "is FSDP", "=FSDP", "Mine(", "wrap(layer)")
    lines = {line for line in body.splitlines() if any(word in line for word in words)}
    assert after.count(MARK) == len(lines)


def assert_framework_commented(source: str, code: str) -> None:
    """Assert that another framework's setting stays and gets a comment."""
    assert codes(source, header="") == [(code, "commented")]
    assert uncommented(turned(source, header="")) == source


def assert_untouched(source: str) -> None:
    """Assert that nothing is found in a source."""
    assert codes(source, header="") == []
    assert turned(source, header="") == source


def last(body: str, header: str) -> str:
    """Return a body as it is rewritten, without our comments."""
    lines = turned(header + body, header="").splitlines()
    kept = [line for line in lines if not line.lstrip().startswith("# fsdp-migrate:")]
    return "\n".join(kept[-body.count("\n") :]) + "\n"


def comments(body: str, header: str) -> str:
    """Return our comments in a source as it is rewritten."""
    lines = turned(header + body, header="").splitlines()
    return "\n".join(line for line in lines if line.lstrip().startswith("# fsdp-migrate:"))
