"""Where scripts end a process group that may be gloo's, by torch's own call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


WITH_GLOO: Final = r"gloo|init_process_group\((?!\s*(?:backend\s*=\s*)?[\"']nccl[\"'])"
BEGINS: Final = r"\binit_process_group\("
ENDS: Final = r"\bdestroy_process_group\("
TO_WRITE: Final = (
    "Write `end_process_group()` of fsdp_migrate.runtime where scripts call `destroy_process_group()` ({}): "
    "on gloo, also beside NCCL, torch's own call may abort the process after all its work, or hang. With "
    "NCCL alone it may stay."
)
"""What is to be done at those places."""


def ended_groups(texts: Mapping[Path, str]) -> list[str]:
    """Return the places, in files of which some begin a group that may be gloo's; NCCL alone ends well.

    Example:
        >>> from pathlib import Path
        >>> begins, ends = "dist.init_process_group({})", "dist.destroy_process_group()"
        >>> given = [f"{begins.format(kind)}; {ends}" for kind in ("", "'gloo'", "'nccl'")]
        >>> [ended_groups({Path("a.py"): each}) for each in given]
        [['a.py:1'], ['a.py:1'], []]
    """
    codes = {path: [line.partition("#")[0] for line in text.split("\n")] for path, text in texts.items()}
    begun = {path: any(re.search(BEGINS, line) for line in lines) for path, lines in codes.items()}
    gloos = {path for path, lines in codes.items() if re.search(WITH_GLOO, "\n".join(lines))}
    is_begun = any(begun[path] for path in gloos)
    return [
        f"{path}:{number}"
        for path, lines in codes.items()
        if path in gloos or (is_begun and not begun[path])
        for number, line in enumerate(lines, 1)
        if re.search(ENDS, line)
    ]
