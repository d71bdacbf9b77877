"""A Dockerfile: what the commands and variables in it become. It is not changed."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fsdp_migrate.adapters.engine.settings import Settings


_INSTRUCTION = re.compile(
    r"[ \t]*(?:ONBUILD[ \t]+|HEALTHCHECK\b[^\n]*?[ \t](?=CMD\b))?(ARG|CMD|COPY|ENTRYPOINT|ENV|RUN)[ \t]+(.*)",
    re.IGNORECASE | re.DOTALL,
)
_NAME = re.compile(r"(?:Containerfile|Dockerfile)(?:[._-].*)?\Z", re.IGNORECASE)
_COMMENT = re.compile(r"[ \t]*#")
_GOES_ON = re.compile(r"\\[ \t]*\Z")
_OTHERS = frozenset({".ipynb", ".json", ".md", ".py", ".sh", ".toml", ".yaml", ".yml"})
_HERE = re.compile(r"(?<!<)<<-?[ \t]*([\"']?)(\w+)\1(?:[ \t]|\Z)")


def is_dockerfile(path: Path) -> bool:
    """Tell whether a file says how an image is built.

    Example:
        >>> from pathlib import Path
        >>> is_dockerfile(Path("Dockerfile")), is_dockerfile(Path("gpu.dockerfile"))
        (True, True)
    """
    is_named = _NAME.match(path.name) is not None and path.suffix.lower() not in _OTHERS
    return is_named or path.suffix.lower() == ".dockerfile"


def dockerfile_becomes(text: str, settings: Settings | None = None) -> str:
    r"""Return what the commands and variables of a Dockerfile become, in words; nothing where none is FSDP's.

    Example:
        >>> dockerfile_becomes('FROM a\nCMD ["accelerate", "launch", "--use_fsdp", "t.py"]\n')[:52]
        'The command in `CMD, line 2` becomes `accelerate lau'
    """
    # Who only asks whether a file is one need not load what reads configs.
    from fsdp_migrate.adapters.conversion.manifests import commands_become

    document = json.dumps({"image": list(_read(text))})
    said = commands_become(document, is_json=True, settings=settings)
    return re.sub(r"`image\.\d+\.(\w+, line \d+)(?:\.\d+)?`", r"`\1`", said)


def _read(text: str) -> list[dict[str, Any]]:
    """Return each instruction with a command, and the variables that are set."""
    found: list[dict[str, Any]] = []
    entry: dict[str, Any] = {}
    for line, whole in _instructions(text):
        match = _INSTRUCTION.match(whole)
        if match is None:
            entry = {} if whole.lstrip()[:5].upper() == "FROM " else entry
            continue
        name, rest = match[1].upper(), match[2].strip()
        given = _variables(rest) if name in {"ARG", "ENV"} else None
        command = {f"{name}, line {line}": _command(rest)} if given is None else given
        found.append(command)
        if name == "ENTRYPOINT":
            entry = command
        elif name == "CMD" and entry:
            _hand_on(entry, command)
    return found


def _hand_on(entry: dict[str, Any], command: dict[str, Any]) -> None:
    """Put the words of a ``CMD`` behind those of the ``ENTRYPOINT`` that they are handed to."""
    ((place, first),), ((_, words),) = entry.items(), command.items()
    if isinstance(first, list) and isinstance(words, list):
        command.clear()
        entry[place] = [*first, *words]


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Yield each instruction with its line, as Docker reads it: comments within it are none of it."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        start, whole = at, ""
        while at < len(lines):
            line = lines[at]
            at += 1
            is_none = _COMMENT.match(line) or not line.strip()
            whole += "" if is_none else _GOES_ON.sub(" ", line)
            if not whole or not (is_none or _GOES_ON.search(line)):
                break
        for here in _HERE.finditer(whole):
            end = next((n for n in range(at, len(lines)) if lines[n].strip() == here[2]), at - 1)
            whole = "\n".join((whole, *lines[at : end + 1]))
            at = end + 1
        if whole:
            yield start + 1, whole


def _command(rest: str) -> Any:
    if here := _HERE.search(rest):
        # What stands there is a script, or a file that is copied: the line before it is neither.
        first, _, inner = rest.partition("\n")
        return inner.rpartition("\n")[0] if inner.rpartition("\n")[2].strip() == here[2] else first
    try:
        return json.loads(rest) if rest.startswith("[") else rest
    except ValueError:
        return rest


def _variables(rest: str) -> dict[str, str]:
    """Return ``A=1 B=2``, or ``A 1``."""
    try:
        words = shlex.split(rest)
    except ValueError:
        return {}
    if len(words) > 1 and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    pairs = (word.partition("=") for word in words)
    return {name: value for name, sign, value in pairs if sign}
