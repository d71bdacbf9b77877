"""Where a script hands Accelerate a model without its optimizer, which its FSDP2 refuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.catalog import MODEL_ALONE
from fsdp_migrate.source.files import find_sources, read_source


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from fsdp_migrate.source.uses import ScanReport


_CODE: Final = "FM449"


def find_prepared_apart(
    paths: Iterable[str | os.PathLike[str]], report: ScanReport | None = None
) -> list[str]:
    """Return the places at and below paths where ``accelerator.prepare`` gets a model alone.

    Args:
        paths: Files and folders.
        report: What was found in them: what gets a comment (FM449) is left out.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_prepared_apart(["fsdp_migrate/source"])
        []
    """
    told = {f"{use.path}:{use.line}" for use in report.uses if use.code == _CODE} if report else set()
    found = []
    for path in find_sources(paths):
        try:
            lines = read_source(path).splitlines()
        except FSDPMigrateError:
            continue
        found += [f"{path}:{number}" for number, line in enumerate(lines, 1) if _is_meant(line)]
    return [place for place in found if place not in told]


def _is_meant(line: str) -> bool:
    return re.search(MODEL_ALONE, line) is not None and not line.lstrip().startswith("#")
