"""A ``StorageReader`` of torch.distributed.checkpoint for every checkpoint that ``convert`` reads."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from fsdp_migrate.arguments import (
    FLAG,
    FUNCTION,
    NOTHING,
    PATH,
    TEXT,
    TEXTS,
    check_arguments,
    instance_of,
)
from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue, refuse_unlike
from fsdp_migrate.checkpoint_convert.loading.slices import Slice, read_slices
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedEntry, PlannedTensor
from fsdp_migrate.checkpoint_convert.sources.detect import open_source
from fsdp_migrate.errors import CheckpointError, CheckpointMismatchError
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from fsdp_migrate.checkpoint_convert.storage.folders import Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


class CheckpointReader(StorageReader):
    """Reads any FSDP1-era checkpoint behind ``dcp.load``, as if it had been converted.

    In place of ``convert_checkpoint`` and torch's ``FileSystemReader``. The names are those
    of ``convert --to``; ``reader.read_metadata().state_dict_metadata`` lists them. No file is written.
    Nothing of the checkpoint is unpickled: torch's planner is handed values that were read by a table of
    names and written anew. Tensors are read straight into those that are to hold them.

    Args:
        path: Any checkpoint that ``convert`` reads: a folder, a file or an fsspec URL.
        to: Whose names are asked for: ``"torch"``, ``"composer"`` or ``"torchtitan"``.
        weights_only: Offer models and nothing else.
        rename: Changes of names of parameters, each ``"regex=replacement"``.
        map: What becomes of parameters that a later model holds otherwise: a text for :func:`read_map`, or
            what it gave.
        options: What the checkpoint does not say itself, such as the model of flat parameters.
        progress: Called with a :class:`ProgressEvent` now and then.

    Attributes:
        findings: What there is to say about the checkpoint, and about what was loaded.

    Raises:
        CheckpointError: On reading: it is damaged, unsafe, or cannot be loaded. ``dcp.load`` raises it as
            a part of torch's ``CheckpointException``.

    Example:
        >>> reader = CheckpointReader("tests/checkpoint/data/torch-2.13.0/plain.dcp")
        >>> reader.read_metadata().state_dict_metadata["model.emb.weight"].size
        torch.Size([11, 6])
        >>> reader.close()
    """

    def __init__(
        self,
        path: Location,
        *,
        to: str = "torch",
        weights_only: bool = False,
        rename: Sequence[str] = (),
        map: str | ParameterMap | None = None,
        options: SourceOptions | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_arguments(PATH, path=path)
        check_arguments(TEXT, to=to)
        check_arguments(FLAG, weights_only=weights_only)
        check_arguments(TEXTS, rename=rename)
        check_arguments(TEXT | instance_of(ParameterMap) | NOTHING, map=map)
        check_arguments(instance_of(SourceOptions) | NOTHING, options=options)
        check_arguments(FUNCTION | NOTHING, progress=progress)
        self.path = path
        self.findings: tuple[Finding, ...] = ()
        self._asked: dict[str, Any] = {
            "to": to,
            "weights_only": weights_only,
            "renames": tuple(rename),
            "map": map,
            "options": options,
        }
        self._progress = progress
        self._opened: Catalogue | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Look at the checkpoint now; otherwise it is done when the metadata is asked for.

        Raises:
            CheckpointError: It cannot be read.
        """
        self._catalogue()

    def close(self) -> None:
        """Close what is open; ``dcp.load`` does it by itself once it has read."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Tell whether there is a checkpoint of a kind that is known."""
        try:
            open_source(checkpoint_id).folder.close()
        except CheckpointError:
            return False
        return True

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin anew, with another checkpoint if one is given; torch calls it."""
        self.close()
        if checkpoint_id is not None:
            self.path = checkpoint_id

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Return what the checkpoint offers, each tensor in one piece."""
        catalogue = self._catalogue()
        # A number that was a key stands as its text, as in a file.
        paths = {
            entry.key: tuple(name if isinstance(name, int) else str(name) for name in entry.path)
            for entry in catalogue.plan.entries
            if entry.path is not None
        }
        return Metadata(
            state_dict_metadata={entry.key: _describe(entry) for entry in catalogue.plan.entries},
            planner_data=paths or None,
            # The planner asks for tensors by name alone: where they lie is this reader's own matter.
            storage_data={},
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        """Take note that reading begins; torch calls it."""
        del metadata, is_coordinator

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan of this rank, with what it sees of the checkpoint."""
        return replace(plan, storage_data=self._catalogue().seen)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans of all ranks as they are.

        Raises:
            CheckpointMismatchError: The ranks see different checkpoints.
        """
        seen = {rank: str(plan.storage_data) for rank, plan in enumerate(plans) if plan.storage_data}
        refuse_unlike(os.fspath(self.path), seen, "Give all ranks the same files.")
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank's plan asks for.

        Raises:
            CheckpointError: The checkpoint is damaged, or has changed since it was looked at.
        """
        catalogue = self._catalogue()
        try:
            # In this order: of a file that was replaced meanwhile something else was read than was checked.
            self._read(catalogue, plan, planner)
            catalogue.check_unchanged()
        finally:
            self.close()
        # torch waits for a future; here all is read by now.
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, catalogue: Catalogue, plan: LoadPlan, planner: LoadPlanner) -> None:
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        # A value may be refused, and is small: nothing is changed before all of them are known.
        values = {
            item.storage_index.fqn: catalogue.value_bytes(item.storage_index.fqn)
            for item in plan.items
            if item.type == LoadItemType.BYTE_IO
        }
        targets = [planner.resolve_tensor(item).detach() for item in tensors]
        slices = [_slice(catalogue, item, target) for item, target in zip(tensors, targets, strict=True)]
        read_slices(catalogue.folder, slices, progress=self._progress)
        for item, target in zip(tensors, targets, strict=True):
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(values[item.storage_index.fqn]))
        pairs = [(item.storage_index.fqn, one) for item, one in zip(tensors, slices, strict=True)]
        self.findings = (*catalogue.findings, *cast_findings(pairs))

    def _catalogue(self) -> Catalogue:
        if self._opened is None:
            self._opened = Catalogue(self.path, **self._asked)
            self.findings = self._opened.findings
        return self._opened


def _describe(entry: PlannedEntry) -> TensorStorageMetadata | BytesStorageMetadata:
    """Say to torch's planner what an entry is."""
    if not isinstance(entry, PlannedTensor):
        return BytesStorageMetadata()
    shape = torch.Size(entry.source.shape)
    return TensorStorageMetadata(
        TensorProperties(dtype=getattr(torch, entry.dtype)),
        shape,
        # Boxes are put together here: one piece spares the planner a comparison with each that is stored.
        [ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)],
    )


