"""The commands in a shell script, and whose the words of a command are. Nothing is run or expanded."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Iterator


OPERATOR = r"\d*[<>]+&?\d*|[;&|()]+"
_WORD = re.compile(
    rf"{OPERATOR}|(?:\\(?!\n).|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\(\([^()]*\)\)|\$\([^()]*\)|[^\s\\'\";&|()<>])+",
    re.DOTALL,
)
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(\\|(['\"])?)([A-Za-z_]\w*)(?(2)\2)")
_PRODUCT = re.compile(
    r"\$\(\(\s*((?:\$?\{?\w+\}?\s*\*\s*)+\$?\{?\w+\}?)\s*\)\)\Z|\$\(expr\s+((?:\$?\{?\w+\}?\s*\\?\*\s*)+\$?\{?\w+\}?)\s*\)\Z"
)
_SBATCH_NODES = re.compile(r"^#SBATCH\s+(?:--nodes[= ]\s*|-N\s*)(\d+)\s*$", re.MULTILINE)
_PRINTED = re.compile(
    r"(?:(?:then|else|do|\{)\s+)*(?:echo|printf)\b(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|>&2|[^>'\"])*\Z", re.DOTALL
)
_DEEPEST = 5
_SUFFIXES = frozenset(
    {
        ".sh",
        ".bash",
        ".env",
        ".zsh",
        ".slurm",
        ".sbatch",
        ".sub",
        ".job",
        ".pbs",
        ".mk",
        ".just",
        "makefile",
        "gnumakefile",
        "justfile",
    }
)
_SHEBANG = re.compile(r"#!.*\b(ba|z|da|k)?sh\b")
_RUNNERS = frozenset({"torchrun", "deepspeed", "srun", "mpirun", "python", "python3"})


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command: what it means, what stands there, and where."""

    value: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Launch:
    """What a command starts: ``accelerate`` or another runner, and where the script's name stands.

    ``script_at`` is None where no name of a script is seen; ``runner`` is empty where none is.
    """

    runner: str
    script_at: int | None


def is_script(suffix: str, text: str) -> bool:
    r"""Tell whether a file holds commands of a shell: by its suffix, or its name, or by its first line.

    Example:
        >>> is_script(".slurm", ""), is_script("", "#!/usr/bin/env bash\n"), is_script(".yaml", "a: 1")
        (True, True, False)
    """
    return suffix.lower() in _SUFFIXES or _SHEBANG.match(text) is not None


def words_of(command: str) -> list[Word]:
    """Return the words of a command.

    Raises:
        ConfigError: A quote is not closed.
    """
    try:
        return [
            Word(" ".join(shlex.split(match.group())), match.group(), match.start(), match.end())
            for match in _WORD.finditer(command)
        ]
    except (ValueError, IndexError) as error:
        msg = f"The command cannot be read: {error}."
        raise ConfigError(msg) from error


def is_printed(text: str, start: int, end: int) -> bool:
    """Tell whether a command prints to the terminal, and not into a file or another command.

    Example:
        >>> is_printed("echo '--a'", 0, 10), is_printed("echo a > b", 0, 10), is_printed("echo a | sh", 0, 6)
        (True, False, False)
        >>> is_printed("then echo 'a' >&2", 0, 17)
        True
    """
    piped = text[end:].lstrip(" \t").startswith("|")
    return _PRINTED.match(text[start:end]) is not None and not piped


def launch_of(words: list[Word]) -> Launch:
    """Return what a command starts."""
    values = [word.value for word in words]
    names = [value.lstrip("@-").rpartition("/")[2] for value in values]  # `@` and `-` as in a Makefile
    runner, first = "", 0
    for index, name in enumerate(names):
        if name == "accelerate" and "launch" in values[index + 1 : index + 2]:
            runner, first = "accelerate", index + 2
            break
        if name in {"accelerate-launch", "accelerate.commands.launch"}:
            runner, first = "accelerate", index + 1
            break
        if name in _RUNNERS and not runner:
            runner, first = name, index + 1
    for index in range(first, len(values)):
        is_module = values[index] in {"-m", "--module"} and names[index + 1 : index + 2] != [
            "accelerate.commands.launch"
        ]
        if values[index].endswith(".py") or is_module:
            if not runner and values[0].startswith("$") and _has_launch_flags(values[1:index]):
                runner = "accelerate"
            return Launch(runner, words[index].start)
    return Launch(runner, None)


