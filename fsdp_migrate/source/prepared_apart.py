"""Where a script hands Accelerate a model without its optimizer, or several, which its FSDP2 refuses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.catalog import MODEL_ALONE
from fsdp_migrate.source.files import find_sources, read_source
from fsdp_migrate.source.ignored_modules import find_ignored
from fsdp_migrate.source.launched_otherwise import launched_otherwise
from fsdp_migrate.source.loaded_by_rank_0 import find_not_loaded
from fsdp_migrate.source.project import is_a_test
from fsdp_migrate.source.python.accelerate_models import has_optimizer, only_infers
from fsdp_migrate.source.python.accelerators import prepares
from fsdp_migrate.source.python.text import Source
from fsdp_migrate.source.rules.prepared_apart import stopped_calls


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable
    from pathlib import Path

    from fsdp_migrate.source.rules.prepared_apart import Stopped
    from fsdp_migrate.source.uses import ScanReport


_CODE: Final = "FM449"
_OF_SETTINGS: Final = "FM343"
_ACCELERATE: Final = "accelerate"
_ITS_CODES: Final = frozenset({"FM320", "FM427", _CODE})
"""Of its plugin and its variables in sources, and of calls of ``prepare``."""
_TESTS: Final = re.compile(r"^[ \t]*(?:async )?def test_|\bunittest\b", re.MULTILINE)
Kind = Literal["trained", "several", "untrained", "unclear", "held", "second"]
_KINDS: Final[tuple[Kind, ...]] = ("trained", "several", "untrained", "unclear", "held", "second")


@dataclass(frozen=True)
class PreparedApart:
    """Where Accelerate is given a model alone: one that is trained, one that is not, and others."""

    trained: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    """Where a call is given several models, or one of several that one optimizer holds."""
    untrained: tuple[str, ...] = ()
    """Of models that no optimizer holds: in files that only infer, and frozen ones beside a trained one."""
    unclear: tuple[str, ...] = ()
    """In files without an optimizer: the model may be trained by another file's, or not at all."""
    held: tuple[str, ...] = ()
    """Where an optimizer holds more than the model that it is given with."""
    second: tuple[str, ...] = ()
    """Where a second model is given, which may have none of the classes of layers that a config names."""
    not_loaded: tuple[str, ...] = ()
    """Where it is given models that rank 0 cannot load for all, and what of them."""
    torn: tuple[str, ...] = ()
    """Where it is given models whose tied weights come apart where rank 0 loads for all."""
    ignored: tuple[str, ...] = ()
    """Where its plugin is told to ignore modules, and rank 0 loads for all."""


def find_prepared_apart(
    paths: Iterable[str | os.PathLike[str]],
    report: ScanReport | None = None,
    frameworks: Iterable[str] = ("accelerate",),
) -> PreparedApart:
    """Return the places at and below paths where ``accelerator.prepare`` gets a model alone, as DDP takes it.

    Args:
        paths: Files and folders.
        report: What was found in them: what gets a comment (FM449) is left out.
        frameworks: Whose configs and launch lines were found: HF's Trainer prepares its models itself.

    Raises:
        SourceError: There is nothing at a path.

    Example:
        >>> find_prepared_apart(["fsdp_migrate/source"]).trained
        ()
    """
    uses = report.uses if report else ()
    told = {f"{use.path}:{use.line}" for use in uses if use.code == _CODE}
    settings = {f"{use.path}:{use.line}" for use in uses if use.code == _OF_SETTINGS}
    found: dict[Kind, list[str]] = {}
    codes: dict[Path, str] = {}
    every, is_asked = list(paths), _asks_accelerate(report, frameworks)
    for path in find_sources(every) if is_asked else ():
        try:
            code = read_source(path)
        except FSDPMigrateError:
            continue
        if is_a_test(path) and _TESTS.search(code):  # they run by themselves, whatever a config asks for
            continue
        codes[path] = code
    lines = {path: _lines(code, str(path)) for path, code in codes.items()}
    plain = launched_otherwise([path for path in lines if lines[path]], codes, every)
    for path in (each for each in lines if each not in plain):
        for number, kind in sorted(lines[path].items()):
            if (place := f"{path}:{number}") not in told:
                found.setdefault(kind, []).append(place)
    ignored = (place for place in find_ignored(every) if place not in settings)
    not_loaded, torn = find_not_loaded(every)
    kinds = {kind: tuple(found.get(kind, ())) for kind in _KINDS}
    return PreparedApart(**kinds, not_loaded=not_loaded, torn=torn, ignored=tuple(ignored))


def _asks_accelerate(report: ScanReport | None, frameworks: Iterable[str]) -> bool:
    """Tell whether anything asks Accelerate for FSDP: a source, or what configs and launch lines are of.

    So do sources that are taken for Accelerate's by a launch line whose config is not here. Of one that
    cannot be converted the framework is not known: it may be Accelerate's.
    """
    names = {name.strip() for each in frameworks for name in each.split(",")}
    uses = report.uses if report else ()
    names |= report.frameworks if report else frozenset()
    return not names.isdisjoint({_ACCELERATE, ""}) or any(use.code in _ITS_CODES for use in uses)


def _kind(code: str) -> Kind:
    if has_optimizer(code):
        return "trained"
    return "untrained" if only_infers(code) else "unclear"


def _lines(code: str, path: str) -> dict[int, Kind]:
    """Return the lines of calls at which Accelerate's FSDP2 stops, and of which kind each is."""
    if not prepares(code):
        return {}
    try:
        source = Source(code, path)
        kind = _kind(code)
        kinds: dict[Stopped, Kind] = {
            "refused": kind,
            "refused alone": "unclear" if kind == "trained" else kind,
            "not trained": "untrained" if kind == "trained" else kind,
            "several": "untrained" if kind == "untrained" else "several",
            "holds more": "held",
            "second": "second",
        }
        return {source.position(call)[0]: kinds[why] for call, why in stopped_calls(source)}
    except (FSDPMigrateError, RecursionError):  # Python 2, or none
        lines = [n for n, line in enumerate(code.splitlines(), 1) if _is_alone(line)]
        return dict.fromkeys(lines, _kind(code))


def _is_alone(line: str) -> bool:
    return re.search(MODEL_ALONE, line) is not None and not line.lstrip().startswith("#")
