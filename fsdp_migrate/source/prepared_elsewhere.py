"""Models that ``prepare_fully_shard`` of another file shards, followed as FSDP1's: for a second rewriting.

Where a person put that call in, nothing was followed before: what FSDP1's class alone has is still asked of
these models, ``model.clip_grad_norm_(1.0)``, and there is no such thing any more.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.source.catalog import CLASS_FUNCTIONS, FSDP
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.rules.unfollowed import may_find


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from fsdp_migrate.source.project import Project
    from fsdp_migrate.source.python.links import Links


_OURS: Final = "prepare_fully_shard"
_IMPORT: Final = re.compile(
    r"^([ \t]*)from[ \t]+fsdp_migrate[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)", re.MULTILINE
)
_NAMED: Final = re.compile(rf"\b{_OURS}\b(?:[ \t]+as[ \t]+(\w+))?")
_WHOLE: Final = re.compile(r"^([ \t]*)import[ \t]+fsdp_migrate(?:[ \t]+as[ \t]+(\w+))?[ \t]*$", re.MULTILINE)
_LOST: Final = re.compile(
    rf"\.(?:clip_grad_norm_|no_sync|register_comm_hook|check_is_root|{'|'.join(sorted(CLASS_FUNCTIONS))})\b"
)
_DEFINED: Final = re.compile(r"\bdef (clip_grad_norm_|no_sync)\(\s*self\b")


def with_prepared(
    project: Project,
    links: Mapping[Path, Links],
    follow: Callable[[Project], Mapping[Path, Links]],
) -> dict[Path, Links]:
    """Tell the files what such models are to them.

    Args:
        project: The sources.
        links: What the files are told by now.
        follow: Follows the models of sources.

    Returns:
        What they are told, with that.
    """
    told = dict(links)
    before = {path: turned for path, text in project.texts.items() if (turned := as_before(text)) != text}
    if before:
        # A file that calls it shows itself what it shards.
        others = ((path, text) for path, text in project.texts.items() if path not in before)
        asking = [path for path, text in others if _LOST.search(text) or may_find(text)]
        shown = follow(type(project)({**project.texts, **before})) if asking else {}
        told |= {path: replace(told.get(path, NOTHING), prepared=shown.get(path, NOTHING)) for path in asking}
    own = frozenset(name for text in project.texts.values() for name in _DEFINED.findall(text))
    return {path: replace(each, has_own=own) for path, each in told.items()} if own else told


def as_before(text: str) -> str:
    """Return a source with FSDP1's class in the place of ``prepare_fully_shard``, on the same lines.

    Example:
        >>> as_before("from fsdp_migrate import prepare_fully_shard as shard")
        'from torch.distributed.fsdp import FullyShardedDataParallel as shard'
    """
    if _OURS not in text:
        return text
    text = _IMPORT.sub(_imported, text)
    for whole in _WHOLE.finditer(text):
        name = whole[2] or "fsdp_migrate"
        text = text.replace(f"{name}.{_OURS}", f"{name}.{FSDP}")
    return _WHOLE.sub(
        lambda each: f"{each[1]}import torch.distributed.fsdp as {each[2] or 'fsdp_migrate'}", text
    )


def _imported(found: re.Match[str]) -> str:
    named = _NAMED.search(found[2])
    if named is None:
        return found[0]
    lines = "\n" * found[0].count("\n")
    return f"{found[1]}from torch.distributed.fsdp import {FSDP} as {named[1] or _OURS}{lines}"
