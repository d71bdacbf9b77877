"""Where each FSDP2 stack looks for a model and an optimizer in a distributed checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.checkpoint_convert.keys import Path
    from fsdp_migrate.checkpoint_convert.metadata import Manifest, Part, Stack


_PLANNED: Final = ("accelerate", "lightning", "torchtitan", "hf")


def resolve_target(manifest: Manifest, to: str) -> tuple[Stack, Callable[[Part], Path | None]]:
    """Return the target's stack, and where it looks for each part.

    Args:
        manifest: The source.
        to: ``"torch"``, ``"composer"``, or ``"auto"`` for the stack that wrote the source.

    Raises:
        ConfigError: There is no such target.
        UnsupportedFeatureError: It cannot be written yet, or not from this source.
    """
    if to in _PLANNED:
        msg = f"Converting to {to!r} is not possible yet; 'torch' and 'composer' are."
        raise UnsupportedFeatureError(msg, feature=f"to={to}")
    if to not in ("auto", "torch", "composer"):
        msg = f"`to` is {to!r}; expected one of 'auto', 'torch', 'composer'."
        raise ConfigError(msg, field="to")
    if to in ("auto", manifest.stack):
        return manifest.stack, _stay
    if to == "composer":
        msg = (
            f"{manifest.source!r} was not saved by Composer: it has none of the timestamps, schedulers "
            "and callbacks' state that Composer's Trainer loads. Converting to 'composer' from it is not "
            "possible yet."
        )
        raise UnsupportedFeatureError(msg, feature="to=composer from another stack")
    return "torch", _composer_to_torch(manifest)


def _stay(part: Part) -> Path:
    return part.prefix


def _composer_to_torch(manifest: Manifest) -> Callable[[Part], Path | None]:
    optimizers = [part.name for part in manifest.parts if part.kind == "optimizer"]
    if len(optimizers) > 1:
        msg = (
            f"{manifest.source!r} holds {len(optimizers)} optimizers ({', '.join(optimizers)}), and plain "
            "torch checkpoints have one place, `optim`. Convert it to 'composer', or with weights_only."
        )
        raise UnsupportedFeatureError(msg, feature="several optimizers to torch")
    places: dict[str, Path] = {"model": ("model",), "optimizer": ("optim",)}
    return lambda part: places.get(part.kind)
