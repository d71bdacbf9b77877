"""Commands in a manifest, such as Kubernetes', SkyPilot's or Docker's: what each becomes.

A command stands there in lists (``command`` and ``args``) or in a text (``run: |``). Neither is changed: what
it becomes is said.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.conversion.command import convert_script
from fsdp_migrate.adapters.conversion.environment import told_by_environment
from fsdp_migrate.adapters.conversion.here_documents import holds_settings
from fsdp_migrate.adapters.conversion.text import convert_text, read_documents
from fsdp_migrate.adapters.document.nodes import Reference, plain
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.errors import ConfigError, NothingToConvertError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Iterator


_VARIABLE = re.compile(r"ACCELERATE_USE_FSDP|FSDP_[A-Z_]+")
_FLAG = re.compile(r"--(?:use[-_])?fsdp")
_NEEDED = frozenset({"FM356", "FM358"})
"""Of another file that is to be converted, and of the versions that read what is written."""
_CHANGING = frozenset({"FM343", "FM346", "FM353", "FM355"})
"""Of what trains otherwise, with what to do about it."""
_WRITES = re.compile(r"(?<!<)<<-?[ \t]*[\"'\\]?[A-Za-z_]")
_PLAIN_WORD = re.compile(r"[\w@%+=:,./${}()-]+\Z")


def commands_become(text: str, *, is_json: bool, settings: Settings | None = None) -> str:
    """Return what the commands with FSDP flags in a manifest become, in words; nothing where there are none.

    Example:
        >>> commands_become('{"args": ["accelerate", "launch", "--use_fsdp", "t.py"]}', is_json=True)[:47]
        'The command in `args` becomes `accelerate launc'
    """
    said: list[str] = []
    for document in read_documents(text.removeprefix("\ufeff"), is_json=is_json):
        given, several = _environment_of(plain(document))
        handed_on = {name: f"${name}" if name in several else value for name, value in given.items()}
        told = replace(settings or Settings(), environment=handed_on)
        for path, command in _commands(plain(document)):
            try:
                done = convert_script(command, settings=told)
            except ConfigError:
                continue
            lines = _lines_changed(command, done.text)
            if done.is_changed and lines:
                said.append(f"The command in `{path}` becomes `{' '.join(lines)}`.")
                said += [f.message for f in done.findings if f.code in _NEEDED]
                said += [f"{f.message} {f.hint}" for f in done.findings if f.code in _CHANGING and f.hint]
        said += list(_configs(plain(document)))
        _, findings = told_by_environment(
            "\n".join(f"{name}={_quoted(value)}" for name, value in given.items()), settings
        )
        said += [f"{f.message} {f.hint or ''}".rstrip() for f in findings]
    return " ".join(dict.fromkeys(said))  # a script of several variants says a thing once


def _lines_changed(before: str, after: str) -> list[str]:
    """Return the commands that are not as before, each with all lines that it is continued over."""
    known = set(before.splitlines())
    found: list[str] = []
    parts: list[str] = []
    for line in after.splitlines():
        parts.append(line)
        if not line.rstrip().endswith("\\"):
            is_new = any(part not in known for part in parts)
            found += [part.strip().removesuffix("\\").rstrip() for part in parts if is_new]
            parts = []
    return found


def _commands(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield each command with FSDP flags and its path; lists of words as one command."""
    if isinstance(value, (str, Reference)):  # `${VARIABLE}` in a text is the shell's
        if _FLAG.search(str(value)):
            yield ".".join(path), str(value)
    elif isinstance(value, dict):
        names = [name for name in ("entrypoint", "command", "args") if _is_words(value.get(name))]
        words = [str(word) for name in names for word in value[name]]
        if any(map(_FLAG.match, words)) and not any(set(word) & set("\n;") for word in words):
            yield ".".join((*path, "` and `".join(names))), " ".join(map(_quoted, words))
            value = {name: inner for name, inner in value.items() if name not in names}
        for name, inner in value.items():
            yield from _commands(inner, (*path, str(name)))
    elif isinstance(value, list):
        if _is_words(value) and any(_FLAG.match(str(word)) for word in value):
            yield ".".join(path), " ".join(_quoted(str(word)) for word in value)
            return
        for index, inner in enumerate(value):
            yield from _commands(inner, (*path, str(index)))


def _configs(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Say which texts are configs, as the data of a ConfigMap are."""
    if isinstance(value, str) and "\n" in value and holds_settings(value):
        yield from _config(value, ".".join(path))
    for name, inner in value.items() if isinstance(value, dict) else ():
        yield from _configs(inner, (*path, str(name)))
    for index, inner in enumerate(value if isinstance(value, list) else ()):
        yield from _configs(inner, (*path, str(index)))


def _config(text: str, place: str) -> Iterator[str]:
    """Say of a text with settings that it is a config, or writes one, or why nothing becomes of it."""
    is_script = _WRITES.search(text) is not None
    if is_script and _FLAG.search(text):
        return  # its commands are told, and what they write with them
    try:
        done = convert_script(text) if is_script else convert_text(text)
    except NothingToConvertError:
        return
    except (ConfigError, UnsupportedFeatureError) as error:
        yield f"The text in `{place}` has settings of FSDP, and is left as it is: {error}"
        return
    whose = " and ".join(dict.fromkeys(block.framework for block in done.blocks))
    if done.is_changed and whose:
        does = "writes" if is_script else "is"
        yield (
            f"The text in `{place}` {does} a config ({whose}): put it into a file, convert that with "
            "`fsdp-migrate config`, and put the outcome there."
        )


def _environment(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the variables that a manifest sets: ``NAME: value``, ``- NAME=value``, ``- name: NAME``."""
    if isinstance(value, dict):
        if _VARIABLE.fullmatch(str(value.get("name"))) and "value" in value:
            yield str(value["name"]), str(value["value"])
        for name, inner in value.items():
            if _VARIABLE.fullmatch(str(name)) and not isinstance(inner, (dict, list)):
                yield str(name), str(inner).lower() if isinstance(inner, bool) else str(inner)
            else:
                yield from _environment(inner)
    elif isinstance(value, list):
        for inner in value:
            is_text = isinstance(inner, (str, Reference))
            name, sign, given = str(inner).partition("=") if is_text else ("", "", "")
            if sign and _VARIABLE.fullmatch(name):
                yield name, given
            else:
                yield from _environment(inner)


def _environment_of(document: Any) -> tuple[dict[str, str], set[str]]:
    """Return these variables with their last values, and the names of those that have several."""
    found: dict[str, list[str]] = {}
    for name, value in _environment(document):
        found.setdefault(name, []).append(value)
    several = {name for name, values in found.items() if len(set(values)) > 1}
    return {name: values[-1] for name, values in found.items()}, several


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, (str, int, float, Reference)) for word in value)


def _quoted(word: str) -> str:
    return word if _PLAIN_WORD.match(word) else shlex.quote(word)
