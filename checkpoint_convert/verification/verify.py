"""Do two checkpoints hold the same? Logical tensors, bit for bit, across any chunking."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

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
from fsdp_migrate.checkpoint_convert.formats.dcp_items import open_value
from fsdp_migrate.checkpoint_convert.formats.tensor_reader import TensorSource
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES, resolve_cast
from fsdp_migrate.checkpoint_convert.manifest.keys import parse_rename
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry, Manifest, TensorEntry
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
from fsdp_migrate.checkpoint_convert.maps.read import read_map
from fsdp_migrate.checkpoint_convert.planning.plan import CASTABLE
from fsdp_migrate.checkpoint_convert.sources.read import read_manifest
from fsdp_migrate.checkpoint_convert.storage.errors import within_limits
from fsdp_migrate.checkpoint_convert.storage.opening import open_folder
from fsdp_migrate.checkpoint_convert.storage.threads import Advance, run_workers
from fsdp_migrate.checkpoint_convert.verification.alignment import (
    AlignedCheckpoint,
    RequestedChanges,
    align_checkpoints,
)
from fsdp_migrate.checkpoint_convert.verification.check import check_manifest, hash_damages
from fsdp_migrate.checkpoint_convert.verification.tensor_compare import TensorComparison, TensorDifference
from fsdp_migrate.checkpoint_convert.verification.tied import may_be_tied, says_tied
from fsdp_migrate.checkpoint_convert.verification.value_compare import value_difference


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.storage.folders import Folder, Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress


DifferenceKind = Literal["missing", "extra", "kind", "dtype", "shape", "value", "damaged"]

_BLOCK: Final = 8 << 20
_THREADS: Final = 2
# Of a tied model one name is there or not, and not half of the model.
_MOST_TIED: Final = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not the same.

    ``index`` is the first element of a tensor that differs, and ``largest`` the largest absolute difference
    of its elements: None where there is no such number (bool, float8, only NaN). ``scale`` is the largest
    number of the first around them, so that ``largest`` can be seen beside it.
    """

    key: str
    kind: DifferenceKind
    message: str
    index: tuple[int, ...] | None = None
    largest: float | None = None
    scale: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "key": self.key,
            "kind": self.kind,
            "message": self.message,
            "index": None if self.index is None else list(self.index),
            # JSON has no word for infinite.
            "largest": self.largest if self.largest is not None and math.isfinite(self.largest) else None,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a comparison found.

    Attributes:
        src: The first checkpoint.
        dst: The second.
        differences: The first differences, in the order of the first checkpoint.
        is_complete: Whether everything was compared; False where there were more differences than asked for.
        tensors: How many tensors both hold and were compared, or were to be.
        values: The same for other values.
        nbytes: The bytes of these tensors.
        renamed: The name in the second of what both hold, where the first has it under another one.
        aside: What only one of them has and was not compared, because the framework of the other keeps it
            elsewhere or not at all. Never a part of a model, and of an optimizer only beside safetensors.
        cast: The tensors whose values were compared after the cast that was asked for, with their new type.
        alike: What is the same in another form, with how: of settings of optimizers a list for a tuple,
            the names of parameters in another order, or other kernels (``foreach``, ``fused``); of tied
            weights one name or both. Both load alike.
        are_tensors_same: Whether all tensors were compared and are the same. Other values may differ, such as
            the folder of a run.
    """

    src: str
    dst: str
    differences: tuple[Difference, ...]
    is_complete: bool
    tensors: int
    values: int
    nbytes: int
    renamed: Mapping[str, str]
    aside: tuple[str, ...] = ()
    cast: Mapping[str, str] = field(default_factory=dict)
    alike: Mapping[str, str] = field(default_factory=dict)
    are_tensors_same: bool = False

    @property
    def is_same(self) -> bool:
        """Tell whether there is no difference."""
        return not self.differences

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "src": self.src,
            "dst": self.dst,
            "is_same": self.is_same,
            "are_tensors_same": self.are_tensors_same,
            "is_complete": self.is_complete,
            "tensors": self.tensors,
            "values": self.values,
            "nbytes": self.nbytes,
            "renamed": dict(self.renamed),
            "aside": list(self.aside),
            "cast": dict(self.cast),
            "alike": dict(self.alike),
            "differences": [difference.as_dict() for difference in self.differences],
        }


@within_limits("compare the checkpoints")
def verify_checkpoints(
    src: Location | Manifest,
    dst: Location | Manifest,
    *,
    renames: Sequence[str] = (),
    map: str | ParameterMap | None = None,
    dtype: object = None,
    optimizer_dtype: object = None,
    weights_only: bool = False,
    without_optimizer: bool = False,
    options: SourceOptions | None = None,
    progress: Progress | None = None,
    max_differences: int = 10,
) -> VerifyReport:
    """Compare two checkpoints: the same names, shapes and types, and the same bits, however they are divided.

    Names are compared once wrappers' prefixes are off on both sides, and so are the parameter names in
    parameter groups; the report says which. Values that are no tensors are compared by what they say, and
    those that cannot be read safely by their bytes. Before that each checkpoint is checked in itself, as
    :func:`check_checkpoint` does it: what is wrong there is ``damaged``, and then nothing else is compared.
    Nothing of a checkpoint is executed.

    What a conversion was asked to change is said again here: names and types of the first are changed in the
    same way before they are compared. A type that nobody asked for is a difference, which says whether the
    values are at least what a cast makes of them.

    Args:
        src: The first checkpoint, or what :func:`inspect_checkpoint` made of it with options.
        dst: The second, in the same way.
        renames: As in :class:`OutputOptions`: ``"regex=replacement"``.
        map: What became of parameters of the first that the second holds otherwise: a text for
            :func:`read_map`, or what it gave.
        dtype: The type that weights of models were cast to, as for :func:`plan_conversion`.
        optimizer_dtype: The same for the state of optimizers.
        weights_only: Compare models, and nothing else.
        without_optimizer: Compare everything but optimizers.
        options: As for :func:`inspect_checkpoint`, for both; not used for what is a manifest already.
        progress: Called with a :class:`ProgressEvent` now and then.
        max_differences: Stop after so many.

    Raises:
        CheckpointError: One of them cannot be read.
        ConfigError: An argument is none of its words, or a rename changes nothing.

    Example:
        >>> folder = "tests/checkpoint/data/torch-2.13.0"
        >>> verify_checkpoints(f"{folder}/plain.dcp", f"{folder}/plain.dcp").is_same
        True
    """
    casts = {
        "model": resolve_cast(dtype, field="dtype"),
        "optimizer": resolve_cast(optimizer_dtype, field="optimizer_dtype"),
    }
    for each in (src, dst):
        check_arguments(PATH | instance_of(Manifest), checkpoint=each)
    check_arguments(TEXTS, renames=renames)
    check_arguments(instance_of(SourceOptions) | NOTHING, options=options)
    check_arguments(FLAG, weights_only=weights_only, without_optimizer=without_optimizer)
    check_arguments(FUNCTION | NOTHING, progress=progress)
    check_arguments(TEXT | instance_of(ParameterMap) | NOTHING, map=map)
    rules = tuple(parse_rename(text) for text in renames)
    beside = src.source if isinstance(src, Manifest) else src
    asked = read_map(map, beside=beside) if isinstance(map, str) else map
    requested = RequestedChanges(rules, casts, weights_only, without_optimizer, asked)
    # What Fabric keeps beside a folder is no less of it than the same in one file.
    read = replace(options or SourceOptions(), side_parts=True)
    manifests = _manifest(src, read), _manifest(dst, read)
    with contextlib.ExitStack() as stack:
        folders = open_folder(manifests[0].source), open_folder(manifests[1].source)
        for folder in folders:
            stack.callback(folder.close)
        damaged = [
            found
            for manifest, folder in zip(manifests, folders, strict=True)
            for found in _damages(manifest, folder, progress)
        ]
        sides, aside = align_checkpoints(manifests, folders, requested)
        comparison = _Comparison(sides, max_differences, damaged, aside)
        return comparison.run(progress)


def _damages(manifest: Manifest, folder: Folder, progress: Progress | None) -> list[Difference]:
    """Check one of the checkpoints in itself; items are not looked at where whole files are wrong."""
    _, damages = hash_damages(folder, progress)
    if not damages:
        check = check_manifest(manifest, progress)
        damages = {key: str(error) for key, error in check.damages.items()}
    return [Difference(key, "damaged", text) for key, text in damages.items()]


def _manifest(source: Location | Manifest, options: SourceOptions | None) -> Manifest:
    return source if isinstance(source, Manifest) else read_manifest(source, options)


def _settings_of(manifest: Manifest) -> set[str]:
    """Return the keys of what stands in the parameter groups of optimizers."""
    optimizers = (part for part in manifest.parts if part.kind == "optimizer")
    return {key for part in optimizers for key in part.keys if "param_groups" in key.split(".")}


class _EnoughError(Exception):
    """There are as many differences as were asked for."""


class _Comparison:
    def __init__(
        self,
        sides: tuple[AlignedCheckpoint, AlignedCheckpoint],
        max_differences: int,
        damaged: Sequence[Difference],
        aside: tuple[str, ...],
    ) -> None:
        self._aside = aside
        self._alike: dict[str, str] = {}
        self._do_tensors_differ = False
        self._settings = _settings_of(sides[0].manifest)
        self._sides = sides
        self._max = max(max_differences, 1)
        self._found = list(damaged)
        self._common = [key for key in sides[0].entries if key in sides[1].entries]
        self._counts = [Counter(entry.key for entry in side.entries.values()) for side in sides]
        self._order = {self._name(0, key): number for number, key in enumerate(sides[0].entries)}

    def run(self, progress: Progress | None) -> VerifyReport:
        """Compare everything."""
        tensors = [key for key in self._common if isinstance(self._entry(key), TensorEntry)]
        nbytes = sum(e.nbytes for k in tensors if isinstance(e := self._entry(k), TensorEntry))
        is_complete = not self._found  # a damaged file may not even be readable
        are_tensors_same = False
        try:
            if is_complete:
                self._compare_keys()
                self._compare_all(list(filter(self._is_tensor, self._common)), nbytes, progress)
                are_tensors_same = not self._do_tensors_differ
                # After the tensors: values that differ are to keep none from being compared.
                self._compare_all([k for k in self._common if not self._is_tensor(k)], 0, None)
        except _EnoughError:
            is_complete = False
        last = len(self._order)
        self._found.sort(
            key=lambda found: -1 if found.kind == "damaged" else self._order.get(found.key, last)
        )
        return VerifyReport(
            src=self._sides[0].manifest.source,
            dst=self._sides[1].manifest.source,
            differences=tuple(self._found[: self._max]),
            is_complete=is_complete,
            tensors=len(tensors),
            values=len(self._common) - len(tensors),
            nbytes=nbytes,
            renamed={
                self._name(0, key): self._name(1, key)
                for key in self._common
                if self._name(0, key) != self._name(1, key)
            },
            aside=self._aside,
            cast={key: dtype for key, dtype in self._sides[0].dtypes.items() if key in self._common},
            alike=dict(sorted(self._alike.items())),
            are_tensors_same=are_tensors_same,
        )

    def _compare_all(self, keys: Sequence[str], nbytes: int, progress: Progress | None) -> None:
        run_workers(
            keys,
            self._compare_entry,
            threads=_THREADS,
            total_bytes=nbytes,
            message="comparing",
            progress=progress,
        )

    def _is_tensor(self, key: str) -> bool:
        """Tell whether one of them has a tensor there."""
        entries = (side.entries.get(key) for side in self._sides)
        return any(isinstance(entry, TensorEntry) for entry in entries)

    def _entry(self, key: str) -> Entry:
        return self._sides[0].entries[key]

    def _compare_keys(self) -> None:
        ours, theirs = (side.entries for side in self._sides)
        alone = [key for key in ours if key not in theirs], [key for key in theirs if key not in ours]
        may_be = 0 < len(alone[0]) + len(alone[1]) <= _MOST_TIED and any(map(says_tied, self._sides))
        missing, extra = (
            [key for key in keys if not (may_be and self._is_tied(side, key))]
            for side, keys in enumerate(alone)
        )
        # Some of each: where names differ, both sides tell how.
        room = self._max - len(self._found)
        most = max(room - len(extra), room - room // 2)
        for key in missing[:most]:
            found = Difference(self._name(0, key), "missing", "only the first checkpoint has it")
            self._add(found, of_tensor=self._is_tensor(key))
        for key in extra:
            found = Difference(self._name(1, key), "extra", "only the second checkpoint has it")
            self._add(found, of_tensor=self._is_tensor(key))

    def _is_tied(self, side: int, key: str) -> bool:
        """Tell whether what one side has alone is a matrix of a tied model that both have by another name."""
        for twin in may_be_tied(self._sides[side], key, self._common):
            pair = [each.entries[twin] for each in self._sides]
            pair[side] = self._sides[side].entries[key]
            one, other = pair
            if not isinstance(one, TensorEntry) or not isinstance(other, TensorEntry):
                continue
            is_alike = (one.shape, one.dtype) == (other.shape, other.dtype)
            if is_alike and self._difference(one, other, lambda _: None) is None:
                self._alike[self._name(side, key)] = f"tied to `{twin}`, which holds the same"
                return True
        return False

    def _name(self, side: int, key: str) -> str:
        """Return the name in the file; of a value that was taken apart, the one a piece is compared by."""
        name = self._sides[side].entries[key].key
        return name if self._counts[side][name] == 1 else key

    def _compare_entry(self, key: str, advance: Advance) -> None:
        ours, theirs = (side.entries[key] for side in self._sides)
        if isinstance(ours, BytesEntry) and isinstance(theirs, BytesEntry):
            self._compare_values(key, ours, theirs)
        elif isinstance(ours, TensorEntry) and isinstance(theirs, TensorEntry):
            self._compare_tensors(key, ours, theirs, advance)
        else:
            kinds = ["a tensor" if isinstance(e, TensorEntry) else "a value" for e in (ours, theirs)]
            self._add(Difference(self._name(0, key), "kind", " and ".join(kinds)))

    def _compare_values(self, key: str, ours: BytesEntry, theirs: BytesEntry) -> None:
        one, other = (
            open_value(side.folder, entry, where=f"`{entry.key}` in {side.folder.url!r}")
            for side, entry in zip(self._sides, (ours, theirs), strict=True)
        )
        names = [
            side.names.get(entry.key, {}) for side, entry in zip(self._sides, (ours, theirs), strict=True)
        ]
        setting = ours.key.rpartition(".")[2]
        found = value_difference(one, other, *names, are_settings=ours.key in self._settings, setting=setting)
        if found is not None and found.is_form:
            self._alike[self._name(0, key)] = found.text
        elif found is not None:
            self._add(Difference(self._name(0, key), "value", found.text), of_tensor=False)

    def _compare_tensors(self, key: str, ours: TensorEntry, theirs: TensorEntry, advance: Advance) -> None:
        if ours.shape != theirs.shape:
            shapes = f"{list(ours.shape)} and {list(theirs.shape)}"
            self._add(Difference(self._name(0, key), "shape", shapes))
            return
        wanted = self._sides[0].dtypes.get(key, ours.dtype)
        if wanted != theirs.dtype:
            self._add(self._other_dtype(key, ours, theirs, wanted, advance))
            return
        found = self._difference(ours, theirs, advance)
        if found is not None:
            cast = f"once cast to {wanted}, it " if wanted != ours.dtype else ""
            sizes = found.index, found.largest, found.scale
            self._add(Difference(self._name(0, key), "value", f"{cast}{found}", *sizes))

    def _other_dtype(
        self, key: str, ours: TensorEntry, theirs: TensorEntry, wanted: str, advance: Advance
    ) -> Difference:
        """Say that a type differs, and whether it was at least a cast."""
        name = self._name(0, key)
        message = f"{ours.dtype} and {theirs.dtype}"
        if wanted != ours.dtype:
            return Difference(name, "dtype", f"{message}, where a cast to {wanted} was asked for")
        if not {ours.dtype, theirs.dtype} <= CASTABLE:
            return Difference(name, "dtype", message)
        found = self._difference(ours, theirs, advance)
        if found is None:
            return Difference(name, "dtype", f"{message}; the values are those that this cast gives")
        message = f"{message}; once cast, it {found}"
        return Difference(name, "dtype", message, found.index, found.largest)

    def _difference(
        self, ours: TensorEntry, theirs: TensorEntry, advance: Advance
    ) -> TensorDifference | None:
        """Return how the second is not the first, or not the first cast to the type of the second."""
        box = (0,) * len(ours.shape), ours.shape
        sizes = [DTYPES[entry.dtype].itemsize for entry in (ours, theirs)]
        # Blocks of as many elements on both sides.
        elements = _BLOCK // max(sizes)
        left, right = (
            TensorSource(side.folder, elements * itemsize).read(entry, box)
            for side, entry, itemsize in zip(self._sides, (ours, theirs), sizes, strict=True)
        )
        comparison = TensorComparison(ours.dtype, theirs.dtype)
        for block, other in zip(left, right, strict=True):
            comparison.add(block, other)
            advance(len(block))
        return comparison.result(ours.shape)

    def _add(self, difference: Difference, *, of_tensor: bool = True) -> None:
        self._do_tensors_differ |= of_tensor
        self._found.append(difference)
        if len(self._found) >= self._max:
            raise _EnoughError
