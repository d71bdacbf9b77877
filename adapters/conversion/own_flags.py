"""Whose ``--fsdp`` it is, where the source of the script that a command starts is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.project_imports import text_if_there


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_OWN = r"\b(?:add_argument|option)\(\s*(?:[\"']-\w[\"']\s*,\s*)?[\"']--{}[\"']"
_DEFINES, _DEFINES_CONFIG = (re.compile(_OWN.format(name)) for name in ("fsdp", "fsdp[_-]config"))
# These take every argument of HF Trainer.
_HF_PARSER = re.compile(r"\b(?:HfArgumentParser|TrlParser|H4ArgumentParser)\b")
_ARGUMENTS = re.compile(r"\bTrainingArguments\b")
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+\.?([\w.]+)[ \t]+import|import[ \t]+([\w.]+))", re.MULTILINE)
_FARTHEST = 4
_MOST_IMPORTS = 40


def defines_fsdp(folder: Path, script: str) -> bool:
    """Tell whether a script has ``--fsdp`` for an argument of its own, which takes no ``--fsdp_config``.

    Args:
        folder: Where the command stands; the script may lie in a folder above.
        script: Its name, as the command has it: a variable before it stands for any folder.

    Example:
        >>> from pathlib import Path
        >>> defines_fsdp(Path("/absent"), "$HERE/train.py")
        False
    """
    path = _found(folder, script)
    if path is None:
        return False
    text = "\n".join([text_if_there(path), *_imported(path)])
    if _DEFINES.search(text) is None or _HF_PARSER.search(text):
        return False
    return not (_DEFINES_CONFIG.search(text) and _ARGUMENTS.search(text))


def _found(folder: Path, script: str) -> Path | None:
    name = script.strip("\"'")
    if not name.endswith(".py"):
        return None
    bare = re.sub(r"\A\$\{?\w+\}?/", "", name)
    parts = bare.split("/")
    # A variable may stand for a folder of which a part is there: `$ROOT/code/train.py` beside `train.py`.
    names = ["/".join(parts[at:]) for at in range(len(parts))] if bare != name else [bare]
    if any("$" in each for each in names[:1]):
        return None
    folders = (folder, *folder.absolute().parents[:_FARTHEST])
    return next((path for each in names for above in folders if (path := above / each).is_file()), None)


def _imported(path: Path) -> Iterator[str]:
    """Yield the sources beside a script that it imports, which may make its parser."""
    for match in list(_IMPORT.finditer(text_if_there(path)))[:_MOST_IMPORTS]:
        module = (match[1] or match[2]).replace(".", "/")
        for above in path.absolute().parents[:2]:
            if text := text_if_there(above / f"{module}.py"):
                yield text
