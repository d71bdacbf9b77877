"""Projects of several files, written and rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.source import rewrite_paths
from tests.source.samples import in_one_line


if TYPE_CHECKING:
    from pathlib import Path


FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


WRAP = f"{FSDP}\ndef wrap(net):\n    net = FSDP(net)\n    return net\n"


CLIPPED = "clip_grad_norm_(model, 1.0)"


def after(folder: Path, files: dict[str, str], wanted: str) -> str:
    """Write files, rewrite all of them, and return what becomes of one; a second rewriting does nothing.

    What a comment of ours says comes back in one line.
    """
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    report = rewrite_paths([folder], write=True)
    assert report.problems == ()
    assert rewrite_paths([folder]).changed == ()
    return in_one_line((folder / wanted).read_text())


LOOP = "def train(model):\n    model.clip_grad_norm_(1.0)\n"
