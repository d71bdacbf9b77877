"""What configs and shell scripts around the sources ask frameworks for: FSDP1, or FSDP2 already.

They are read only where a source has something that they decide on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypedDict

from fsdp_migrate.adapters.conversion.dockerfiles import is_dockerfile
from fsdp_migrate.errors import SourceError
from fsdp_migrate.source.files import (
    MAYBE_CONFIGS,
    SETTINGS,
    find_sources,
    is_shell,
    read_source,
)
from fsdp_migrate.source.notebook_settings import NOTEBOOK, asked_in_notebook
from fsdp_migrate.source.shown_commands import PAGES, Scripts, is_page, shown_commands
from fsdp_migrate.text_files import newest_backup


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_TURNED: Final = re.compile(r"^[ \t]*# fsdp-migrate: FM|\bfsdp_migrate\b", re.MULTILINE)
"""What ``rewrite`` writes into a source: its comments, and the imports of what takes FSDP1's place."""
_TEMPLATES: Final = frozenset({".j2", ".jinja", ".template", ".tmpl"})
_WINDOWS: Final = frozenset({".bat", ".cmd"})
_SAID: Final = re.compile(r"^[ \t]*(?:@?rem\b|::).*$", re.MULTILINE | re.IGNORECASE)
"""What such scripts say to readers alone."""
_BESIDE: Final = (
    frozenset({NOTEBOOK, ".cfg", ".dockerfile", ".ini", ".lsf", ".ps1", ".toml"})
    | PAGES
    | _TEMPLATES
    | _WINDOWS
)
_MOST: Final = 1_000_000
"""Larger files hold data."""
# `NAME=true`, `export NAME: "true"`, `- name: NAME` with its value below, `ENV NAME true`, `{"NAME": flag}`,
# `environ["NAME"] = "true"`: Accelerate takes `true` alone for on. What a source asks of it is no answer.
SWITCHED: Final = (
    r"\bACCELERATE_USE_FSDP(?:[ ]+(?i:true)\b|(?:['\"]?\]?\s*(?:=(?!=)|:)|['\"]?[\s,]+['\"]?value['\"]?\s*:"
    r"|['\"]\s*,(?![^\n]*[=!]=))"
    r"\s*(?:['\"]?(?i:true)\b|['\"]?\$|(?!None\b|False\b)[A-Za-z_][\w.]*\s*[(\[,}\n]|f['\"]))"
)
ASKS_HF: Final = re.compile(
    r"\bfsdp\b['\"]?[\s:=,\[\-]+[^\n#]{0,60}?\b(?:full_shard|shard_grad_op|hybrid_shard)"
    r"|\bdistributed_type['\"]?\s*:\s*['\"]?FSDP\b|--use[_-]fsdp\b|--fsdp[ =]+['\"]?\$"
    rf"|{SWITCHED}"
)
"""What asks Hugging Face's Trainer for FSDP: its own words, in any file, or what asks Accelerate."""
ASKS_ACCELERATE: Final = re.compile(
    rf"\bdistributed_type['\"]?\s*:\s*['\"]?FSDP\b|--use[_-]fsdp\b|{SWITCHED}"
)
"""What asks Accelerate for FSDP: its config, a launch line, or the environment."""
LAUNCHES_IT: Final = "launch_command"
"""Accelerate's function that starts a script, and is given what its parser would make of flags."""
ASKS_LAUNCHER: Final = re.compile(
    r"(?:[(,.]\s*use_fsdp\s*=|['\"]use_fsdp['\"]\]?\s*[:=])\s*(?!=|(?:False|None|0)\b)\w"
)
"""What asks it for FSDP, in a file that calls it: ``Namespace(use_fsdp=True)``."""
ASKS_FABRIC: Final = re.compile(
    r"\b(?:lightning\.fabric|lightning_fabric)\.strategies\.(?:\w+\.)*FSDPStrategy\b"
    r"|_target_['\"]?\s*:\s*['\"]?(?:lightning|lightning_fabric)\.(?:\w+\.)*Fabric\b"
    r"[\s\S]{0,400}?\bstrategy['\"]?\s*:\s*['\"]?fsdp\b"
)
"""What asks Fabric for FSDP, in a config from which hydra makes it."""
ASKS_LIGHTNING: Final = re.compile(
    r"\bFSDPStrategy\b|\bDDPFullyShardedNativeStrategy\b|\bstrategy['\"]?\s*[:=]\s*['\"]?fsdp"
    r"|--(?:trainer\.)?strategy[= ]+['\"]?fsdp"
)
ASKS_BY_WORD: Final = re.compile(
    r"\bstrategy['\"]?\s*[:=]\s*['\"]?fsdp(?:_cpu_offload)?\b|--(?:\w+\.)?strategy[= ]+['\"]?fsdp"
)
"""What asks for Lightning's strategy by its word, in a config or on a command line."""
ASKS_COMPOSER: Final = re.compile(
    r"\bfsdp_config['\"]?\]?\s*[:=](?!\s*(?:None|null|Optional)\b)"
    r"|\bparallelism_config['\"]?\]?\s*[:=][\s\S]{0,60}?\bfsdp\b"
)
"""What asks Composer for FSDP, beside what else is Composer's."""
_LAUNCHED_BY: Final = (
    r"\baccelerate(?:[ ]+|\.commands\.|['\"], *['\"])launch\b(?:[^\n\\]|\\.|\\\n)*?"
    r"--config[_-]file(?:[ ]*=[ ]*|[ ]+|['\"], *)['\"]?"
)
# A config of Accelerate's that a launch names, and that speaks of FSDP by its name alone.
_NAMED: Final = re.compile(rf"{_LAUNCHED_BY}(?P<name>[^\s'\",\]]*(?i:fsdp)[^\s'\",\]]*)")
# One whose name says nothing, and no variable.
_NAMED_OTHERWISE: Final = re.compile(
    rf"{_LAUNCHED_BY}(?P<name>(?![^\s'\",\]]*(?i:fsdp|deepspeed|ds_|zero|ddp|multi_?gpu|single|_cpu|tpu|megatron))"
    r"[\w./~-]+(?![\w./~$<{-]))"
)
_VARIABLE: Final = re.compile(r"\$[{(]?(?P<variable>[A-Za-z_]\w*)[})]?")
# `export NAME="text"`, `NAME ?= text`, `local NAME=${1:-text}`.
_SET: Final = (
    r"^[ \t]*(?:(?:declare|export|local|readonly|set|typeset)[ \t]+)?{}[ \t]*[:?]?=[ \t]*['\"]?"
    r"(?:\$\{{\w+:?[-=])?['\"]?(?P<value>[^\s'\"#;]*[^\s'\"#;}}])"
)
_SPEAKS: Final = re.compile(r"^[^#\n]*(?i:fsdp)", re.MULTILINE)
_BY_ACCELERATE: Final = re.compile(
    r"^[ \t]*(?:from|import)[ \t]+(?:accelerate|transformers|trl)\b", re.MULTILINE
)
_NAMES_FSDP2: Final = re.compile(r"(?i)fsdp[_-]?v?2(?!\d*[_-]?(?:gpu|node|proc))")
_BY_LAUNCH: Final = frozenset({ASKS_HF, ASKS_ACCELERATE})
_ACCELERATES: Final = re.compile(rb"^distributed_type\s*:\s*['\"]?FSDP\b", re.MULTILINE)
_FABRIC: Final = re.compile(r"\b_target_['\"]?\s*:\s*['\"]?(?:\w+\.)*Fabric\b")
COMMENT: Final = re.compile(r"^[ \t]*(?:#|//).*$", re.MULTILINE)
"""What configs and scripts say to readers alone."""
_IS_NEW: Final = re.compile(
    r"\b(?i:fsdp_version)['\"]?\]?\s*(?:[:=, ]|value\s*:)\s*['\"]?2"
    r"|['\"]version['\"]\s*:\s*2|^[ \t]+version\s*:\s*2"
    r"|\bModelParallelStrategy\b",
    re.MULTILINE,
)