def _has_launch_flags(values: list[str]) -> bool:
    """Tell whether flags before a script are such as only ``accelerate launch`` has."""
    return any(value.startswith(("--fsdp_", "--use_fsdp", "--config_file")) for value in values)


def assignment_of(name: str, text: str) -> tuple[int, str] | None:
    r"""Return the line in which a script gives a variable its value first, and what stands there.

    Example:
        >>> assignment_of("C", 'set -e\nexport C="${D:-x.json}"  # a\n'), assignment_of("D", "C=1")
        ((2, '${D:-x.json}'), None)
        >>> assignment_of("C", 'C=$(echo "$1"); shift\n')
        (1, '$(echo "$1")')
    """
    return next(iter(assignments_of(name, text)), None)


def assignments_of(name: str, text: str) -> list[tuple[int, str]]:
    r"""Return every line in which a script gives a variable a value, or adds to it, and what stands there.

    Example:
        >>> assignments_of("C", "if x; then C=a; else C=b; fi\n[ $D ] && C+=c\n")
        [(1, 'a'), (1, 'b'), (2, 'c')]
    """
    before = r"(?:^|[;)&|{]|\b(?:then|else|do))[ \t]*(?:(?:export|local|readonly|declare)\s+)?"
    return [
        (text.count("\n", 0, found.start(1)) + 1, _assigned(found.group(1)))
        for found in re.finditer(rf"{before}{re.escape(name)}\+?=(?=(.*)$)", text, re.MULTILINE)
    ]


def _assigned(rest: str) -> str:
    """Return the value with which what stands behind the sign begins."""
    value = _first_word(re.sub(r"\s+#.*$", "", rest).strip())
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value


def value_of(word: str, text: str) -> str | None:
    r"""Return what a variable of a script holds, where one place alone sets it, and to a plain text.

    Example:
        >>> value_of("$L", "L=T5Block\n"), value_of("${L}", "L=a\nL=b\n"), value_of("$L", "L=$1\n")
        ('T5Block', None, None)
    """
    variable = re.fullmatch(r"\$(?:(\w+)|\{(\w+)\})", word.strip())
    given = assignments_of(variable[1] or variable[2], text) if variable else []
    return given[0][1] if len(given) == 1 and re.fullmatch(r"[\w., -]+", given[0][1]) else None


def _first_word(text: str) -> str:
    """Return the first word of a text; quotes and the commands in `$(...)` may stand in each other."""
    inside: list[str] = []
    index = 0
    while index < len(text):
        char, around = text[index], inside[-1] if inside else ""
        if char == "\\" and around != "'":
            index += 1
        elif around and char == {"(": ")"}.get(around, around):
            inside.pop()
        elif around != "'" and (char == '"' or (char == "'" and around != '"')):
            inside.append(char)
        elif around != "'" and (text.startswith("$(", index) or (char == around == "(")):
            index += text.startswith("$(", index)
            inside.append("(")
        elif not inside and (char.isspace() or char in ";&|"):
            return text[:index]
        index += 1
    return text


def in_folder_of(path: str, text: str, depth: int = 3) -> str:
    r"""Return a path with the folder in place of the variable before it, if the script sets that once.

    Example:
        >>> in_folder_of("$D/c.json", "R=/w\nD=$R/conf\n"), in_folder_of("$D/c.json", "D=$(pwd)\n")
        ('/w/conf/c.json', '$D/c.json')
    """
    variable = re.match(r"\$\{?(\w+)\}?(?=/)", path)
    given = assignment_of(variable.group(1), text) if variable and depth else None
    if variable is None or given is None or len(_ways(variable.group(1), text)) != 1:
        return path
    folder = in_folder_of(given[1], text, depth - 1)
    return f"{folder.rstrip('/')}{path[variable.end() :]}" if re.fullmatch(r"[\w./-]+", folder) else path


def _ways(name: str, text: str) -> set[str]:
    """Return what a script sets a variable to, in all places."""
    return set(re.findall(rf"(?<![\w$-]){name}=(\S+)", text))


def number_of(word: str, text: str) -> int | None:
    r"""Return the number that a word stands for in a script, by its assignments and Slurm's options, or None.

    Example:
        >>> number_of("$((N * 8))", "#SBATCH --nodes=2\nN=$SLURM_NNODES\n"), number_of("$X", "")
        (16, None)
        >>> number_of("$N", "N=${1:-2}"), number_of("$N", "N=${1:-1}")
        (2, None)
    """
    return _number(word, text, 0)


