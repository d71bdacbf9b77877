"""Which target writes for which framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.options import OutputOptions
from fsdp_migrate.checkpoint_convert.targets.accelerate import AccelerateTarget
from fsdp_migrate.checkpoint_convert.targets.base import Place, Target, UnchangedTarget
from fsdp_migrate.checkpoint_convert.targets.composer import ComposerTarget
from fsdp_migrate.checkpoint_convert.targets.lightning import LightningTarget
from fsdp_migrate.checkpoint_convert.targets.safetensors import HfTarget
from fsdp_migrate.checkpoint_convert.targets.torch import TorchTarget, UnchangedTorch
from fsdp_migrate.checkpoint_convert.targets.torchtitan import TorchtitanTarget
from fsdp_migrate.errors import ConfigError


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part


TARGETS: Final[Mapping[str, type[Target]]] = {
    "accelerate": AccelerateTarget,
    "composer": ComposerTarget,
    "hf": HfTarget,
    "lightning": LightningTarget,
    "torch": TorchTarget,
    "torchtitan": TorchtitanTarget,
}
"""The target of each framework, by the word for it."""
_ROOT_OPTIMIZERS: Final = ("optimizers",)


def resolve_target(
    manifest: Manifest,
    to: str,
    *,
    parts: Sequence[Part] | None = None,
    options: OutputOptions | None = None,
) -> Target:
    """Return what writes for a framework.

    Args:
        manifest: The source.
        to: A word of :data:`TARGETS`, or ``"auto"`` for the framework that wrote the source.
        parts: The parts of the source that are wanted; None for all.
        options: What the user says about the output.

    Raises:
        ConfigError: There is no such target.
    """
    if to != "auto" and to not in TARGETS:
        words = ", ".join(map(repr, ("auto", *TARGETS)))
        raise ConfigError(f"`to` is {to!r}; expected one of {words}.", field="to")
    wanted = manifest.parts if parts is None else parts
    framework = manifest.framework if to == "auto" else to
    # A checkpoint of plain torch has the names that its owner chose and looks for; Composer's are its own.
    is_own = framework == manifest.framework and framework in ("torch", "composer")
    kind = _OWN[framework] if is_own else TARGETS.get(framework, TorchTarget)
    return kind(manifest, wanted, options or OutputOptions())


class _UnchangedComposer(UnchangedTarget):
    framework = "composer"

    def place(self, part: Part) -> Place:
        """Return where a part is, but for optimizers, which Composer saved at the root with torch before 2.3.

        It still reads them from there, by functions that only know FSDP1.
        """
        is_at_root = part.kind == "optimizer" and part.prefix[:1] == _ROOT_OPTIMIZERS
        return Place(("state", *part.prefix)) if is_at_root else super().place(part)


_OWN: Final[Mapping[str, type[Target]]] = {"torch": UnchangedTorch, "composer": _UnchangedComposer}