def asks(text: str, pattern: re.Pattern[str]) -> bool:
    """Tell whether a text asks a framework for FSDP1, and not for FSDP2.

    Example:
        >>> asks('--fsdp "full_shard auto_wrap"', ASKS_HF), asks("strategy: fsdp", ASKS_LIGHTNING)
        (True, True)
    """
    if pattern.search(text) is None:
        return False
    told = COMMENT.sub("", text)
    return pattern.search(told) is not None and _IS_NEW.search(told) is None


def asked_around(paths: Iterable[str | os.PathLike[str]], pattern: re.Pattern[str]) -> bool:
    """Tell whether a config, a shell script or a command shown in a page asks a framework for FSDP1."""
    named: set[str] = set()
    is_new, every = False, list(paths)
    for path, text in settings_around(every):
        # `strategy: fsdp` in a folder of hydra's from which it makes a Fabric is none of a Trainer's.
        if asks(text, pattern) and not (pattern is ASKS_LIGHTNING and _is_fabrics(path)):
            return True
        if pattern in _BY_LAUNCH and "config" in text:
            told = COMMENT.sub("", text)
            named.update(name for each in _NAMED.finditer(told) for name in _written_out(each["name"], told))
            is_new = is_new or _IS_NEW.search(told) is not None
    return bool(named) and not is_new and _is_elsewhere(every, named)


