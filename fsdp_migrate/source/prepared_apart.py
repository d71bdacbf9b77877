"""Where a script hands Accelerate a model without its optimizer, or several, which its FSDP2 refuses."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.catalog import MODEL_ALONE, PREPARED_WITH
from fsdp_migrate.source.files import find_sources, read_source
from fsdp_migrate.source.ignored_modules import find_ignored
from fsdp_migrate.source.loaded_by_rank_0 import find_not_loaded
from fsdp_migrate.source.project import dotted
from fsdp_migrate.source.python.accelerate_models import only_infers
from fsdp_migrate.source.python.asked_as_models import asked_in, is_model, made_as_others_in


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from fsdp_migrate.source.uses import ScanReport


_CODE: Final = "FM449"
_OF_SETTINGS: Final = "FM343"


@dataclass(frozen=True)
class PreparedApart:
    """Where Accelerate is given a model alone: in files that train, and in those that only infer."""

    trained: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    not_loaded: tuple[str, ...] = ()
    """Where it is given models that rank 0 cannot load for all, and what of them."""
    ignored: tuple[str, ...] = ()
    """Where its plugin is told to ignore modules, and rank 0 loads for all."""


def find_prepared_apart(
    paths: Iterable[str | os.PathLike[str]], report: ScanReport | None = None
) -> PreparedApart:
    """Return the places at and below paths where ``accelerator.prepare`` gets a model alone, as DDP takes it.

    Args:
        paths: Files and folders.
        report: What was found in them: what gets a comment (FM449) is left out.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_prepared_apart(["fsdp_migrate/source"]).trained
        ()
    """
    uses = report.uses if report else ()
    told = {f"{use.path}:{use.line}" for use in uses if use.code == _CODE}
    settings = {f"{use.path}:{use.line}" for use in uses if use.code == _OF_SETTINGS}
    trained: list[str] = []
    untrained: list[str] = []
    every = list(paths)
    for path in find_sources(every):
        try:
            code = read_source(path)
        except FSDPMigrateError:
            continue
        found = [f"{path}:{number}" for number in _lines(code)]
        (untrained if only_infers(code) else trained).extend(place for place in found if place not in told)
    ignored = (place for place in find_ignored(every) if place not in settings)
    return PreparedApart(tuple(trained), tuple(untrained), tuple(find_not_loaded(every)), tuple(ignored))


def _lines(code: str) -> list[int]:
    """Return the lines at which a source gives Accelerate models without one optimizer each."""
    if "accelerator.prepare" not in code:
        return []
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):  # Python 2, or none
        lines = enumerate(code.splitlines(), 1)
        return [n for n, line in lines if re.search(MODEL_ALONE, line) and not line.lstrip().startswith("#")]
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    asked, made = asked_in(tree), made_as_others_in(tree)
    return sorted(call.lineno for call in calls if _is_meant(call, asked, made))


def _is_meant(call: ast.Call, asked: frozenset[str], made: frozenset[str]) -> bool:
    func = dotted(call.func) or ""
    is_whole = any(each.arg == "evaluation_mode" for each in call.keywords)
    if not func.endswith(("accelerator.prepare", "accelerator.prepare_model")) or is_whole:
        return False
    names = [(dotted(arg) or "?").rpartition(".")[2].lower() for arg in call.args]
    models = [name for name in names if name not in made and is_model(name, asked)]
    beside = [name for name in names if name in made or re.search(PREPARED_WITH, name)]
    is_alone = len(models) + len(beside) == len(names) and not any("opt" in name for name in beside)
    return len(models) > 1 or (bool(models) and is_alone)
