"""What a checkpoint offers to whoever loads it: tensors and values, under the names that they ask for."""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.execution.identity import check_unchanged
from fsdp_migrate.checkpoint_convert.execution.new_values import rewritten_value
from fsdp_migrate.checkpoint_convert.manifest.keys import all_have_module, join_path
from fsdp_migrate.checkpoint_convert.manifest.options import OutputOptions
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor, PlannedValue
from fsdp_migrate.checkpoint_convert.maps.read import read_map
from fsdp_migrate.checkpoint_convert.planning.merged import check_merged
from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan, plan_conversion
from fsdp_migrate.checkpoint_convert.sources.read import reading_source
from fsdp_migrate.checkpoint_convert.targets.frameworks import resolve_target
from fsdp_migrate.errors import CheckpointMismatchError, ConfigError
from fsdp_migrate.findings import Finding, counted, raise_on_findings


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest, PartKind
    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location


# What speaks of an output that is not written here: how it is divided, linked, named, and copied along.
_OF_OUTPUTS: Final = frozenset(
    {"FM201", "FM204", "FM207", "FM208", "FM210", "FM211", "FM212", "FM213", "FM274"}
)


@dataclass(frozen=True, slots=True)
class OfferedPart:
    """A model, an optimizer or something else in a checkpoint, under the names that a loader asks for.

    Attributes:
        kind: What it is.
        name: Its name in the checkpoint.
        prefix: What its keys begin with, without the dot behind it; "" where they begin with nothing.
        keys: Its keys.
    """

    kind: PartKind
    name: str
    prefix: str
    keys: tuple[str, ...]

    def below(self, key: str) -> str:
        """Return a key without the prefix.

        Example:
            >>> OfferedPart("model", "net", "model", ("model.up.weight",)).below("model.up.weight")
            'up.weight'
        """
        return key.removeprefix(f"{self.prefix}.") if self.prefix else key


def _without_model(manifest: Manifest) -> Manifest:
    """Return a manifest that is held against no model; whether ``module.`` is the model's own is kept."""
    own = manifest.outline.parameters if manifest.outline is not None else ()
    return replace(manifest, outline=None, keeps_module=all_have_module(own))


