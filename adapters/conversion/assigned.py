"""What a finding says of a variable that the script itself sets: the line, the value, the file it names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.adapters.conversion.shell import assignments_of, in_folder_of
from fsdp_migrate.adapters.engine.base import elsewhere
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.findings import make_finding


if TYPE_CHECKING:
    from fsdp_migrate.findings import Finding


_FILE = re.compile(r"(?!-)[\w./-]+\.(?:json|ya?ml)\b")
_FOLDER = re.compile(r"\$\{?\w+\}?/")
_MOST = 3
_DEFAULT = re.compile(r"\$\{\w+:?-(.*)\}\Z")


def with_assignment(finding: Finding, text: str, settings: Settings | None = None) -> Finding:
    """Say of a variable that the script sets where it does, and to what, with the file that this names.

    Example:
        >>> from fsdp_migrate.findings import make_finding
        >>> print(with_assignment(make_finding("FM346", "fsdp", "$F is kept."), "F=full_shard").message)
        $F is kept. Line 1 sets the variable to `full_shard`.
        >>> print(with_assignment(make_finding("FM356", "x", "$F is another file."), "F=''").message)
        $F is another file. Line 1 leaves the variable empty at first.
    """
    variable = re.match(r"\$\{?(\w+)\}?", finding.message)
    is_told = finding.code in {"FM346", "FM356"} and variable is not None
    every = assignments_of(variable.group(1), text) if variable and is_told else []
    if not every:
        return finding
    rest = finding.message[variable.end() :].partition(" ")[0] if variable else ""
    message = _said(finding.message, every, "the variable" if rest else "it")
    if "$" in rest:  # a variable within the name: `config_$RANK.yaml` is one file or several
        return replace(finding, message=message)
    given = settings or Settings()
    names = list(dict.fromkeys(filter(None, (_file_of(value, rest, text) for _, value in every if value))))
    names = [name for name in names if not given.lacks_fsdp(name)] or names[:1]
    left = [name for name in names if not given.is_converted(name)]
    if names and (not left or (len(left) == 1 and given.refusal(left[0]) is not None)):
        return make_finding(*elsewhere((left or names)[0], given, finding.subject, message))
    if not left:
        return replace(finding, message=message, hint=finding.hint if every[0][1] else None)
    framework = "accelerate" if "config_file" in finding.subject else "hf"
    counts = re.search(r" --nodes[^`]*", finding.hint or "")
    options = f"{framework}{counts.group() if counts else ''}"
    # What is to be written into the file holds whatever the file is called.
    there = re.search(r", and write .*(?=\.\Z)", finding.hint or "")
    commands = " and ".join(f"`fsdp-migrate config {name} --from {options}`" for name in left[: _MOST + 1])
    return replace(finding, message=message, hint=f"{commands}{there.group() if there else ''}.")


def _said(message: str, every: list[tuple[int, str]], what: str) -> str:
    """Return what is said of a variable, with the lines that set it, and to what."""
    (line, value), also = every[0], _also(every)
    if not value:
        more = re.sub(r" to ", " sets it to ", also, count=1)
        return f"{message} Line {line} leaves the variable empty at first{more}."
    old, new = "is not set in this file: kept", f"is kept: line {line} sets {what} to `{value}`{also}"
    told = message.replace(old, new, 1)
    return told if told != message else f"{message} Line {line} sets the variable to `{value}`{also}."


def _file_of(value: str, rest: str, text: str) -> str:
    """Return the file that a variable's value names, with what stands behind the variable; or nothing."""
    default = _DEFAULT.match(value)
    given = default.group(1).strip("\"'") if default else value
    whole = f"{in_folder_of(given, text)}{rest}"
    file = _FILE.search(rest) or _FILE.search(_FOLDER.sub("", given))
    # Behind a `$ROOT/` that the script does not set it is below a folder that is not known here.
    return whole if _FILE.fullmatch(whole) else file.group().lstrip("/") if file else ""


def _also(given: list[tuple[int, str]]) -> str:
    """Name the other places that set a variable, or add to it, as far as they say something else."""
    others = [(line, value) for line, value in dict.fromkeys(given[1:]) if value and value != given[0][1]]
    return "".join(f", line {line} to `{value}`" for line, value in others[:_MOST])
