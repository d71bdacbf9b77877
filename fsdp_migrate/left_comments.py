"""The comments that ``rewrite`` leaves in sources: how they look, and which of them stop a run."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.findings import listed


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MARK = "# fsdp-migrate: "
"""How the comments begin."""

_CODE = re.compile(rf"{MARK}(FM\d{{3}})\b")
# What other programs than ours do at their start, or refuse themselves.
_OTHERS_DO = frozenset({"FM319", "FM320", "FM327", "FM328"})
# Codes that stand above a use only where it is left as it was.
_LEFT = frozenset({"FM308", "FM309"})
_MOST_NAMED = 6


def comments_in(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield the line and the code of each such comment; of what is no Python, those before the error.

    Example:
        >>> list(comments_in("x = 1\n# fsdp-migrate: FM307 settle this.\ny = 2\n"))
        [(2, 'FM307')]
    """
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            match = _CODE.match(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                yield token.start[0], match[1]
    except (SyntaxError, tokenize.TokenError):
        return


def stops_runs(code: str) -> bool:
    """Tell whether a comment with this code stops a run, when its model is sharded, until it is deleted.

    Example:
        >>> stops_runs("FM307"), stops_runs("FM318")
        (True, False)
    """
    known = FINDING_CODES.get(code)
    return code in _LEFT or (known is not None and known.fidelity == "refused" and code not in _OTHERS_DO)


def what_they_stop(codes: Iterable[str]) -> str:
    """Say of the codes of comments which of them stop a run.

    Example:
        >>> what_they_stop(["FM318", "FM322", "FM318"])
        'FM318, FM322 stop no run: look at them before you train.'
        >>> what_they_stop(["FM307"])
        'FM307 stops a run until it is settled and its comment deleted.'
    """
    every = sorted(set(codes))
    stopping = [code for code in every if stops_runs(code)]
    others = [code for code in every if code not in stopping]
    said = []
    if stopping:
        stop, it, its = (
            ("stops", "it is", "its comment") if len(stopping) == 1 else ("stop", "they are", "the comments")
        )
        said.append(f"{listed(stopping, _MOST_NAMED)} {stop} a run until {it} settled and {its} deleted.")
    if others:
        stop, it = ("stops", "it") if len(others) == 1 else ("stop", "them")
        said.append(f"{listed(others, _MOST_NAMED)} {stop} no run: look at {it} before you train.")
    return " ".join(said)
