"""The demo: an FSDP1 run stops, and goes on under FSDP2: from its checkpoint converted, and from it as it is.

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
from fsdp_migrate.errors import ConfigError, OutputExistsError
from fsdp_migrate.launch import launch_ranks


if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from fsdp_migrate.checkpoint_convert import ConversionReport, VerifyReport


FSDP1_CHECKPOINT = "fsdp1-checkpoint"
FSDP2_CHECKPOINT = "fsdp2-checkpoint"


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """How a run under FSDP2 went on: its losses, and what differs from the run that stayed on FSDP1."""

    losses: dict[int, float]
    loss: Comparison
    parameters: Comparison
    optimizer: Comparison

    @property
    def parts(self) -> tuple[Comparison, ...]:
        """Return all that was compared."""
        return self.loss, self.parameters, self.optimizer

    def as_dict(self) -> dict[str, Any]:
        """Return the comparisons as they stand in JSON."""
        return {name: getattr(self, name).as_dict() for name in ("loss", "parameters", "optimizer")}


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """What the demo measured. ``identical`` says that no bit differs between the runs.

    ``converted`` went on from the converted checkpoint, ``loaded`` from FSDP1's own, by ``load_checkpoint``.
    """

    world_size: int
    num_steps: int
    saved_at: int
    torch_version: str
    fsdp1_losses: dict[int, float]
    converted: Continuation
    loaded: Continuation
    findings: list[dict[str, str | None]]
    conversion: ConversionReport
    verification: VerifyReport
    seconds: dict[str, float]
    folder: str | None

    @property
    def identical(self) -> bool:
        """Whether losses, parameters, optimizer states and the converted checkpoint are the same."""
        compared = (*self.converted.parts, *self.loaded.parts)
        return self.verification.is_same and not any(part.num_different for part in compared)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as it stands in JSON."""
        return {
            "identical": self.identical,
            "world_size": self.world_size,
            "num_steps": self.num_steps,
            "saved_at": self.saved_at,
            "torch_version": self.torch_version,
            "losses": {
                "fsdp1": self.fsdp1_losses,
                "fsdp2": self.converted.losses,
                "loaded": self.loaded.losses,
            },
            **self.converted.as_dict(),
            "loaded": self.loaded.as_dict(),
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
    """Train under FSDP1, convert the checkpoint or load it as it is, go on under FSDP2, and compare.

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
            "fsdp_migrate.demo.worker",
            [phase, str(folder), str(num_steps)],
            world_size=world_size,
            logs=folder / "logs",
        )
        seconds[phase] = time.monotonic() - start
        result: dict[str, Any] = json.loads((folder / f"{phase}.json").read_text())
        for name in ("losses", "loaded"):
            result[name] = {int(step): loss for step, loss in result.get(name, {}).items()}
        return result

    saved_at = num_steps // 2
    tell(f"FSDP1: {world_size} processes train {num_steps} steps and save after step {saved_at}")
    fsdp1 = train("fsdp1")
    tell("Convert the checkpoint, and verify that every tensor is the same")
    start = time.monotonic()
    conversion = convert_checkpoint(folder / FSDP1_CHECKPOINT, folder / FSDP2_CHECKPOINT)
    verification = verify_checkpoints(folder / FSDP1_CHECKPOINT, folder / FSDP2_CHECKPOINT)
    seconds["convert"] = time.monotonic() - start
    tell(f"FSDP2: {world_size} new processes load it, or FSDP1's own, and train on to step {num_steps}")
    fsdp2 = train("fsdp2")
    reference = {step: loss for step, loss in fsdp1["losses"].items() if step > saved_at}
    final = _load(folder / "fsdp1-final.pt")

    def continuation(losses: dict[int, float], name: str) -> Continuation:
        state = _load(folder / name)
        return Continuation(
            losses=losses,
            loss=compare_states(reference, losses),
            parameters=compare_states(final["model"], state["model"]),
            optimizer=compare_states(final["optimizer"], state["optimizer"]),
        )

    return DemoReport(
        world_size=world_size,
        num_steps=num_steps,
        saved_at=saved_at,
        torch_version=torch.__version__,
        fsdp1_losses=fsdp1["losses"],
        converted=continuation(fsdp2["losses"], "fsdp2-final.pt"),
        loaded=continuation(fsdp2["loaded"], "loaded-final.pt"),
        findings=fsdp2["findings"],
        conversion=conversion,
        verification=verification,
        seconds=seconds,
        folder=kept,
    )


def _load(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
