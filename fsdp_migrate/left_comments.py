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

GOES_ON = f"{MARK}  "
"""How a further line of what they say begins. What is to be pasted stands further to the right."""

_CODE = re.compile(rf"{MARK}(FM\d{{3}})\b")
# What other programs than ours do at their start, or refuse themselves.
_OTHERS_DO = frozenset({"FM319", "FM320", "FM327", "FM328"})
# Left as it is, this goes on without an error, and does something else: what FSDP1's wrapper alone was or had
# does not happen any more, a number or a step is another one, parameters come into other groups, what is
# written to them is lost, or what is clipped and averaged is not the model's any more. An optimizer's step
# may fail as well, in words of torch's that say nothing of it.
_SILENT = frozenset({"FM318", "FM335", "FM423", "FM445", "FM446", "FM452"})
# Codes that stand above a use only where it is left as it was.
_LEFT = frozenset({"FM308", "FM309", "FM313"})
# Whoever settles one of these writes a call of `prepare_fully_shard`.
_LEAD_TO_IT = frozenset({"FM301", "FM302", "FM303", "FM304", "FM319", "FM331", "FM429"})
# No comment has to stop a run at these: torch, or Accelerate, does so there itself, with an error.
_ENDS_THERE = frozenset({"FM336", "FM449"})
ENDS_ITSELF = "no comment stops a run there, but torch or a framework does, with an error: settle it before."
"""What is said of those."""
_MOST_NAMED = 6
# What looks for the comments when it shards: in sources, and as llm-foundry's YAML names Composer's callback.
_LOOKS = re.compile(r"\b(?:prepare_fully_shard|FSDP2Migration|fsdp2_migration)\b")


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
        >>> stops_runs("FM307"), stops_runs("FM423"), stops_runs("FM336")
        (True, True, False)
    """
    known = FINDING_CODES.get(code)
    return code in _LEFT | _SILENT or (
        known is not None and known.fidelity == "refused" and code not in _OTHERS_DO
    )


def ends_runs(code: str) -> bool:
    """Tell whether a run ends by itself at a use with this code, which torch or a framework refuses.

    Example:
        >>> ends_runs("FM449"), ends_runs("FM322")
        (True, False)
    """
    return code in _ENDS_THERE and not stops_runs(code)


def looks_for_them(text: str) -> bool:
    """Tell whether a source or a config names what stops a run at such comments; comments themselves do not.

    Example:
        >>> looks_for_them("model = prepare_fully_shard(net, {})")
        True
        >>> looks_for_them("# fsdp-migrate: FM304 call prepare_fully_shard(model, {...}).")
        False
    """
    return any(_LOOKS.search(line.partition("#")[0]) for line in text.splitlines() if _LOOKS.search(line))


def what_they_stop(codes: Iterable[str], *, is_checked: bool = True) -> str:
    """Say of the codes of comments which of them stop a run.

    Args:
        codes: The codes.
        is_checked: Whether something in the project :func:`looks_for_them` when it shards.
            Where a framework shards with its own FSDP2, nothing does.

    Example:
        >>> what_they_stop(["FM322", "FM322"])
        'FM322 stops no run: look at it before you train.'
        >>> what_they_stop(["FM336"]).partition(",")[0]
        'FM336: no comment stops a run there'
        >>> what_they_stop(["FM307"])
        'FM307 stops a run until it is settled and its comment deleted.'
        >>> what_they_stop(["FM332"], is_checked=False).partition(":")[0]
        'FM332 stops no run here, because nothing in these sources calls `prepare_fully_shard`'
        >>> what_they_stop(["FM303"], is_checked=False).partition(" until")[0]
        'FM303 stops a run that comes to `prepare_fully_shard`,'
    """
    every = sorted(set(codes))
    stopping = [code for code in every if stops_runs(code)]
    ending = [code for code in every if code in _ENDS_THERE and code not in stopping]
    others = [code for code in every if code not in {*stopping, *ending}]
    said = []
    if stopping and not is_checked and _LEAD_TO_IT.isdisjoint(every):
        stop, it = ("stops", "it is") if len(stopping) == 1 else ("stop", "they are")
        said.append(
            f"{listed(stopping, _MOST_NAMED)} {stop} no run here, because nothing in these sources calls "
            f"`prepare_fully_shard`: settle what {it} about before you train. It fails late, or does "
            "something else without an error."
        )
    elif stopping:
        stop, it, its = (
            ("stops", "it is", "its comment") if len(stopping) == 1 else ("stop", "they are", "the comments")
        )
        once = "" if is_checked else " that comes to `prepare_fully_shard`,"
        said.append(
            f"{listed(stopping, _MOST_NAMED)} {stop} a run{once} until {it} settled and {its} deleted."
        )
    if others:
        stop, it = ("stops", "it") if len(others) == 1 else ("stop", "them")
        said.append(f"{listed(others, _MOST_NAMED)} {stop} no run: look at {it} before you train.")
    if ending:
        said.append(f"{listed(ending, _MOST_NAMED)}: {ENDS_ITSELF}")
    return " ".join(said)
