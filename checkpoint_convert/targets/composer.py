"""Composer: ``state.model``, ``state.optimizers.<class>`` and whatever else its Trainer keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


_MODEL: Final = ("state", "model")
_OPTIMIZERS: Final = ("state", "optimizers")
_HOW: Final = (
    "Load it with `load_weights_only=True`; or, for the optimizer too, with `load_ignore_keys=[{keys}]`."
)
# What `composer.core.State` and the Trainer expect beside model and optimizers, and only Composer writes.
IGNORE_KEYS: Final = (
    "state/timestamp",
    "state/schedulers",
    "state/algorithms",
    "state/callbacks",
    "state/rank_zero_seed",
    "state/run_name",
    "state/dataset_state",
    "state/integrations",
    "state/metadata",
    "state/scaler",
    "rng",
)


class ComposerTarget(Target):
    """What another framework saved, where Composer looks for it."""

    framework = "composer"
    title = "Composer"
    nested_only = True

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        if part.kind == "model":
            return Place(_MODEL)
        if part.kind == "optimizer":
            # Without the class it is refused (FM254), so that no output has `?`.
            return Place((*_OPTIMIZERS, self.options.optimizer_class or "?"))
        return None

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the framework."""
        found = [*super().refusals(), *self.one_only("model"), *self.one_only("optimizer")]
        if self.of_kind("optimizer") and self.options.optimizer_class is None:
            found.append(
                make_finding(
                    "FM254",
                    self.of_kind("optimizer")[0].name,
                    "Composer looks for an optimizer's state under the name of its class, such as "
                    "`DecoupledAdamW`, and the source does not say it.",
                    "Give it (`--optimizer-class DecoupledAdamW`), or leave the optimizer out with "
                    "`weights_only` (--weights-only).",
                )
            )
        return found

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Say how Composer loads what has no timestamp."""
        keys = ", ".join(repr(key) for key in IGNORE_KEYS)
        found = make_finding(
            "FM255",
            "state",
            "Composer's timestamp, schedulers, callbacks and random state are not in the source, and are not "
            "invented.",
            _HOW.format(keys=keys),
        )
        return Arrangement(tuple(entries), findings=(found,))
