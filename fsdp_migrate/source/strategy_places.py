"""What is known where a project makes Lightning's FSDP1 strategy: that there are several ranks, no quantizer.

A branch where that is otherwise never has the model that the strategy shards.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.callers import Callers
from fsdp_migrate.source.project import is_a_test, last_name
from fsdp_migrate.source.project_scopes import scopes_of
from fsdp_migrate.source.python.lightning_models import has_option
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.numbers_of_ranks import says_several
from fsdp_migrate.source.python.other_engines import asks_for_quantized


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.source.project import Asked, Project
    from fsdp_migrate.source.python.links import Links


_STRATEGY: Final = "FSDPStrategy"
_ASKS: Final = re.compile(r"\bFSDPStrategy\(|\bstrategy\s*=\s*['\"]fsdp")
_QUANTIZERS: Final = re.compile(r"\b(?:bnb|bitsandbytes)\b")
Facts = list[tuple[ast.expr, bool]]
"""Tests, and how they have come out."""


def with_strategy_places(project: Project, links: dict[Path, Links]) -> dict[Path, Links]:
    """Tell the files of a project what shuts FSDP1's strategy out wherever it is made."""
    asking = [path for path, text in project.texts.items() if _ASKS.search(text) and not is_a_test(path)]
    if not asking or any(map(has_option, project.texts.values())):
        return links
    facts = [each for path in asking for each in _facts(project, path)]
    if not facts:
        return links
    told = dict(links)
    if all(any(says_several(test, truth=truth) is True for test, truth in each) for each in facts):
        told |= {path: replace(each, shards_on_several=True) for path, each in told.items()}
    if all(any(asks_for_quantized(test, truth=not truth) for test, truth in each) for each in facts):
        callers = Callers(project)
        for path in (each for each, text in project.texts.items() if _QUANTIZERS.search(text)):
            its = frozenset(_run_for_quantizers(project, callers, path))
            told[path] = replace(told.get(path, NOTHING), for_quantizers=its, shuts_out_quantizers=True)
    return told


def _facts(project: Project, path: Path) -> Iterator[Facts]:
    """Yield what is known where a file makes the strategy, or names it to a Fabric or a Trainer."""
    module = project.module(path)
    for scope in scopes_of(module) if module is not None else ():
        for statement in scope.statements:
            around: Facts = [each.fact for each in statement.place.asked]
            for call in statement.calls:
                if _makes_one(call):
                    yield around + list(_chosen_by(statement.node, call))


def _makes_one(call: ast.Call) -> bool:
    named = [each.value for each in call.keywords if each.arg == "strategy"]
    is_named = any(isinstance(each, ast.Constant) and str(each.value).startswith("fsdp") for each in named)
    return is_named or last_name(call.func) == _STRATEGY


def _chosen_by(statement: ast.stmt, call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the tests of ``FSDPStrategy() if devices > 1 else "auto"``."""
    for choice in (each for each in ast.walk(statement) if isinstance(each, ast.IfExp)):
        for side, truth in ((choice.body, True), (choice.orelse, False)):
            if any(each is call for each in ast.walk(side)):
                yield choice.test, truth


def _run_for_quantizers(project: Project, callers: Callers, path: Path) -> Iterator[str]:
    """Yield the functions of a file that are called below a test for a quantizer alone."""
    module = project.module(path)
    for name, definition in module.definitions.items() if module is not None else ():
        seen = callers.of(definition)
        if seen and all(any(map(_is_quantizers, each.place.asked)) for each in seen):
            yield name


def _is_quantizers(asked: Asked) -> bool:
    return asks_for_quantized(asked.test, truth=asked.truth)
