"""Lightning's checkpoints, of FSDPStrategy and Fabric alike: a folder with ``meta.pt``, or one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import SIDE_FILE
from fsdp_migrate.checkpoint_convert.formats.torch_file import is_saved_file


if TYPE_CHECKING:
    from collections.abc import Mapping, Set as AbstractSet
    from pathlib import Path


# What Lightning's Trainer writes beside `state_dict`; one of them tells it from somebody's own file.
_OWN: Final = frozenset({"optimizer_states", "pytorch-lightning_version"})

META_FILE: Final = SIDE_FILE
FABRICS: Final = "there is a `meta.pt` beside it, as Lightning's Fabric or a script of one's own leaves it"
# The module that `fabric.setup` gives the script has the model in it under this name.
FABRICS_MODULE: Final = "_forward_module"
_VERSION: Final = b"pytorch-lightning_version"
# In what the Trainer writes it stands before all tensors, and above what the script adds.
START: Final = 65_536


def folder_evidence(files: Mapping[str, int], tops: AbstractSet[object]) -> str | None:
    """Say why a distributed checkpoint is one of Lightning, or return None.

    Example:
        >>> folder_evidence({"meta.pt": 1}, {"model", "optimizer_0"})
        'there is a `meta.pt` beside it'
        >>> folder_evidence({"meta.pt": 1}, {"model", "optimizer"})  # somebody's own: theirs are numbered
    """
    if "meta.pt" in files and tops & {"model", "state_dict"} and "optimizer" not in tops:
        return "there is a `meta.pt` beside it"
    return None


def file_evidence(tops: AbstractSet[object]) -> str | None:
    """Say why a state is one that Lightning's Trainer saved, or return None.

    Example:
        >>> file_evidence({"state_dict", "epoch", "optimizer_states"})
        'it holds `state_dict` and `optimizer_states`'
    """
    own = sorted(map(str, tops & _OWN))
    return f"it holds `state_dict` and `{own[0]}`" if "state_dict" in tops and own else None


def is_fabrics(start: bytes) -> bool:
    r"""Tell by its start whether a ``meta.pt`` is Fabric's: it holds what a script gave, and no version.

    What Fabric saves has the names that the script gave, and it loads it by these. A script that calls
    ``dcp.save`` and ``torch.save`` itself may leave the same.

    Example:
        >>> is_fabrics(b"PK\x03\x04 step"), is_fabrics(b"PK\x03\x04 pytorch-lightning_version")
        (True, False)
        >>> is_fabrics(b"")
        False
    """
    return is_saved_file(start) and _VERSION not in start


def is_fabrics_file(path: Path) -> bool:
    """Tell the same of a file here; False where it cannot be read.

    Example:
        >>> from pathlib import Path
        >>> is_fabrics_file(Path("tests/checkpoint/data/lightning-2.6.6/sharded.ckpt/meta.pt"))
        False
    """
    try:
        with path.open("rb") as stream:
            return is_fabrics(stream.read(START))
    except OSError:
        return False
