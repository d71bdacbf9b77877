"""Hugging Face: the model alone, as safetensors files with an index, as ``save_pretrained`` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdp_migrate.checkpoint_convert.planned import PlannedTensor
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target
from fsdp_migrate.checkpoint_convert.targets.ties import find_model_ties
from fsdp_migrate.findings import Finding, make_finding


if TYPE_CHECKING:
    from collections.abc import Sequence

    from fsdp_migrate.checkpoint_convert.metadata import Part
    from fsdp_migrate.checkpoint_convert.planned import PlannedEntry


class HfTarget(Target):
    """What ``from_pretrained`` loads, beside a ``config.json`` that is not touched."""

    stack = "hf"
    is_distributed = False

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the stack has no place for it."""
        return Place(()) if part.kind == "model" else None

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the stack."""
        found = self.one_only("model")
        if not self.of_kind("model"):
            found.append(make_finding("FM225", "to='hf'", "no model was recognised."))
        return found

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Keep the tensors of the model."""
        own = {key for part in self.of_kind("model") for key in part.keys}
        ties = find_model_ties(self.manifest)
        kept = [
            e
            for e in entries
            if e.source.key in own and isinstance(e, PlannedTensor) and e.source.key not in ties
        ]
        lost = [e.source.key for e in entries if e.source.key in own and not isinstance(e, PlannedTensor)]
        rest = [part.name for part in self.parts if part.kind != "model"]
        found: list[Finding] = [
            make_finding("FM264", alias, f"it is `{first}`, which holds its values.")
            for alias, first in ties.items()
        ]
        if rest or lost:
            names = ", ".join(f"`{name}`" for name in (*rest, *lost)[:8])
            found.append(
                make_finding("FM257", "hf", f"{names}: safetensors hold the tensors of a model and no more.")
            )
        return Arrangement(tuple(kept), findings=tuple(found))
