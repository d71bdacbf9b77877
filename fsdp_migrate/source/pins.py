"""Requirements that keep out what FSDP2 needs, such as ``torch==2.1.2``, or lack fsdp-migrate itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.source.files import NEVER
from fsdp_migrate.versions import PACKAGES


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.uses import ScanReport, Use


NEEDED = {
    "torch": (2, 6),
    "accelerate": (1, 6),
    "lightning": (2, 4),
    "pytorch-lightning": (2, 4),
    "transformers": (5, 0),
    "mosaicml": (0, 32),
}
"""From which version on a package runs FSDP2 in the way that this program writes it."""

_OF_TRAINERS_LAUNCHED = {"transformers": (4, 51)}
"""From which version on Hugging Face's Trainer runs FSDP2 where an Accelerate config asks for it.

Those before have Accelerate prepare the model without its optimizer, which it refuses under FSDP2.
"""

_OF_FRAMEWORKS = {
    "accelerate": ("accelerate",),
    "axolotl": ("accelerate", "transformers"),
    "composer": ("mosaicml",),
    "hf": ("accelerate", "transformers"),
    "lightning": ("lightning", "pytorch-lightning"),
}
_OF_CODES = {
    "FM319": ("lightning", "pytorch-lightning"),
    "FM320": ("accelerate",),
    "FM327": ("accelerate", "transformers"),
    "FM328": ("mosaicml",),
    "FM427": ("accelerate",),
    "FM428": ("accelerate", "transformers"),
    "FM429": ("lightning", "pytorch-lightning"),
}
_FILES = re.compile(
    r"^(requirements?.*\.(txt|in)|constraints.*\.txt|pyproject\.toml|setup\.(py|cfg)|environment.*\.ya?ml|Pipfile)$"
)
# A text of more spaces is a sentence.
_WORDS = 3
_NAMES = "|".join(sorted({*NEEDED, *PACKAGES}, key=len, reverse=True))
_PIN = re.compile(
    rf"(?<![\w.-])({_NAMES})(?:\[[\w,\s-]*\])?\s*\(?\s*((?:(?:===?|~=|!=|<=?|>=?|=)\s*[\w.*+!-]+\s*,?\s*)+)",
    re.IGNORECASE,
)
_BOUND = re.compile(r"(===?|~=|!=|<=?|>=?|=)\s*([\d.]+)(\.?\*)?")
_EXACT = re.compile(r"===?\s*(\d+(?:\.\d+)*)")
_MAX_BYTES = 1_000_000
_SETUP = re.compile(r"\s*(?:\w+\.)?setup\(")
_OURS = re.compile(r"\bfsdp[-_]migrate\b", re.IGNORECASE)


# Where loggers keep what a run had installed: nobody installs from it.
_LOGS = frozenset({"mlruns", "wandb"})


@dataclass(frozen=True)
class ExactPin:
    """A requirement for one version of a package."""

    path: str
    line: int
    package: str
    version: str


@dataclass(frozen=True)
class PinFound:
    """A requirement that excludes every version that FSDP2 needs."""

    path: str
    line: int
    package: str
    requirement: str
    needed: str

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {
            "path": self.path,
            "line": self.line,
            "package": self.package,
            "requirement": self.requirement,
            "needed": self.needed,
        }


def needed_by(framework: str) -> set[str]:
    """Return the packages that a framework needs in a version with FSDP2, and torch.

    Example:
        >>> sorted(needed_by("accelerate")), needed_by("")
        (['accelerate', 'torch'], {'torch'})
    """
    return {"torch", *_OF_FRAMEWORKS.get(framework, ())}


def packages_of(report: ScanReport, frameworks: Iterable[str]) -> set[str]:
    """Return the packages that what was found needs in a version with FSDP2; none if nothing was found.

    Args:
        report: What was found in sources.
        frameworks: Whose configs and launch lines were found.
    """
    names = {name.strip() for each in frameworks for name in each.split(",") if name.strip()}
    names |= report.frameworks & {"accelerate"}  # also where the config that asks for it is not here
    codes = {use.code for use in report.uses if not _is_said_alone(use)}
    if not names and not codes:
        return set()
    needed = [
        *(_OF_FRAMEWORKS.get(name, ()) for name in names),
        *(_OF_CODES.get(code, ()) for code in codes),
    ]
    return {"torch"}.union(*needed)


def has_trainers_launched(report: ScanReport, frameworks: Iterable[str]) -> bool:
    """Tell whether Hugging Face's Trainer gets FSDP of an Accelerate config.

    Args:
        report: What was found in sources.
        frameworks: Whose configs and launch lines were found.
    """
    return "transformers" in report.frameworks and any("accelerate" in each for each in frameworks)


def _is_said_alone(use: Use) -> bool:
    """Tell whether a use is words of a comment or a sentence, which nothing runs and nothing needs."""
    is_sentence = use.text.startswith("#") or use.text.count(" ") >= _WORDS
    return use.action == "mentioned" and is_sentence


def find_pins(
    paths: Iterable[str | os.PathLike[str]], packages: Iterable[str], *, has_trainers_launched: bool = False
) -> list[PinFound]:
    """Return the requirements at and below paths that keep out the versions that FSDP2 needs.

    Args:
        paths: Files and folders; files of requirements are known by their names.
        packages: The packages that matter here.
        has_trainers_launched: Whether Hugging Face's Trainer gets FSDP of an Accelerate config here.
    """
    needed = dict(_OF_TRAINERS_LAUNCHED if has_trainers_launched else {})
    needed |= {name.lower(): NEEDED[name.lower()] for name in packages if name.lower() in NEEDED}
    return [
        PinFound(path, line, package, f"{package}{bounds}", ".".join(map(str, needed[package])))
        for path, line, package, bounds in _requirements(paths)
        if package in needed and excludes(bounds, needed[package])
    ]


def find_exact_pins(paths: Iterable[str | os.PathLike[str]]) -> list[ExactPin]:
    """Return the requirements at and below paths for one version of a package that takes part in a migration.

    Example:
        >>> find_exact_pins(["fsdp_migrate"])
        []
    """
    return [
        ExactPin(path, line, package, exact[1])
        for path, line, package, bounds in _requirements(paths)
        if (exact := _EXACT.fullmatch(bounds))
    ]


def without_ours(paths: Iterable[str | os.PathLike[str]]) -> list[str] | None:
    """Return the files of requirements of a project that does not name fsdp-migrate, or None where one does.

    Where there is none at and below paths, those beside them count.

    Example:
        >>> without_ours(["pyproject.toml"]), without_ours(["fsdp_migrate/source"])
        (None, [])
    """
    given = [Path(path) for path in paths]
    files = list(_files(given))
    if not files:
        folders = dict.fromkeys(path.parent for path in given if path.parent.is_dir())
        beside = (each for folder in folders for each in sorted(folder.iterdir()))
        files = [each for each in beside if _FILES.match(each.name) and each.is_file()]
    files = [each for each in files if not each.name.startswith("constraints") and _installs(each, given)]
    if any(_OURS.search(line.partition("#")[0]) for path in files for line in _lines(path)):
        return None
    return [str(path) for path in files]


def _installs(path: Path, given: Iterable[Path]) -> bool:
    """Tell whether a file is the project's own: a ``setup.py`` may be a module, or a vendored package's."""
    if path.name != "setup.py":
        return True
    tops = {folder for top in given for folder in (top, top.parent)}
    is_near = not tops.isdisjoint({path.parent, path.parent.parent})
    return is_near and any(_SETUP.match(line) for line in _lines(path))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines() if path.stat().st_size <= _MAX_BYTES else []
    except OSError:
        return []


def _files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    for path in map(Path, paths):
        if path.is_file() and _FILES.match(path.name):
            yield path
        for folder, folders, names in os.walk(path) if path.is_dir() else ():
            folders[:] = sorted(name for name in folders if name not in NEVER | _LOGS)
            yield from (Path(folder, name) for name in sorted(names) if _FILES.match(name))


def _requirements(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[str, int, str, str]]:
    """Yield path, line, package and bounds of each requirement that is known here."""
    for path in _files(paths):
        for number, line in enumerate(_lines(path), 1):
            for match in _PIN.finditer(line.partition("#")[0]):
                yield str(path), number, match[1].lower(), match[2].strip().rstrip(",")


def excludes(bounds: str, needed: tuple[int, ...]) -> bool:
    """Tell whether a requirement keeps out ``needed`` and all that is newer.

    Example:
        >>> excludes("==2.1.2", (2, 6)), excludes(">=2.1", (2, 6)), excludes(">=2.0,<2.5", (2, 6))
        (True, False, True)
    """
    for sign, text, any_end in _BOUND.findall(bounds):
        version = tuple(int(part) for part in text.strip(".").split("."))
        length = len(version)
        if sign == "~=":
            # Up to, and without, the next number before the last.
            highest: tuple[float, ...] = (*version[:-1], float("inf"))
        elif sign in {"==", "===", "="}:
            highest = (*version, float("inf")) if any_end or length < len(needed) else version
        elif sign in {"<", "<="}:
            highest = version
        else:
            continue
        if highest < needed or (sign == "<" and version <= needed):
            return True
    return False
