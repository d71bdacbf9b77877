"""What never runs, or never with FSDP1's class, gives no model to the other files of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch

WRAP = f"{FSDP}\ndef wrap(net):\n    return FSDP(net)\n"
CLIP = (
    "import torch\n\ndef clip(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    "    return [p for p in model.parameters() if p.dim() < 2]\n"
)
TRAIN = (
    "from tools import clip\nfrom wrap import wrap\n\n\ndef main(args, net):\n    model = make()\n"
    "    if args.kind == 'sharded':\n{}        model = wrap(net)\n    else:\n        model = net.to(0)\n"
    "    clip(model)\n"
)


def said(folder: Path, files: dict[str, str]) -> set[tuple[str, str, str]]:
    """Return the files, codes and actions of what is not kept, imports left out."""
    for name, text in files.items():
        (folder / name).write_text(text)
    found = scan_paths([folder]).uses
    actions = {"rewritten", "commented", "unclear"}
    return {
        (use.path.rpartition("/")[2], use.code, use.action)
        for use in found
        if use.action in actions and use.code != "FM329"
    }


@pytest.mark.parametrize(
    ("leaves", "is_said"),
    [
        ("        raise RuntimeError('no')\n", False),
        ("        if args.x:\n            return\n        else:\n            raise ValueError\n", False),
        ("        try:\n            return f()\n        except ValueError:\n            raise\n", False),
        ("", True),
        ("        if args.x:\n            raise RuntimeError('no')\n", True),
        ("        try:\n            return f()\n        except ValueError:\n            pass\n", True),
        ("        with lib.suppressed():\n            return f()\n", True),
        ("        for x in args.all:\n            return f()\n", True),
    ],
)
def test_a_model_is_not_given_below_what_leaves(tmp_path: Path, leaves: str, *, is_said: bool) -> None:
    found = said(tmp_path, {"wrap.py": WRAP, "tools.py": CLIP, "train.py": TRAIN.format(leaves)})
    assert (("tools.py", "FM318", "commented") in found) is is_said
    # Nor is there a place to be looked at, where nothing else calls what shards.
    assert any(action == "unclear" for *_, action in found) is False


FALLS_BACK = (
    f"{FSDP}\n\ndef wrap(model):\n    try:\n        from {{}} import fully_shard\n"
    "        fully_shard(model)\n        return model\n    except {}:\n        pass\n    return FSDP(model)\n"
)
ASKS = (
    f"{FSDP}from tools import clip\nfrom wrap import wrap\n\nclass Saver:\n    def __init__(self, net):\n"
    "        self.model = wrap(net)\n        self.is_fsdp = isinstance(self.model, FSDP)\n"
    "    def clip(self):\n        clip(self.model)\n"
)


@pytest.mark.parametrize(
    ("home", "error", "is_sharded"),
    [
        ("torch.distributed._composable.fsdp", "ImportError", False),
        ("torch.distributed.fsdp", "ModuleNotFoundError", False),
        ("torch.distributed.fsdp", "Exception", True),
        ("lib", "ImportError", True),
    ],
)
def test_fsdp1_where_fsdp2_is_missing(tmp_path: Path, home: str, error: str, *, is_sharded: bool) -> None:
    found = said(tmp_path, {"wrap.py": FALLS_BACK.format(home, error), "tools.py": CLIP, "train.py": ASKS})
    assert (("tools.py", "FM318", "commented") in found) is is_sharded
    asked = "rewritten" if is_sharded else "commented"
    assert ("train.py", "FM305", asked) in found
    assert (("wrap.py", "FM301", "rewritten") in found) is is_sharded


FLAGS = (
    "try:\n    from torch.distributed.fsdp import fully_shard\nexcept ImportError:\n    fully_shard = None\n"
)
CHOOSES = (
    f"{FSDP}{FLAGS}{{}}\n\ndef wrap(model):\n    if fully_shard is not None:\n        fully_shard(model)\n"
    "        return model\n    return FSDP(model)\n"
)


@pytest.mark.parametrize(
    ("more", "is_sharded"),
    [("", False), ("fully_shard = None\n", True), ("def f(fully_shard):\n    1\n", True)],
)
def test_a_name_that_says_whether_fsdp2_is_there(tmp_path: Path, more: str, *, is_sharded: bool) -> None:
    found = said(tmp_path, {"wrap.py": CHOOSES.format(more), "tools.py": CLIP, "train.py": ASKS})
    assert (("tools.py", "FM318", "commented") in found) is is_sharded


XLA = (
    "try:\n    import torch_xla.core.xla_model as xm\n"
    "    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP\n"
    "except ImportError:\n    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "    xm = {}\n\n"
    "def wrap(model):\n    if xm:\n        return FSDP(model)\n    return model\n"
)


@pytest.mark.parametrize(("nothing", "is_sharded"), [("None", False), ("fake()", True)])
def test_a_model_of_torch_xla(tmp_path: Path, nothing: str, *, is_sharded: bool) -> None:
    train = ASKS.replace(FSDP, "").replace("isinstance(self.model, FSDP)", "True")
    found = said(tmp_path, {"wrap.py": XLA.format(nothing), "tools.py": CLIP, "train.py": train})
    assert (("tools.py", "FM318", "commented") in found) is is_sharded