def _number(word: str, text: str, depth: int) -> int | None:
    word = word.strip().strip("\"'")
    if word.isdigit():
        return int(word)
    product = _PRODUCT.match(word)
    if product:
        factors = [
            _number(part if part.isdigit() else f"${part}", text, depth + 1)
            for part in re.findall(r"\w+", product.group(1) or product.group(2))
        ]
        known = [factor for factor in factors if factor is not None]
        return math.prod(known) if len(known) == len(factors) else None
    variable = re.fullmatch(r"\$\{?(\w+)(?::?-([^}]*))?\}?", word)
    if variable is None or depth > _DEEPEST:
        return None
    given = assignment_of(variable.group(1), text)
    if given is not None:  # what is set in two ways is known only when the script runs
        ways = _ways(variable.group(1), text)
        return _number(given[1], text, depth + 1) if len(ways) == 1 else None
    if variable.group(1) in {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}:
        asked = _SBATCH_NODES.search(text)
        return int(asked.group(1)) if asked else None
    default = _number(variable.group(2), text, depth + 1) if variable.group(2) else None
    # `NODES=${1:-1}`: whoever gives a script such an argument starts it with others too.
    return None if default == 1 else default


class HereDocument(NamedTuple):
    """What a script gives a command as its input: the line that asks for it, and where it stands."""

    line: int
    start: int
    end: int
    is_quoted: bool
    """Whether the shell leaves it as it is."""
    sign: tuple[int, int]
    """Where that stands which asks for it: ``<<`` and a word."""


def here_documents(text: str) -> Iterator[HereDocument]:
    r"""Yield the here-documents of a script.

    Example:
        >>> text = "cat <<E\na\nE\n"
        >>> [(one.line, text[one.start : one.end]) for one in here_documents(text)]
        [(1, 'a\n')]
    """
    for match in _HEREDOC.finditer(text):
        start = min(_line_end(text, match.end()) + 1, len(text))
        found = re.compile(rf"^[ \t]*{match.group(3)}[ \t]*$", re.MULTILINE).search(text, start)
        line = text.count("\n", 0, match.start()) + 1
        end = found.start() if found else len(text)
        yield HereDocument(line, start, end, bool(match.group(1)), match.span())


def commands_of(text: str) -> Iterator[tuple[int, int]]:
    r"""Yield where each command of a script begins and ends; comments and here-documents are none.

    Example:
        >>> text = "cd x && run \\\n  --a 'b; c'  # d\ncat <<E\n--a\nE\n"
        >>> [text[start:end].strip() for start, end in commands_of(text)]
        ['cd x', "run \\\n  --a 'b; c'", 'cat <<E']
    """
    index = start = depth = 0
    heredocs: list[str] = []
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
        elif char in "'\"":
            index = _closed(text, index)
        elif char == "#" and (index == 0 or text[index - 1].isspace()):
            end = _line_end(text, index)
            if not depth:
                yield from _trimmed(text, start, index)
                start = end
            index = end
        elif char == "\n" and heredocs:
            after = _after_heredoc(text, index, heredocs.pop(0))
            if not depth:
                yield from _trimmed(text, start, index)
                start = after
            index = after
        # Within parentheses nothing ends a command: they hold an array, or a command of its own.
        elif (char == "\n" and not depth) or (_ends_command(text, index) and not depth):
            yield from _trimmed(text, start, index)
            index = start = index + 1
        elif (match := _HEREDOC.match(text, index)) is not None:
            heredocs.append(match.group(3))
            index = match.end()
        else:
            depth = max(depth + (char == "(") - (char == ")"), 0)
            index += 1
    yield from _trimmed(text, start, len(text))


def _trimmed(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    piece = text[start:end]
    if piece.strip():
        yield start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def _closed(text: str, index: int) -> int:
    """Return what follows a quoted text; the end where it is not closed."""
    quote = text[index]
    index += 1
    while index < len(text) and text[index] != quote:
        # Within single quotes the shell knows no escapes.
        index += 2 if text[index] == "\\" and quote == '"' else 1
    return index + 1


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


def _after_heredoc(text: str, index: int, word: str) -> int:
    match = re.compile(rf"^[ \t]*{word}[ \t\r]*$", re.MULTILINE).search(text, index)
    return match.end() if match else len(text)


def _ends_command(text: str, index: int) -> bool:
    """Tell whether a character ends a command: ``;``, ``|`` and ``&``, which in ``2>&1`` does not."""
    if text[index] != "&":
        return text[index] in ";|"
    return text[index - 1 : index] not in {">", "<"} and text[index + 1 : index + 2] != ">"
