"""Starts the ranks that compare two runs, and takes their report: what the command does."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fsdp_migrate.config_files import read_config_file
from fsdp_migrate.config_notes import framework_notes, refuse_fsdp2
from fsdp_migrate.errors import ConfigError, RankError
from fsdp_migrate.findings import counted
from fsdp_migrate.launch import launch_ranks
from fsdp_migrate.parity.report import ParityReport, read_report


if TYPE_CHECKING:
    from collections.abc import Callable


RECIPE, REPORT = "recipe.json", "report.json"
_DEFAULTS = (
    "Without `--config` both runs had FSDP1's defaults: no auto-wrap policy, so that the whole model is one "
    "unit, and nothing is cast."
)
_CLIPS_NOTHING = (
    "Neither run clips gradients. In a run that does, as HF Trainer's by default (`max_grad_norm`), they may "
    "differ from FSDP1's in the last bits: the norm is summed in another order."
)
Device = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What ranks compare, in words: functions by name, files by path.

    ``model`` is ``package.module:factory`` or ``transformers:config.json``; ``data``, ``loss`` and
    ``optimizer`` are names of functions as :func:`~fsdp_migrate.parity.compare_runs` takes them; ``config``
    is a file with FSDP1's arguments; ``batch_size`` and ``seq_length`` are of generated batches.
    """

    model: str
    config: str | None = None
    data: str | None = None
    loss: str | None = None
    optimizer: str | None = None
    checkpoint: str | None = None
    weights_only: bool = False
    batch_size: int | None = None
    seq_length: int | None = None
    steps: int = 4
    seed: int = 0
    device: Device = "auto"


def run_parity(
    recipe: Recipe, *, ranks: int = 2, on_phase: Callable[[str], None] | None = None
) -> ParityReport:
    """Start ranks on this machine, compare on them what the recipe says, and return rank 0's report.

    Args:
        recipe: What is compared.
        ranks: How many processes to start.
        on_phase: Is told, in a few words, what begins.

    Raises:
        ConfigError: ``ranks`` or ``steps`` is too small, or the config cannot be read, or is FSDP2's already.
        RankError: A rank failed; the error says what it said.
    """
    for name, value in (("ranks", ranks), ("steps", recipe.steps)):
        if value < 1:
            raise ConfigError(f"`{name}` must be at least 1, but is {value}.", field=name)
    if recipe.config is not None:
        read_config_file(recipe.config)  # what is wrong with it is told before anything is started
        # A converted config was taken for FSDP1's, and `Identical` then said nothing of the run that there
        # was.
        refuse_fsdp2(recipe.config)
    if on_phase is not None:
        on_phase(
            f"{ranks} processes train {counted(recipe.steps, 'step')} under FSDP1 and under FSDP2, in turns"
        )
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-parity-") as temporary:
        folder = Path(temporary)
        (folder / RECIPE).write_text(json.dumps(asdict(recipe)))
        try:
            launch_ranks("fsdp_migrate.parity.worker", [str(folder)], world_size=ranks, logs=folder / "logs")
        except RankError as error:
            if (said := _said(folder, ranks)) is None:
                raise
            raise RankError(said) from error
        report = read_report(json.loads((folder / REPORT).read_text()))
    more = (_DEFAULTS,) if recipe.config is None else framework_notes(recipe.config)
    return replace(report, notes=(*report.notes, *more, _CLIPS_NOTHING))


def _said(folder: Path, ranks: int) -> str | None:
    """Return what the rank said that was the first to end with an error of ours: the others lost it then."""
    files = [file for rank in range(ranks) if (file := folder / f"error-{rank}").exists()]
    return min(files, key=lambda file: file.stat().st_mtime_ns).read_text() if files else None
