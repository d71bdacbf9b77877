"""A Dockerfile: what the commands and variables in it become. It is not changed."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.conversion.manifests import commands_become


if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.adapters.engine.settings import Settings


_INSTRUCTION = re.compile(r"[ \t]*(ARG|CMD|ENTRYPOINT|ENV|RUN)[ \t]+(.*)", re.IGNORECASE | re.DOTALL)
_NAMES = frozenset({"Containerfile", "Dockerfile"})
_COMMENT = re.compile(r"^[ \t]*#.*\n?", re.MULTILINE)


def is_dockerfile(path: Path) -> bool:
    """Tell whether a file says how an image is built.

    Example:
        >>> from pathlib import Path
        >>> is_dockerfile(Path("Dockerfile")), is_dockerfile(Path("gpu.dockerfile"))
        (True, True)
    """
    return path.name.split(".")[0] in _NAMES or path.suffix.lower() == ".dockerfile"


def dockerfile_becomes(text: str, settings: Settings | None = None) -> str:
    r"""Return what the commands and variables of a Dockerfile become, in words; nothing where none is FSDP's.

    Example:
        >>> dockerfile_becomes('FROM a\nCMD ["accelerate", "launch", "--use_fsdp", "t.py"]\n')[:52]
        'The command in `CMD, line 2` becomes `accelerate lau'
    """
    document = json.dumps({"image": list(_read(text))})
    said = commands_become(document, is_json=True, settings=settings)
    return re.sub(r"`image\.\d+\.(\w+, line \d+)(?:\.\d+)?`", r"`\1`", said)


def _read(text: str) -> list[dict[str, Any]]:
    """Return each instruction with a command, and the variables that are set."""
    found: list[dict[str, Any]] = []
    line = 1
    for whole in re.split(r"(?<!\\)\n", text):
        match = _INSTRUCTION.match(_COMMENT.sub("", whole))
        if match is not None:
            name, rest = match[1].upper(), match[2].strip()
            given = _variables(rest) if name in {"ARG", "ENV"} else None
            found.append({f"{name}, line {line}": _command(rest)} if given is None else given)
        line += whole.count("\n") + 1
    return found


def _command(rest: str) -> Any:
    try:
        return json.loads(rest) if rest.startswith("[") else rest
    except ValueError:
        return rest


def _variables(rest: str) -> dict[str, str]:
    """Return ``A=1 B=2``, or ``A 1``."""
    try:
        words = shlex.split(rest.replace("\\\n", " "))
    except ValueError:
        return {}
    if len(words) > 1 and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    pairs = (word.partition("=") for word in words)
    return {name: value for name, sign, value in pairs if sign}
