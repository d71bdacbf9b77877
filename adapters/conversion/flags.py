"""The flags of a shell command: their names and values, and where both stand in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsdp_migrate.adapters.conversion.shell import OPERATOR, Word, launch_of, words_of


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: its name, its value (None where it has none), and where both stand in the command."""

    name: str
    value: str | None
    start: int
    end: int
    value_start: int


def read_flags(command: str) -> list[Flag]:
    """Return the flags of a command, ``--name value`` and ``--name=value``; several words are one value.

    Raises:
        ConfigError: A quote is not closed.

    Example:
        >>> [(flag.name, flag.value) for flag in read_flags("python x.py --fsdp 'a b' --bf16")]
        [('fsdp', 'a b'), ('bf16', None)]
    """
    words = words_of(command)
    script_at = launch_of(words).script_at
    flags = []
    for index, word in enumerate(words):
        if not word.value.startswith("--") or len(word.value) < 3:
            continue
        name, sign, inline = word.value[2:].partition("=")
        if sign:
            value_start = word.start + word.text.index("=") + 1
            flags.append(Flag(_key(name), inline, word.start, word.end, value_start))
            continue
        last = index
        while last + 1 < len(words) and not _ends_a_value(words[last + 1], script_at):
            between = command[words[last].end : words[last + 1].start]
            if (last > index or "\n" in between) and words[last + 1].text.startswith(("$", '"$')):
                break  # variables behind a value, or in a line of their own, are further arguments
            last += 1
        taken = last if name == "fsdp" or last == index else index + 1
        values = [word.value for word in words[index + 1 : taken + 1]]
        value = _without_escaped_quotes(name, " ".join(values)) if values else None
        value_start = words[index + 1].start if values else word.end
        flags.append(Flag(_key(name), value, word.start, words[taken].end, value_start))
    return flags


def _ends_a_value(word: Word, script_at: int | None) -> bool:
    """Tell whether a word is the next flag, the script, or the shell's: the end of a command or an array."""
    return (
        word.text.startswith("-") or word.start == script_at or re.fullmatch(OPERATOR, word.text) is not None
    )


def _without_escaped_quotes(name: str, value: str) -> str:
    r"""Return what ``--fsdp \"full_shard auto_wrap\"`` means: these quotes are for ``eval``."""
    is_quoted = name == "fsdp" and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if is_quoted else value


def _key(name: str) -> str:
    return name.replace("-", "_")


def is_on(flag: Flag) -> bool:
    """Tell whether a switch is on, as ``--bf16``, ``--bf16 True`` or ``--bf16=1``."""
    return str(flag.value).lower() in {"true", "none", "1"}


def end_of(flag: Flag, command: str) -> int:
    """Return where a flag ends; what follows the switch `--use_fsdp` is the script, in a variable too."""
    bare = re.compile(r"--use[-_]fsdp(?!=)").match(command, flag.start)
    return bare.end() if bare else flag.end
