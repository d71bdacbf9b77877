"""Files of arguments for Hugging Face's Trainer, such as ``sft.yaml``, beside a config that asks for FSDP1.

They say nothing of FSDP, so that no conversion meets them; but with some arguments FSDP2 trains otherwise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.adapters.engine.optimizer_names import (
    OF_BITSANDBYTES,
    SHIFT_LABELS,
    SMOOTHED,
    SMOOTHING,
    said_of_optimizer,
)
from fsdp_migrate.findings import listed
from fsdp_migrate.source.files import CONFIGS, find_sources
from fsdp_migrate.source.next_step import Step
from fsdp_migrate.source.precision_elsewhere import (
    BEGINS,
    OF_TRAINER,
    small_text,
    steps_for_precision,
)


if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from fsdp_migrate.source.launchers import LaunchFound
    from fsdp_migrate.source.surroundings import ConfigFound


_PLACES: Final = 3
_OTHERS: Final = frozenset({".cfg", ".ini", ".toml"})
_BY_ACCELERATE: Final = frozenset({"accelerate", "hf"})
_TOLD: Final = re.compile(
    rf"{BEGINS}(?P<key>optim|{SMOOTHING})['\"]?[ \t]*[:=][ \t]*['\"]?(?P<value>[\w.+-]+)", re.MULTILINE
)
_CHANGE: Final = (
    "Change what files give Hugging Face's Trainer, if a run with FSDP reads them: `{}` ({}). With it, {} {}"
)


def steps_for_arguments(
    paths: Iterable[str | os.PathLike[str]],
    configs: Sequence[ConfigFound],
    launches: Sequence[LaunchFound],
) -> list[Step]:
    """Return what to change in files of arguments, where something asks Accelerate or the Trainer for FSDP1.

    Args:
        paths: The files and folders of the project.
        configs: Its configs that speak of FSDP; of these ``fsdp-migrate config`` says it.
        launches: Its launch lines.

    Example:
        >>> steps_for_arguments(["fsdp_migrate/source"], [], [])
        []
    """
    asked: Sequence[ConfigFound | LaunchFound] = [*configs, *launches]
    if not any(_asks(each) for each in asked):
        return []
    paths, others = list(paths), {each.path for each in configs}
    places: dict[tuple[str, ...], list[str]] = {}
    for path in find_sources(paths, CONFIGS | _OTHERS):
        for line, said in _told(path) if str(path) not in others else ():
            places.setdefault(said, []).append(f"{path}:{line}")
    found = [
        Step(_CHANGE.format(argument, listed(where, _PLACES), *said), ())
        for (argument, *said), where in places.items()
    ]
    return [*found, *steps_for_precision(paths, configs)]


def _asks(found: ConfigFound | LaunchFound) -> bool:
    """Tell whether it asks for FSDP1, or did so until it was converted."""
    is_one = not _BY_ACCELERATE.isdisjoint(found.framework.split(", "))
    return is_one and (found.state == "changes" or bool(getattr(found, "fsdp1_copy", "")))


def _told(path: Path) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Yield the arguments with which FSDP2 trains otherwise: the line, the argument, what it does, a way."""
    text = small_text(path)
    is_trainers = OF_TRAINER.search(text) is not None
    for each in _TOLD.finditer(text):
        key, value = each["key"], each["value"]
        if not is_trainers and value not in OF_BITSANDBYTES:
            continue
        said = said_of_optimizer(value) if key == "optim" else _said_of_smoothing(value)
        if said is not None:
            yield text.count("\n", 0, each.start("key")) + 1, (f"{key}: {value}", *said)


def _said_of_smoothing(value: str) -> tuple[str, str] | None:
    try:
        return (SMOOTHED, SHIFT_LABELS) if float(value) > 0 else None
    except ValueError:
        return None
