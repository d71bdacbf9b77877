"""Names that files of checkpoints have. Whoever looks for them need not load what reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final


if TYPE_CHECKING:
    from collections.abc import Mapping


METADATA_FILE: Final = ".metadata"
"""What describes a folder of torch.distributed.checkpoint."""
SIDE_FILE: Final = "meta.pt"
"""What Lightning's Trainer and Fabric keep beside such a folder."""


def holds_side_parts(layout: str, files: Mapping[str, int]) -> bool:
    """Tell whether what is neither model nor optimizer was read from a file that a script is given whole.

    Example:
        >>> holds_side_parts("file", {"a.pt": 1}), holds_side_parts("dcp", {"__0_0.distcp": 1})
        (True, False)
    """
    return layout == "file" or (layout == "dcp" and SIDE_FILE in files)
