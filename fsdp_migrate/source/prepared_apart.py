"""Where a script hands Accelerate a model without its optimizer, or several, which its FSDP2 refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.catalog import MODEL_ALONE
from fsdp_migrate.source.files import find_sources, read_source
from fsdp_migrate.source.ignored_modules import find_ignored
from fsdp_migrate.source.loaded_by_rank_0 import find_not_loaded
from fsdp_migrate.source.python.accelerate_models import only_infers
from fsdp_migrate.source.python.accelerators import prepares
from fsdp_migrate.source.python.text import Source
from fsdp_migrate.source.rules.prepared_apart import refused_calls


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
        found = [f"{path}:{number}" for number in sorted(_lines(code, str(path)))]
        (untrained if only_infers(code) else trained).extend(place for place in found if place not in told)
    ignored = (place for place in find_ignored(every) if place not in settings)
    return PreparedApart(tuple(trained), tuple(untrained), tuple(find_not_loaded(every)), tuple(ignored))


def _lines(code: str, path: str) -> set[int]:
    """Return the lines of calls that give models without one optimizer each."""
    if not prepares(code):
        return set()
    try:
        source = Source(code, path)
        return {source.position(call)[0] for call in refused_calls(source)}
    except (FSDPMigrateError, RecursionError):  # Python 2, or none
        lines = enumerate(code.splitlines(), 1)
        return {n for n, line in lines if re.search(MODEL_ALONE, line) and not line.lstrip().startswith("#")}
