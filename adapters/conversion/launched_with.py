"""What a project says of HF Trainer beside a config: ``fsdp`` in a launch line, and the version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.flags import read_flags
from fsdp_migrate.adapters.conversion.one_look import kept_in_a_look
from fsdp_migrate.adapters.conversion.project_imports import files_below, project_root, text_if_there
from fsdp_migrate.adapters.conversion.shell import commands_of, is_script
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.versions import installed_versions, version_numbers


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_REQUIREMENTS = ("requirements*.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment*.y*ml")
# What keeps a later version out: a lower bound does not.
_BOUND = re.compile(
    r"(?<![\w.-])transformers(?:\[[\w,\s-]*\])?\s*[^\n\"';#]*?(?:===?|~=|<=?|(?<![<>=!~])=)\s*[\d.]"
)


def words_given(folder: Path, name: str) -> tuple[str, str] | None:
    """Return the words of ``--fsdp`` beside which launch lines of a project name a config, and a place.

    None where no line is seen that names it, where one has a variable there, or where two differ.
    """
    root = project_root(folder / name)
    found = list(_given(root, name)) if root is not None else []
    is_one = len({words for words, _ in found}) == 1 and "$" not in found[0][0]
    return found[0] if is_one else None


def _given(root: Path, name: str) -> Iterator[tuple[str, str]]:
    for path, text in _scripts(root):
        if name not in text:
            continue
        for start, end in commands_of(text):
            try:
                flags = {flag.name: flag.value or "" for flag in read_flags(text[start:end])}
            except ConfigError:
                continue
            if flags.get("fsdp_config", "").rpartition("/")[2] == name and flags.get("fsdp"):
                line = text.count("\n", 0, start) + 1
                yield flags["fsdp"], f"{path.relative_to(root)}:{line}"


@kept_in_a_look
def _scripts(root: Path) -> tuple[tuple[Path, str], ...]:
    found = files_below(root, lambda path: is_script(path.suffix, ""))
    return tuple((path, text_if_there(path)) for path in found)


def installed_transformers(folder: Path) -> str:
    """Return which transformers is installed; nothing where a requirement asks for another one, or it is not.

    Example:
        >>> from pathlib import Path
        >>> version_numbers(installed_transformers(Path("/absent"))) > (0,)
        True
    """
    version = dict(installed_versions()).get("transformers", "")
    root = project_root(folder / "config")
    if not version_numbers(version) or root is None:
        return version
    texts = (text_if_there(path) for pattern in _REQUIREMENTS for path in root.glob(pattern))
    return "" if any(map(_BOUND.search, texts)) else version
