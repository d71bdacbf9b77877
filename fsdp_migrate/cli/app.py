"""The commands: options to library calls to :mod:`fsdp_migrate.cli.render`. No logic of their own.

The library is imported inside the commands, so that ``--help`` need not wait for torch.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from fsdp_migrate.cli.document import write_document


app = typer.Typer(
    name="fsdp-migrate",
    help="Move a training run from PyTorch FSDP1 to FSDP2, with nothing dropped silently.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


class Target(str, Enum):
    """What reads the output."""

    auto = "auto"
    torch = "torch"
    composer = "composer"
    accelerate = "accelerate"
    lightning = "lightning"
    torchtitan = "torchtitan"
    hf = "hf"


class DType(str, Enum):
    """The dtype of floating-point values in the output."""

    keep = "keep"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Link(str, Enum):
    """How data files that stay the same come into the output."""

    auto = "auto"
    hard = "hard"
    copy = "copy"


Checkpoint = Annotated[Path, typer.Argument(metavar="CKPT", help="The folder of the checkpoint.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout instead of a report.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 3 if anything would change.")]
