"""FSDP1 in comments and strings, told apart from uses; and the comments that ``rewrite`` leaves."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator


NAME = "mention"
CODES = ("FM325",)

MARK = "# fsdp-migrate: "
"""How the comments begin that ``rewrite`` leaves."""

_WORDS = re.compile(
    r"FullyShardedDataParallel|\bFSDP[.(]|torch\.distributed\.fsdp\b|\bFSDPStrategy\b|\bStateDictType\b"
    r"|\bShardedGradScaler\b|\bsummon_full_params\b|_fsdp_wrapped_module"
    r"|\b(?:FULL|SHARDED|LOCAL)_STATE_DICT\b|\bShardingStrategy\b|\b(?:full|sharded)_optim_state_dict\b"
)
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