def configs_elsewhere(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the configs of Accelerate's that launch lines name and that are in no folder here.

    Only those with FSDP in their names: what others ask for is not known.

    Example:
        >>> configs_elsewhere(["fsdp_migrate/source"])
        []
    """
    return _missing(list(paths), _NAMED, also_fsdp2=False)


def configs_unknown(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the missing configs of Accelerate's that launch lines name, and whose names say nothing.

    Only where a source under Accelerate or another launch line or config speaks of FSDP.

    Example:
        >>> configs_unknown(["fsdp_migrate/source"])
        []
    """
    every = list(paths)
    found = _missing(every, _NAMED_OTHERWISE, also_fsdp2=True)
    return found if found and _shows_fsdp(every) else []


class MissingConfigs(TypedDict):
    """The configs that launch lines name and that are not here, by whether their names ask for FSDP."""

    elsewhere: list[str]
    unknown: list[str]


def missing_configs(paths: Iterable[str | os.PathLike[str]]) -> MissingConfigs:
    """Return both kinds of configs that are not here.

    Example:
        >>> missing_configs(["fsdp_migrate/source"])
        {'elsewhere': [], 'unknown': []}
    """
    every = list(paths)
    return {"elsewhere": configs_elsewhere(every), "unknown": configs_unknown(every)}


def _missing(paths: list[str | os.PathLike[str]], pattern: re.Pattern[str], *, also_fsdp2: bool) -> list[str]:
    """Return what launch lines name that is in no folder here, each with the first place that names it."""
    found: dict[str, str] = {}
    for path, text in settings_around(paths):
        told = COMMENT.sub("", text) if "config" in text else ""
        for each in pattern.finditer(told) if also_fsdp2 or _IS_NEW.search(told) is None else ():
            line = told.count("\n", 0, each.start("name")) + 1
            # Of pages and notebooks the commands alone were read.
            place = f"{path}" if path.suffix in {NOTEBOOK, *PAGES} else f"{path}:{line}"
            for name in () if _is_written(each["name"], told) else _written_out(each["name"], told):
                found.setdefault(name, place)
    return [f"{name} ({place})" for name, place in found.items() if _is_elsewhere(paths, [name])]


def _is_written(name: str, script: str) -> bool:
    """Tell whether a script writes a file before it names it: ``cat > "$NAME" <<EOF``."""
    variable = _VARIABLE.fullmatch(name)
    word = re.escape(name) if variable is None else rf"\$\{{?{variable['variable']}\b\}}?"
    return re.search(rf"(?:>|\btee\b)[ \t]*[\"']?{word}(?![\w./-])", script) is not None


def _written_out(name: str, script: str) -> list[str]:
    """Return what a config may be called: with what its script puts into the variable of its name."""
    used = _VARIABLE.search(name)
    if used is None:
        return [name]
    set_to = re.finditer(_SET.format(used["variable"]), script, re.MULTILINE)
    found = [name.replace(used[0], each["value"]) for each in set_to]
    is_told = found and not any("$" in each.rpartition("/")[2] for each in found)
    return list(dict.fromkeys(found)) if is_told else [name]


def _shows_fsdp(paths: list[str | os.PathLike[str]]) -> bool:
    if asked_around(paths, ASKS_HF):
        return True
    sources = (_source_of(path) for path in find_sources(paths))
    return any(_BY_ACCELERATE.search(text) and _SPEAKS.search(text) for text in sources)


def _source_of(path: Path) -> str:
    """Return a source's text; nothing of one that cannot be read, which is said where it is scanned."""
    try:
        return read_source(path)
    except SourceError:
        return ""


def _is_elsewhere(paths: Iterable[str | os.PathLike[str]], named: Iterable[str]) -> bool:
    """Tell whether one of the configs that launches name is in no folder here: it is the machine's own."""
    here = {path.name for path in find_sources(paths, SETTINGS | MAYBE_CONFIGS | _BESIDE)}
    older = (name.rpartition("/")[2] for name in named if not _NAMES_FSDP2.search(name))
    return any(name not in here for name in older)


def fsdp2_around(paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether a config or a shell script at or below paths asks a framework for FSDP2."""
    return any(_IS_NEW.search(COMMENT.sub("", text)) is not None for _, text in settings_around(paths))


def settings_around(paths: Iterable[str | os.PathLike[str]]) -> Iterator[tuple[Path, str]]:
    """Yield the configs and shell scripts at and below paths, and what the cells of notebooks say.

    Of one that ``config --write`` has turned before the sources, the kept copy is read: what these need is
    the same in either order.
    """
    every = list(paths)
    scripts = Scripts(every)
    is_done: bool | None = None
    for path in find_sources(every, SETTINGS | MAYBE_CONFIGS | _BESIDE) if every else ():
        kept = newest_backup(path)
        if kept is not None and is_done is None:
            is_done = _are_sources_turned(every)
        text = _text_of(path, path if kept is None or is_done else kept, scripts)
        if text is not None:
            yield path, text


def _are_sources_turned(paths: Iterable[str | os.PathLike[str]]) -> bool:
    """Tell whether ``rewrite --write`` was here: a copy lies beside a source, or its words stand in one."""
    return any(newest_backup(each) or _TURNED.search(_source_of(each)) for each in find_sources(paths))


def _text_of(path: Path, read: Path, scripts: Scripts) -> str | None:
    """Return what a file, or the copy that is read for it, says that may ask for something.

    What is wrong with one is said elsewhere.
    """
    try:
        if path.suffix == NOTEBOOK:  # they hold pictures, too
            return asked_in_notebook(read)
        if read.stat().st_size > _MOST or not _may_ask(path):
            return None
        text = read_source(read)
        if path.suffix in _WINDOWS:
            return _SAID.sub("", text)
        return shown_commands(path, text, scripts) if path.suffix in PAGES else text
    except (SourceError, OSError):
        return None


def _may_ask(path: Path) -> bool:
    if path.suffix in PAGES:
        return is_page(path)
    is_other = is_shell(path) or is_dockerfile(path) or path.suffix in _BESIDE
    return path.suffix in SETTINGS or (is_other and path.is_file()) or is_accelerates(path)


def asks_by_key(names: Iterable[str]) -> re.Pattern[str]:
    """Return what asks Lightning for FSDP by other keys than ``strategy``.

    Example:
        >>> asks("distributed_backend: fsdp", asks_by_key(["distributed_backend"]))
        True
    """
    keys = "|".join(map(re.escape, sorted(names)))
    return re.compile(rf"\b(?:{keys})['\"]?\s*[:=]\s*['\"]?fsdp")


def is_accelerates(path: Path) -> bool:
    """Tell whether a file that is not named as a config is one of Accelerate's, which asks for FSDP."""
    # A pipe, too, may have no suffix: it would be read for ever.
    is_one = path.suffix in MAYBE_CONFIGS and path.is_file()
    return is_one and _ACCELERATES.search(path.read_bytes()) is not None


def _is_fabrics(path: Path) -> bool:
    """Tell whether a config, or one beside it that it takes defaults of, is what hydra makes a Fabric of."""
    if path.suffix not in {".yaml", ".yml"}:
        return False
    beside = [each for each in sorted(path.parent.iterdir()) if each.suffix == path.suffix and each.is_file()]
    texts = [read_source(each) for each in beside if each.stat().st_size <= _MOST]
    return any(map(_FABRIC.search, texts)) and not any("Trainer" in text for text in texts)
