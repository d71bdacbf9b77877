"""Names that files of checkpoints have. Whoever looks for them need not load what reads them."""

from __future__ import annotations

from typing import Final


METADATA_FILE: Final = ".metadata"
"""What describes a folder of torch.distributed.checkpoint."""
