"""FSDP1 in comments and strings, told apart from uses; and the comments that ``rewrite`` leaves."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

from fsdp_migrate.left_comments import GOES_ON, MARK


if TYPE_CHECKING:
    from collections.abc import Iterator


NAME = "mention"
CODES = ("FM325",)

_WORDS = re.compile(
    r"FullyShardedDataParallel|\bFSDP[.(]|torch\.distributed\.fsdp\b|\bFSDPStrategy\b|\bStateDictType\b"
    r"|\bShardedGradScaler\b|\bsummon_full_params\b|_fsdp_wrapped_module"
    r"|\b(?:FULL|SHARDED|LOCAL)_STATE_DICT\b|\bShardingStrategy\b|\b(?:full|sharded)_optim_state_dict\b"
)
_LEFT = re.compile(rf"^{MARK}(FM\d+) (.*)$")
_MORE = re.compile(rf"^{GOES_ON}(\S.*)$")
# From Python 3.12 on the text within an f-string is a token of its own.
_FSTRING = getattr(tokenize, "FSTRING_MIDDLE", -1)


def find_mentions(code: str) -> Iterator[tuple[int, int, str]]:
    """Yield the line, the column and the text of each comment and string that speaks of FSDP1.

    Example:
        >>> list(find_mentions("x = 1  # was FSDP(model)"))
        [(1, 8, '# was FSDP(model)')]
    """
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type not in {tokenize.COMMENT, tokenize.STRING, _FSTRING}:
                continue
            if token.type == tokenize.COMMENT and token.string.startswith(MARK):
                continue
            for match in _WORDS.finditer(token.string):
                before = token.string[: match.start()]
                line = token.start[0] + before.count("\n")
                text = token.string.splitlines()[before.count("\n")].strip()
                column = token.start[1] + 1 if "\n" not in before else 1
                yield line, column, text
                break
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return


def find_left(code: str) -> Iterator[tuple[int, str, str, str]]:
    r"""Yield what an earlier rewriting left: line and text of the statement, code, and what to do.

    Example:
        >>> list(find_left("# fsdp-migrate: FM303 do this.\nx = F(y)\n"))
        [(2, 'x = F(y)', 'FM303', 'do this.')]
    """
    lines = code.splitlines()
    for number, line in enumerate(lines):
        match = _LEFT.match(line.strip())
        if match is None:
            continue
        said = match[2]
        for more in map(_MORE.match, map(str.strip, lines[number + 1 :])):
            if more is None:
                break
            said = f"{said} {more[1]}"
        below = number + 1
        while below < len(lines) and (not lines[below].strip() or lines[below].lstrip().startswith("#")):
            below += 1
        text = lines[below].strip() if below < len(lines) else ""
        yield below + 1, text, match[1], said.removesuffix(f" See `fsdp-migrate explain {match[1]}`.")
