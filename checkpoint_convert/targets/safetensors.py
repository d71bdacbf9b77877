"""Hugging Face: the model alone, as safetensors files with an index, as ``save_pretrained`` writes them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.safetensors_reader import DTYPE_WORDS
from fsdp_migrate.checkpoint_convert.manifest.classify import entry_path
from fsdp_migrate.checkpoint_convert.manifest.manifest import TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor
from fsdp_migrate.checkpoint_convert.storage.model_files import MODEL_CONFIG, is_text_of_model, is_tokenizer
from fsdp_migrate.checkpoint_convert.targets.base import Arrangement, Place, Target
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, Part
    from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry


# Composer's HuggingFaceModel: the attribute that holds the model, and where its configuration is stored.
HUGGINGFACE_ATTRIBUTE: Final = "model."
_INTEGRATION: Final = "integrations.huggingface"


_HOW_TO_BRING: Final = (
    "Convert again with `--hf-config DIR --overwrite` (in Python `model_files=read_model_files(DIR)`); DIR "
    "is the folder of the model that was trained from. Or copy these files into the output yourself: "
    "`--overwrite` replaces the weights there, and keeps every other file."
)
_TOKENIZER_ALONE: Final = (
    "AutoTokenizer needs it, the model does not. Copy its files into the output from where the training "
    "took them."
)


class HfTarget(Target):
    """What ``from_pretrained`` loads, beside a ``config.json`` that is not touched."""

    framework = "hf"
    title = "Hugging Face"
    is_distributed = False
    models_only = True

    def place(self, part: Part) -> Place | None:
        """Return where a part goes, or None where the framework has no place for it."""
        return Place(()) if part.kind == "model" else None

    def move(self, part: Part, path: Path) -> Path:
        """Return the path of an entry of a part in the output."""
        moved = super().move(part, path)
        if part.kind != "model" or not self._is_wrapped or not isinstance(moved[0], str):
            return moved
        return (moved[0].removeprefix(HUGGINGFACE_ATTRIBUTE), *moved[1:])

    @functools.cached_property
    def _is_wrapped(self) -> bool:
        # What the user renames is the user's to rename.
        return not self.options.rules and is_huggingface_model(self.manifest, self.of_kind("model"))

    def refusals(self) -> list[Finding]:
        """Return the reasons why this source cannot be written for the framework."""
        found = self.one_only("model")
        if not self.of_kind("model"):
            found.append(make_finding("FM225", "to='hf'", "no model was recognised."))
        return [*found, *self._unknown_types()]

    def _unknown_types(self) -> Iterator[Finding]:
        """Yield a refusal for each type of tensor that no header of safetensors has a word for."""
        unknown: dict[str, list[str]] = {}
        for part in self.of_kind("model"):
            for key in part.keys:
                entry = self.manifest.entries[key]
                if isinstance(entry, TensorEntry) and entry.dtype not in DTYPE_WORDS:
                    unknown.setdefault(entry.dtype, []).append(key)
        for dtype, keys in unknown.items():
            text = f"`{keys[0]}` is of the type {dtype}, and {len(keys) - 1} more are."
            yield make_finding("FM290", keys[0], text, "Convert it to 'torch', which keeps every type.")

    def arrange(self, entries: Sequence[PlannedEntry]) -> Arrangement:
        """Keep the tensors of the model."""
        own = {key for part in self.of_kind("model") for key in part.keys}
        ties = self.manifest.ties
        kept = [
            e
            for e in entries
            # The library refuses two names for one memory: of tied parameters one is written.
            if e.source.key in own and isinstance(e, PlannedTensor) and e.source.key not in ties
        ]
        lost = [e.source.key for e in entries if e.source.key in own and not isinstance(e, PlannedTensor)]
        others = [part for part in self.parts if part.kind != "model"]
        rest = [part.name for part in others if not self._may_be_published(part)]
        lost = [*(part.name for part in others if part.name not in rest), *lost]
        found: list[Finding] = [
            make_finding("FM264", alias, f"it is `{first}`, which holds its values.")
            for alias, first in ties.items()
        ]
        if self._is_wrapped:
            found.append(
                make_finding(
                    "FM276",
                    "model",
                    f"{counted(len(kept), 'name')}, as `from_pretrained` expects them.",
                    "To decide about the names yourself, give --rename; then no other name is changed.",
                )
            )
        # What a run alone has nobody misses there.
        for left, subject in ((rest, self.framework), (lost, "model")):
            if left:
                text = f"{named(left, 8)}: safetensors hold the tensors of a model, and nothing else."
                found.append(make_finding("FM257", subject, text))
        return Arrangement(tuple(kept), findings=tuple(found))

    def _may_be_published(self, part: Part) -> bool:
        """Tell whether a part has weights, such as an average has. A random state holds whole numbers."""
        entries = (self.manifest.entries[key] for key in part.keys)
        tensors = (each for each in entries if isinstance(each, TensorEntry))
        return part.kind != "optimizer" and any("float" in each.dtype for each in tensors)

    def carries(self, name: str) -> bool:
        """Tell whether another file of the source comes along: no pickle goes where a model is published."""
        return is_text_of_model(name) and name not in self.options.model_files

    def lacks(self, beside: Collection[str]) -> list[Finding]:
        """Return what the output needs and has not, by the files that are put beside the weights."""
        return missing_files(beside)


def missing_files(beside: Collection[str]) -> list[Finding]:
    """Say what ``from_pretrained`` needs and is not among the files beside the weights."""
    missing = [] if MODEL_CONFIG in beside else [f"`{MODEL_CONFIG}`, without which `from_pretrained` fails,"]
    # Whoever has `config.json` there has brought it, and is not told to bring it.
    how = _HOW_TO_BRING if missing else _TOKENIZER_ALONE
    missing += [] if any(map(is_tokenizer, beside)) else ["the tokenizer"]
    said = " and ".join(missing).rstrip(",")
    return [make_finding("FM292", "hf", f"the output lacks {said}.", how)] if missing else []


def is_huggingface_model(manifest: Manifest, models: Sequence[Part]) -> bool:
    """Tell whether the model is the attribute ``model`` of Composer's ``HuggingFaceModel``.

    That class stores the configuration of the model under ``integrations.huggingface``.
    """
    names = [str(entry_path(manifest.entries[key])[len(part.prefix)]) for part in models for key in part.keys]
    has_integration = any(_INTEGRATION in key for key in manifest.entries)
    return has_integration and all(name.startswith(HUGGINGFACE_ATTRIBUTE) for name in names)
