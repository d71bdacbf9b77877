"""The demo: an FSDP1 run stops, its checkpoint is converted, and the run goes on under FSDP2.

Everything in it is real: torch's `FullyShardedDataParallel` and its checkpoint, this package's converter and
`prepare_fully_shard`, and processes started by torch's own launcher. It needs no GPU.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fsdp_migrate.checkpoint_convert import convert_checkpoint, verify_checkpoints
from fsdp_migrate.demo.compare import Comparison, compare_states
from fsdp_migrate.demo.launch import launch_ranks
from fsdp_migrate.errors import ConfigError, OutputExistsError


if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from fsdp_migrate.checkpoint_convert import ConversionReport, VerifyReport


FSDP1_CHECKPOINT = "fsdp1-checkpoint"
FSDP2_CHECKPOINT = "fsdp2-checkpoint"


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """What the demo measured. ``identical`` says that no bit differs between the two runs."""

    world_size: int
    num_steps: int
    saved_at: int
    torch_version: str
    fsdp1_losses: dict[int, float]
    fsdp2_losses: dict[int, float]
    loss: Comparison
    parameters: Comparison
    optimizer: Comparison
    findings: list[dict[str, str | None]]
    conversion: ConversionReport
    verification: VerifyReport
    seconds: dict[str, float]
    folder: str | None

    @property
    def identical(self) -> bool:
        """Whether losses, parameters, optimizer state and the converted checkpoint are the same."""
        compared = (self.loss, self.parameters, self.optimizer)
        return self.verification.is_same and not any(part.num_different for part in compared)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON."""
        return {
            "identical": self.identical,
            "world_size": self.world_size,
            "num_steps": self.num_steps,
            "saved_at": self.saved_at,
            "torch_version": self.torch_version,
            "losses": {"fsdp1": self.fsdp1_losses, "fsdp2": self.fsdp2_losses},
            "loss": self.loss.as_dict(),
            "parameters": self.parameters.as_dict(),
            "optimizer": self.optimizer.as_dict(),
            "findings": self.findings,
            "conversion": self.conversion.as_dict(),
            "verification": self.verification.as_dict(),
            "seconds": self.seconds,
            "folder": self.folder,
        }


def run_demo(
    folder: str | os.PathLike[str] | None = None,
    *,
    world_size: int = 2,
    num_steps: int = 10,
    on_phase: Callable[[str], None] | None = None,
) -> DemoReport:
    """Train under FSDP1, convert the checkpoint, go on under FSDP2, and compare.

    The run is saved half way, after ``num_steps // 2`` steps. Sums over two ranks are the same in whatever
    order they are made; ``world_size`` 4 makes two replicas of two shards, so that it holds there as well.
    With other sizes the last bits may differ.

    Args:
        folder: Where the checkpoints stay; new or empty. By default they go to a temporary folder that is
            removed at the end.
        world_size: How many processes to start.
        num_steps: How many steps to train, at least two.
        on_phase: Is told, in a few words, what begins.

    Raises:
        ConfigError: ``world_size`` or ``num_steps`` is too small.
        OutputExistsError: ``folder`` is not empty.
        RankError: One of the processes failed.
    """
    if world_size < 1:
        raise ConfigError(f"`world_size` must be at least 1, but is {world_size}.", field="world_size")
    if num_steps < 2:
        raise ConfigError(f"`num_steps` must be at least 2, but is {num_steps}.", field="num_steps")
    tell = on_phase or (lambda _: None)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="fsdp-migrate-demo-") as temporary:
            return _run(Path(temporary), world_size, num_steps, tell, kept=None)
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise OutputExistsError(f"{str(path)!r} is not an empty folder. Name another one.", path=path)
    path.mkdir(parents=True, exist_ok=True)
    return _run(path, world_size, num_steps, tell, kept=str(path))


def _run(
    folder: Path, world_size: int, num_steps: int, tell: Callable[[str], None], *, kept: str | None
) -> DemoReport:
    seconds = {}

    def train(phase: str) -> dict[str, Any]:
        start = time.monotonic()
        launch_ranks(
            ["-m", "fsdp_migrate.demo.worker", phase, str(folder), str(num_steps)],
            world_size=world_size,
            logs=folder / "logs",
        )
        seconds[phase] = time.monotonic() - start
        result: dict[str, Any] = json.loads((folder / f"{phase}.json").read_text())
        result["losses"] = {int(step): loss for step, loss in result["losses"].items()}
        return result

    saved_at = num_steps // 2
    tell(f"FSDP1: {world_size} processes train {num_steps} steps and save after step {saved_at}")
    fsdp1 = train("fsdp1")
    tell("Convert the checkpoint, and verify that every tensor is the same")
    start = time.monotonic()
    conversion = convert_checkpoint(folder / FSDP1_CHECKPOINT, folder / FSDP2_CHECKPOINT)
    verification = verify_checkpoints(folder / FSDP1_CHECKPOINT, folder / FSDP2_CHECKPOINT)
    seconds["convert"] = time.monotonic() - start
    tell(f"FSDP2: {world_size} new processes load it and train on to step {num_steps}")
    fsdp2 = train("fsdp2")
    reference = {step: loss for step, loss in fsdp1["losses"].items() if step > saved_at}
    states = [_load(folder / f"{phase}-final.pt") for phase in ("fsdp1", "fsdp2")]
    return DemoReport(
        world_size=world_size,
        num_steps=num_steps,
        saved_at=saved_at,
        torch_version=torch.__version__,
        fsdp1_losses=fsdp1["losses"],
        fsdp2_losses=fsdp2["losses"],
        loss=compare_states(reference, fsdp2["losses"]),
        parameters=compare_states(*(state["model"] for state in states)),
        optimizer=compare_states(*(state["optimizer"] for state in states)),
        findings=fsdp2["findings"],
        conversion=conversion,
        verification=verification,
        seconds=seconds,
        folder=kept,
    )


def _load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
