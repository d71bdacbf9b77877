"""Which model of a checkpoint, and which optimizers, are those of the model that asks."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, Final

import torch

from fsdp_migrate.checkpoint_convert.manifest.classify import MODEL_NAMES, is_numbered_model
from fsdp_migrate.errors import CheckpointMismatchError


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue, OfferedPart


_WHOSE: Final = (
    "{!r} holds {}, optimizers of the same parameters, and which of them is that of `{}` is not seen. "
    "Nothing was loaded. Load the model alone, and the optimizer from what the file has under its name: "
    "optimizer.load_state_dict(optim_state_dict_to_load(model, optimizer, saved)). Or save it under a name "
    "that begins as the model's."
)


def read_rewritten(data: bytes) -> Any:
    """Return a value of an archive that was written here, of what the safe reader found in a checkpoint."""
    return torch.load(io.BytesIO(data), weights_only=False)


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
    catalogue: Catalogue, chosen: OfferedPart | None, known: Collection[str]
) -> list[OfferedPart]:
    """Return the optimizers of a model: all, or of several models' those that hold its parameters.

    Raises:
        CheckpointMismatchError: Several hold a state of the same parameter, and nothing tells whose it is.
    """
    found = [part for part in catalogue.parts if part.kind == "optimizer"]
    models = [part for part in catalogue.parts if part.kind == "model"]
    if chosen is None or len(models) < 2:
        return found
    models = [*models, *([] if chosen in models else [chosen])]
    held = {part.name: _held(catalogue, part, {*known, *_names_of(models)}) for part in found}
    own = [part for part in found if chosen in _owners(catalogue, held[part.name], models)]
    above, _, last = chosen.name.rpartition(".")
    beside = [part for part in own if part.name.rpartition(".")[0] == above]
    named = [part for part in beside or own if last in part.name]
    left = named or beside or own
    if not _overlap(held[part.name] for part in left):
        return left
    short = [part for part in left if _is_short_for(part, chosen, models)]
    if len(short) == 1:
        return short
    raise CheckpointMismatchError(
        _WHOSE.format(
            catalogue.manifest.source, " and ".join(f"`{part.name}`" for part in left[:4]), chosen.name
        ),
        path=catalogue.manifest.source,
    )


def _names_of(models: Iterable[OfferedPart]) -> Iterator[str]:
    return (model.below(key) for model in models for key in model.keys)


def _held(catalogue: Catalogue, part: OfferedPart, known: Collection[str]) -> dict[str, list[str]]:
    """Return the parameters that an optimizer has a state of, with its keys; else those of its groups."""
    found: dict[str, list[str]] = {}
    for key in part.keys:
        split = split_state(part.below(key), known)
        if split is not None:
            found.setdefault(split[0], []).append(key)
    if found:
        return found
    for key in part.keys:
        steps = part.below(key).split(".")
        if steps[0] == "param_groups" and steps[2:] in ([], ["params"]) and key not in catalogue.tensors:
            value = read_rewritten(catalogue.value_bytes(key))
            groups = [value] if steps[2:] else [group.get("params", ()) for group in value]
            found.update((str(name), []) for group in groups for name in group)
    return found


def _owners(
    catalogue: Catalogue, held: Mapping[str, Sequence[str]], models: Sequence[OfferedPart]
) -> list[OfferedPart]:
    """Return the models that an optimizer's parameters are of, by names and shapes; all where none tells."""
    scores = []
    for model in models:
        shapes = {model.below(key): _shape(catalogue, key) for key in model.keys}
        own = {name: keys for name, keys in held.items() if name in shapes}
        alike = (n for n, keys in own.items() if any(_shape(catalogue, key) == shapes[n] for key in keys))
        scores.append((len(own), len({*alike})))
    return [model for model, score in zip(models, scores, strict=True) if score == max(scores)]


def _overlap(names: Iterable[Collection[str]]) -> bool:
    every = [name for each in names for name in each]
    return len(every) > len({*every})


def _is_short_for(optimizer: OfferedPart, model: OfferedPart, models: Sequence[OfferedPart]) -> bool:
    """Tell whether an optimizer's name has the beginning of one model's alone: ``opt_a`` beside ``actor``."""
    words = {each for each in re.split(r"[._]", optimizer.name) if each and not each.startswith("opt")}
    called = [each for each in models if each.name.rpartition(".")[2].startswith(tuple(words))]
    return bool(words) and called == [model]


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
