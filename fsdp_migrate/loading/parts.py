"""Which model of a checkpoint, and which optimizers, are those of the model that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.manifest.classify import MODEL_NAMES, is_numbered_model
from fsdp_migrate.errors import CheckpointMismatchError


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue, OfferedPart


def choose_model(
    catalogue: Catalogue, known: Collection[str], shapes: Mapping[str, tuple[int, ...]], part: str | None
) -> OfferedPart | None:
    """Return the model that fits best: by its names, by their shapes, and by what it has besides.

    Args:
        catalogue: The checkpoint.
        known: The names of the model's parameters.
        shapes: The shapes of its parameters and buffers.
        part: What it is called in the checkpoint, where that was said.

    Raises:
        CheckpointMismatchError: Several fit as well, or none is called so.
    """
    if part is not None:
        return _called(catalogue, part)

    def score(each: OfferedPart) -> tuple[int, int, int]:
        names = {each.below(key): key for key in each.keys}
        fitting = [name for name in names if name in known]
        alike = sum(_shape(catalogue, names[name]) == shapes.get(name) for name in names)
        return len(fitting), alike, len(fitting) - len(names)

    models = [each for each in catalogue.parts if each.kind == "model"]
    scores = [score(each) for each in models]
    best = [each for each, own in zip(models, scores, strict=True) if own == max(scores)]
    if len(best) < 2 or not max(scores)[0]:
        return best[0] if best else None
    plain = _plainly_named(best)
    if plain is None:
        names = " and ".join(f"`{each.name}`" for each in best[:4])
        msg = (
            f"{catalogue.manifest.source!r} holds {names}, which fit this model equally well. Nothing was "
            f"loaded. Say which it is: part={best[0].name!r}."
        )
        raise CheckpointMismatchError(msg, path=catalogue.manifest.source)
    return plain


def _called(catalogue: Catalogue, name: str) -> OfferedPart:
    parts = [each for each in catalogue.parts if each.kind != "optimizer"]
    found = [each for each in parts if each.name == name]
    found = found or [each for each in parts if each.name.rpartition(".")[2] == name]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"`{each.name}`" for each in parts if len(each.keys) > 1) or "no model"
    msg = (
        f"`part` is {name!r}, and {len(found) or 'nothing'} in {catalogue.manifest.source!r} is called so. "
        f"Nothing was loaded. It has: {there}."
    )
    raise CheckpointMismatchError(msg, path=catalogue.manifest.source)


def _plainly_named(parts: Sequence[OfferedPart]) -> OfferedPart | None:
    """Return the one that is called the model, as beside a ``teacher``; not of ``model`` and ``model_1``."""
    last = {each.name.rpartition(".")[2]: each for each in parts}
    plain = [each for name, each in last.items() if name in MODEL_NAMES]
    is_one = len(plain) == 1 and len(last) == len(parts)
    return plain[0] if is_one and not any(map(is_numbered_model, last)) else None


def _shape(catalogue: Catalogue, key: str) -> tuple[int, ...] | None:
    found = catalogue.tensors.get(key)
    return None if found is None else tuple(found.source.shape)


def choose_optimizers(
    parts: Sequence[OfferedPart], chosen: OfferedPart | None, known: Collection[str]
) -> list[OfferedPart]:
    """Return the optimizers of a model: all, or of several models' those that have its names."""
    found = [part for part in parts if part.kind == "optimizer"]
    if chosen is None or sum(part.kind == "model" for part in parts) < 2:
        return found
    own = [part for part in found if any(split_state(part.below(key), known) for key in part.keys)]
    above, _, last = chosen.name.rpartition(".")
    beside = [part for part in own if part.name.rpartition(".")[0] == above]
    named = [part for part in beside or own if last in part.name]
    return named or beside or own


def split_state(below: str, known: Collection[str]) -> tuple[str, str] | None:
    """Divide ``state.up.weight.exp_avg`` into the parameter's name and the field; a field can have dots."""
    if not below.startswith("state."):
        return None
    parts = below.removeprefix("state.").split(".")
    for end in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:end])
        if name in known:
            return name, ".".join(parts[end:])
    return (".".join(parts[:-1]), parts[-1]) if len(parts) > 1 else None
