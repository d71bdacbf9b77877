"""What one types to load a checkpoint without converting it, and when converting is better. Text only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.storage.compressed import is_packed
from fsdp_migrate.checkpoint_convert.storage.folders import is_url
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS


if TYPE_CHECKING:
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest


_MOST_EXTRA: Final = 6
_NUMBERS: Final = frozenset({"step", "steps", "global_step", "epoch", "epochs", "iteration", "iter", "batch"})


@dataclass(frozen=True, slots=True)
class LoadAdvice:
    """How a checkpoint is loaded as it is.

    Attributes:
        call: The line of Python.
        better_converted: When converting it first is better.
        trainer: The line for the framework's Trainer that loads it, where there is one.
    """

    call: str
    better_converted: tuple[str, ...]
    trainer: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "call": self.call,
            "trainer": self.trainer,
            "better_converted": list(self.better_converted),
        }


def advise_loading(manifest: Manifest) -> LoadAdvice:
    """Say what one types to load a checkpoint, and when converting it is still better.

    Example:
        >>> from fsdp_migrate.checkpoint_convert import inspect_checkpoint
        >>> advise_loading(inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp")).call
        "load_checkpoint('tests/checkpoint/data/torch-2.13.0/plain.dcp', model, optimizer)"
    """
    kinds = [part.kind for part in manifest.parts]
    arguments = [repr(manifest.source), "model"]
    optimizers = kinds.count("optimizer")
    if optimizers == 1:
        arguments.append("optimizer")
    elif optimizers:
        arguments.append(f"[{', '.join(f'optimizer{number}' for number in range(optimizers))}]")
    names = [part.name for part in manifest.parts]
    # A name above others stands for them, too.
    others = [
        part.name
        for part in manifest.parts
        if part.kind == "other" and not any(name.startswith(f"{part.name}.") for name in names)
    ]
    if others:
        asked = ", ".join(f"{name!r}: {_variable(name)}" for name in others[:_MOST_EXTRA])
        more = ", ..." if len(others) > _MOST_EXTRA else ""
        arguments.append(f"extra={{{asked}{more}}}")
    trainer = None
    if manifest.framework == "composer":
        trainer = f"Trainer(..., callbacks=[FSDP2Migration()], load_path={manifest.source!r})"
    better = tuple(_better_converted(manifest))
    return LoadAdvice(f"load_checkpoint({', '.join(arguments)})", better, trainer)


def _variable(name: str) -> str:
    """Return what to write for a thing that is asked for: an object's name, or what stands for a value."""
    last = name.rpartition(".")[2]
    if "sched" in last.lower() and last.isidentifier():
        return last
    return "0" if last.lower() in _NUMBERS else "None"


def _better_converted(manifest: Manifest) -> list[str]:
    found = []
    if is_packed(manifest.source.rstrip("/").rpartition("/")[2]):
        found.append("it is packed, and each start unpacks it on every rank")
    if is_url(manifest.source):
        found.append("each start of the run fetches it over the network")
    if manifest.layout == "ranks":
        found.append("each start looks into the file of every rank")
    loader = TARGETS[manifest.framework].loader
    if loader:
        found.append(f"{loader} is to load it by itself")
    found.append("the run is started many times from it")
    return found