def _slice(catalogue: Catalogue, item: ReadItem, target: torch.Tensor) -> Slice:
    entry = catalogue.tensors[item.storage_index.fqn].source
    first = item.storage_index.offset or (0,) * len(entry.shape)
    offsets = tuple(map(sum, zip(first, item.storage_offsets, strict=True)))
    box = (offsets, tuple(item.lengths))
    if tuple(target.shape) != box[1]:
        msg = (
            f"`{item.storage_index.fqn}`: the planner asks for a part of shape {list(box[1])}, and gave a "
            f"tensor of shape {list(target.shape)} to hold it."
        )
        raise CheckpointMismatchError(msg)
    return Slice(entry, box, target)


def cast_findings(slices: Iterable[tuple[str, Slice]]) -> list[Finding]:
    """Say which tensors had another type in the checkpoint than what holds them now."""
    kinds: dict[tuple[str, str], dict[str, None]] = {}
    for key, one in slices:
        held = str(one.target.dtype).removeprefix("torch.")
        if held != one.entry.dtype:
            kinds.setdefault((one.entry.dtype, held), {})[key] = None
    return [cast_finding(stored, held, list(keys)) for (stored, held), keys in kinds.items()]


def cast_finding(stored: str, held: str, keys: Sequence[str]) -> Finding:
    """Return the finding that some tensors were cast."""
    text = f"{counted(len(keys), 'tensor')}, {stored} to {held}: {named(keys, 8)}."
    return make_finding("FM430", keys[0], text)
