"""Sources for the tests of rules, and what is asked of every rewriting."""

from __future__ import annotations

import ast

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


def turned(body: str, header: str = IMPORTS) -> str:
    """Rewrite a source and return it without its imports, after the checks that hold for every source."""
    after = rewrite_source(header + body)
    ast.parse(after)
    assert rewrite_source(after) == after, "a second rewriting changes the source again"
    return after.partition("\n\n")[2] if header else after


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
