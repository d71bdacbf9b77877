"""What is left to do for a repository, in order, with the commands to type."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.source.surroundings import CheckpointFound, ConfigFound
    from fsdp_migrate.source.uses import ScanReport


@dataclass(frozen=True)
class Step:
    """One thing to do, and the commands that do it."""

    text: str
    commands: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as it stands in JSON documents."""
        return {"text": self.text, "commands": list(self.commands)}


def next_steps(
    paths: Sequence[str],
    report: ScanReport,
    configs: Sequence[ConfigFound],
    checkpoints: Sequence[CheckpointFound],
) -> list[Step]:
    """Return what to do, in order: the sources, what is left in them, the configs, the checkpoints.

    Args:
        paths: What was scanned, as it was given.
        report: What was found in sources.
        configs: The configs that were found.
        checkpoints: The checkpoints that were found.
    """
    where = shlex.join(paths)
    actions = [use.action for use in report.uses if not use.path.endswith(".ipynb")]
    steps: list[Step] = []
    if {"rewritten", "commented"} & set(actions):
        commands = (f"fsdp-migrate rewrite {where}", f"fsdp-migrate rewrite {where} --write")
        steps.append(Step("Look at the changes to the sources, and write them.", commands))
    if "commented" in actions:
        text = f"Settle by hand what got a comment: {actions.count('commented')} places."
        steps.append(Step(text, (f"grep -rn '# fsdp-migrate: FM' {where}",)))
    steps += _steps_for_configs(configs)
    return steps + _steps_for_checkpoints(checkpoints)


def _steps_for_configs(configs: Sequence[ConfigFound]) -> list[Step]:
    steps = []
    changing = tuple(
        f"fsdp-migrate config {shlex.quote(each.path)} --write" for each in configs if each.state == "changes"
    )
    if changing:
        steps.append(Step("Convert the configs; a backup of each is kept.", changing))
    odd = tuple(
        f"fsdp-migrate config {shlex.quote(each.path)}"
        for each in configs
        if each.state in {"refused", "unclear", "broken"}
    )
    if odd:
        steps.append(Step("See why these configs cannot be converted as they are.", odd))
    return steps


def _steps_for_checkpoints(checkpoints: Sequence[CheckpointFound]) -> list[Step]:
    if not checkpoints:
        return []
    inspect = tuple(f"fsdp-migrate inspect {shlex.quote(each.path)}" for each in checkpoints)
    convert = []
    for each in checkpoints:
        out = shlex.quote(_output_of(each.path))
        convert.append(f"fsdp-migrate convert {shlex.quote(each.path)} {out}")
    return [
        Step("See which checkpoints FSDP2 loads as they are.", inspect),
        Step("Convert the one that the next run starts from, if it needs it.", tuple(convert)),
    ]


def _output_of(path: str) -> str:
    source = Path(path)
    return str(source.with_name(f"{source.stem if source.is_file() else source.name}-fsdp2"))