class Catalogue:
    """An open checkpoint; what it offers is what ``convert`` would write, and nothing is written.

    Args:
        src: Any checkpoint that ``convert`` reads.
        to: Whose names are asked for; a word of ``convert --to`` whose output is one distributed checkpoint.
        weights_only: Leave all but models out.
        without_optimizer: Leave optimizers out.
        renames: Changes of names; see ``OutputOptions``.
        map: What becomes of parameters that a later model holds otherwise; see ``read_map``.
        options: What the source does not say itself.
        holds_to_model: Hold the checkpoint against the model in ``options``, and refuse another's.

    Raises:
        CheckpointError: It cannot be read or converted; every reason is in the one error.
        ConfigError: An argument is none of its words.
    """

    def __init__(
        self,
        src: Location,
        *,
        to: str = "torch",
        weights_only: bool = False,
        without_optimizer: bool = False,
        renames: Sequence[str] = (),
        map: str | ParameterMap | None = None,
        options: SourceOptions | None = None,
        holds_to_model: bool = True,
    ) -> None:
        wanted = read_map(map, beside=src) if isinstance(map, str) else map
        asked = OutputOptions(renames=tuple(renames), map=wanted)
        self._stack = contextlib.ExitStack()
        try:
            self.folder: Folder
            self.manifest: Manifest
            self.folder, found = self._stack.enter_context(reading_source(src, options))
            held = found if holds_to_model else _without_model(found)
            self.plan: ConversionPlan = plan_conversion(
                held,
                to=to,
                weights_only=weights_only,
                without_optimizer=without_optimizer,
                output_options=asked,
            )
            self.manifest = self.plan.manifest
            check_merged(self.manifest, self.folder)
            raise_on_findings(self.plan.findings)
            self._check_target(to)
            self.parts = self._offered_parts(to, asked)
        except BaseException:
            self._stack.close()
            raise
        self.tensors: Mapping[str, PlannedTensor] = {entry.key: entry for entry in self.plan.tensors}
        self.values: Mapping[str, PlannedValue] = {
            entry.key: entry for entry in self.plan.entries if isinstance(entry, PlannedValue)
        }
        # So that it is closed, too, where its owner only lets go of it.
        self._closes = weakref.finalize(self, self._stack.close)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what there is to say about the checkpoint, but for what concerns outputs."""
        return tuple(finding for finding in self.plan.findings if finding.code not in _OF_OUTPUTS)

    @property
    def seen(self) -> str:
        """Return what ranks compare: the sizes of files, and every entry with its type and shape.

        Of a store also the versions of the files, where each rank looks again only at those that it read.
        """
        files = self.manifest.files
        told = (files, self.manifest.stamps) if self.folder.read_files is not None else (files,)
        sizes = "".join(repr(sorted(each.items())) for each in told)
        digest = hashlib.sha256(sizes.encode("utf-8", "surrogatepass"))
        for entry in self.plan.entries:
            tensor = self.tensors.get(entry.key)
            shape = None if tensor is None else (tensor.dtype, tensor.source.shape)
            digest.update(repr((entry.key, shape)).encode("utf-8", "surrogatepass"))
        return f"{counted(len(files), 'file')} of {sum(files.values())} bytes ({digest.hexdigest()[:12]})"

    def value_bytes(self, key: str) -> bytes:
        """Return a value as an archive of torch.save that was written here, of what the safe reader read.

        Raises:
            UnsafePickleError: It names a class outside the allow-list.
            CheckpointFormatError: It is damaged.
        """
        return rewritten_value(self.values[key], self.folder)

    def check_unchanged(self) -> None:
        """Check that the files are still those that were looked at; of a store, those that were read.

        Raises:
            CheckpointFormatError: One has changed, or is gone.
        """
        check_unchanged(self.manifest, self.folder, only=self.folder.read_files)

    def close(self) -> None:
        """Close what is open; twice does no harm."""
        self._closes()

    def _check_target(self, to: str) -> None:
        if not self.plan.is_distributed or set(self.plan.folders) - {""}:
            msg = (
                f"`to` is {to!r}, whose checkpoints are no single distributed checkpoint, so that no reader "
                "can stand for one. Expected 'torch', 'composer' or 'torchtitan'."
            )
            raise ConfigError(msg, field="to")

    def _offered_parts(self, to: str, asked: OutputOptions) -> tuple[OfferedPart, ...]:
        kept = {entry.source.key: entry.key for entry in self.plan.entries}
        parts = [part for part in self.manifest.parts if any(key in kept for key in part.keys)]
        target = resolve_target(self.manifest, to, parts=parts, options=asked)
        found = []
        for part in parts:
            place = target.place(part)
            prefix = join_path(part.prefix if place is None else place.path)
            keys = tuple(kept[key] for key in part.keys if key in kept)
            found.append(OfferedPart(part.kind, part.name, prefix, keys))
        return tuple(found)


def refuse_unlike(path: str, seen: Mapping[int, str], hint: str) -> None:
    """Check that all ranks see the same checkpoint.

    Args:
        path: Where it lies.
        seen: What each rank sees.
        hint: What to do if they do not.

    Raises:
        CheckpointMismatchError: They do not.
    """
    if len(set(seen.values())) <= 1:
        return
    ranks: dict[str, list[int]] = {}
    for rank, what in seen.items():
        ranks.setdefault(what, []).append(rank)
    listing = "; ".join(f"ranks {some[:8]}: {what}" for what, some in ranks.items())
    msg = f"The ranks see different checkpoints at {path!r}, so none is loaded: {listing}. {hint}"
    raise CheckpointMismatchError(msg, path=path)
