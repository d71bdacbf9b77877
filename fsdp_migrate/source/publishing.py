"""The step that writes what ``from_pretrained`` reads, with the names that the model's weights have."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.errors import FSDPMigrateError
from fsdp_migrate.source.next_step import Step


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.source.surroundings import CheckpointFound


TRAINERS = "trainer_state.json"
"""As HF Trainer leaves it beside what it goes on from."""
_PUBLISH = "To publish the weights of a checkpoint, write what `from_pretrained` reads."
_DRY = (
    "Type it with `--dry-run` first: where the names in the checkpoint are not the model's, it says which "
    "`--rename` makes them so."
)
_FOLDER = "DIR is the folder of the model that was trained from, with its config.json."
_IS_THERE = "To publish the weights of {0}: `from_pretrained` reads those that lie in it, as they are."
_MOST_MODELS = 4


def is_trainers(checkpoint: CheckpointFound) -> bool:
    """Tell whether HF Trainer has left a checkpoint, and not Accelerate alone."""
    return (Path(checkpoint.path) / TRAINERS).is_file()


def steps_to_publish(waiting: Sequence[CheckpointFound], models: Sequence[str]) -> list[Step]:
    """Return the step that publishes the weights of a checkpoint, where the model is one of transformers.

    Args:
        waiting: The checkpoints that a run may go on from.
        models: The folders with the config of a model.
    """
    trainers = next(filter(is_trainers, waiting), None)
    inner = next(
        (each for each in (waiting if models else [trainers]) if each and not each.is_published), None
    )
    if inner is None:
        is_there = trainers is not None and trainers.is_published
        return [Step(_IS_THERE.format(trainers.path), ())] if trainers is not None and is_there else []
    if not models:
        return [Step(f"{_PUBLISH} {_FOLDER} {_DRY}", (_command(inner, "DIR"),))]
    # Weights beside a config tell the names; without them the installed transformers does, in `convert`.
    renames = ((model, _rename(inner, model)) for model in models[:_MOST_MODELS])
    fitting = next(((model, rename) for model, rename in renames if rename is not None), None)
    if fitting is None:
        return [Step(f"{_PUBLISH} {_DRY}", (_command(inner, models[0]),))]
    return [Step(_PUBLISH, (_command(inner, *fitting),))]


def _command(checkpoint: CheckpointFound, model: str, rename: str = "") -> str:
    more = f" --rename {shlex.quote(rename)}" if rename else ""
    folder = shlex.quote(model)
    return f"fsdp-migrate convert {shlex.quote(checkpoint.path)} OUT --to hf --hf-config {folder}{more}"


def _rename(checkpoint: CheckpointFound, model: str) -> str | None:
    """Return what makes a checkpoint's names those of a model's weights, empty if they are; else None."""
    from fsdp_migrate.checkpoint_convert import inspect_checkpoint, plan_conversion
    from fsdp_migrate.checkpoint_convert.planning.config_fit import rename_for

    if checkpoint.outlook is None or not any(Path(model).glob("*.safetensors")):
        return None
    try:
        plan = plan_conversion(inspect_checkpoint(checkpoint.path), to="hf")
        return rename_for(plan, inspect_checkpoint(model).entries)
    except (FSDPMigrateError, OSError, RecursionError):
        return None
