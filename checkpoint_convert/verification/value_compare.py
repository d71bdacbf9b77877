"""Compare values that were read without being run: structure by structure, tensors by their bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fsdp_migrate.checkpoint_convert.formats.dcp_items import load_item, tensor_bytes
from fsdp_migrate.checkpoint_convert.formats.dcp_values import PathRecord
from fsdp_migrate.checkpoint_convert.formats.pickle_reader import show
from fsdp_migrate.checkpoint_convert.formats.torch_values import Record, StorageRef, TensorValue
from fsdp_migrate.checkpoint_convert.manifest.dtypes import DTYPES
from fsdp_migrate.checkpoint_convert.verification.tensor_compare import TensorComparison
from fsdp_migrate.errors import CheckpointFormatError, UnsafePickleError


if TYPE_CHECKING:
    from collections.abc import Mapping

    from fsdp_migrate.checkpoint_convert.formats.zip_reader import TorchZip


_MAX_WHERE = 200
_PICKLE = "data.pkl"
# By which kernels an optimizer is stepped: who loads it takes its own, and torch decides of None itself.
_KERNELS = frozenset({"foreach", "fused"})


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """How two values differ; ``is_form``: in what an optimizer's settings mean nothing by."""

    text: str
    is_form: bool = False


def value_difference(
    one: TorchZip,
    other: TorchZip,
    names: Mapping[str, str],
    other_names: Mapping[str, str],
    *,
    are_settings: bool = False,
    setting: str = "",
) -> ValueDifference | None:
    """Say how two stored values differ, or return None.

    Values that ask for classes outside the allow-list are compared by the bytes of their pickles.

    Args:
        one: The first item.
        other: The second.
        names: Parameter names of the first that count as others, once wrappers are off.
        other_names: The same for the second.
        are_settings: They are of an optimizer's groups. There a tuple means what a list means, names of
            parameters are found in any order, and ``foreach`` and ``fused`` change nothing that is learned.
        setting: The name of the setting that they are, where they are one.
    """
    try:
        values = load_item(one), load_item(other)
    except UnsafePickleError:
        return _raw_difference(one, other)
    try:
        if are_settings and (kernels := _other_kernels(setting, *values)) is not None:
            return ValueDifference(kernels, is_form=True)
        return _Comparison((one, other), (names, other_names), are_settings).run(*values)
    except CheckpointFormatError:
        # Tensors that were expanded and not copied: torch reads them, and nothing here does.
        if _raw_difference(one, other) is None:
            return None
        raise


def _raw_difference(one: TorchZip, other: TorchZip) -> ValueDifference | None:
    ours, theirs = ({n for n in z.records if _has_content(n)} for z in (one, other))
    if ours != theirs or any(one.read(name) != other.read(name) for name in sorted(ours)):
        text = "the bytes differ; what they mean was not read, because they ask for an unknown class"
        return ValueDifference(text)
    return None


def _other_kernels(setting: object, one: object, other: object) -> str | None:
    """Say by which kernels two optimizers are stepped, where that is what a setting says otherwise."""
    if setting not in _KERNELS or one is other or not all(isinstance(v, bool | None) for v in (one, other)):
        return None
    return f"{_show(one)} and {_show(other)}, by which kernels it is stepped"


def _has_content(record: str) -> bool:
    return record == _PICKLE or record.startswith("data/")


class _Comparison:
    """Walks two values side by side without recursion, so that no depth of nesting is too deep."""

    def __init__(
        self,
        archives: tuple[TorchZip, TorchZip],
        names: tuple[Mapping[str, str], Mapping[str, str]],
        are_settings: bool,
    ) -> None:
        self._archives = archives
        self._names = names
        self._are_settings = are_settings
        self._form: ValueDifference | None = None
        self._pending: list[tuple[object, object, str]] = []
        self._seen: set[tuple[int, int]] = set()

    def run(self, one: object, other: object) -> ValueDifference | None:
        """Return the first difference found; one of form only where there is no other."""
        self._pending.append((one, other, ""))
        while self._pending:
            left, right, where = self._pending.pop()
            # Values that are shared many times over are compared once; this also ends cycles.
            if (id(left), id(right)) in self._seen:
                continue
            if isinstance(left, list | tuple | dict | Record):
                self._seen.add((id(left), id(right)))
            problem = self._compare(left, right, where)
            if problem is not None:
                return ValueDifference(f"{where or 'the value'}: {problem}")
        return self._form

    def _compare(self, left: object, right: object, where: str) -> str | None:
        if type(left) is not type(right):
            if not self._are_settings or {type(left), type(right)} != {list, tuple}:
                return f"{_show(left)} and {_show(right)} are of different types"
            self._note_form(where, f"{_show(left)} and {_show(right)}")
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            return self._sequences(left, right, where)
        if isinstance(left, dict) and isinstance(right, dict):
            return self._mappings(left, right, where)
        if isinstance(left, TensorValue) and isinstance(right, TensorValue):
            return self._tensors(left, right)
        if isinstance(left, Record) and isinstance(right, Record):
            for field in ("arguments", "state", "items", "entries"):
                self._push(getattr(left, field), getattr(right, field), where)
            return None
        if isinstance(left, PathRecord) and isinstance(right, PathRecord):
            self._push(left.parts, right.parts, where)
            return None
        if isinstance(left, StorageRef):
            return None
        return self._scalars(left, right)

    def _scalars(self, left: object, right: object) -> str | None:
        if isinstance(left, str) and isinstance(right, str):
            left, right = self._names[0].get(left, left), self._names[1].get(right, right)
        if isinstance(left, set | frozenset) and left != right:
            return "the sets differ"
        # As text: NaN is the same as NaN then, and 0.0 is not -0.0.
        if isinstance(left, float) and isinstance(right, float):
            is_same = left.hex() == right.hex()
        else:
            is_same = left is right or left == right
        return None if is_same else f"{_show(left)} and {_show(right)}"

    def _sequences(
        self, left: list[object] | tuple[object, ...], right: list[object] | tuple[object, ...], where: str
    ) -> str | None:
        if len(left) != len(right):
            return f"{len(left)} and {len(right)} items"
        ours = [self._names[0].get(each, each) for each in left if isinstance(each, str)]
        theirs = [self._names[1].get(each, each) for each in right if isinstance(each, str)]
        if len(ours) == len(left) and ours != theirs and sorted(ours) == sorted(theirs):
            first = next(at for at, each in enumerate(ours) if each != theirs[at])
            text = f"the same {len(ours)} names in another order, first at [{first}]"
            if not self._are_settings:
                return text
            self._note_form(where, text)
            return None
        # From the last: the stack gives back the first one, and the first difference is to be told.
        for number in range(len(left) - 1, -1, -1):
            self._push(left[number], right[number], f"{where}[{number}]")
        return None

    def _mappings(self, left: dict[object, object], right: dict[object, object], where: str) -> str | None:
        if list(map(_show, left)) != list(map(_show, right)):
            return f"the keys {_show(list(left))} and {_show(list(right))}"
        for (key, value), other in zip(reversed(left.items()), reversed(right.values()), strict=True):
            inner = f"{where}[{show(key)}]"
            kernels = _other_kernels(key, value, other) if self._are_settings else None
            if kernels is None:
                self._push(value, other, inner)
            else:
                self._note_form(inner, kernels)
        return None

    def _tensors(self, left: TensorValue, right: TensorValue) -> str | None:
        if (left.dtype, left.shape, left.views) != (right.dtype, right.shape, right.views):
            return f"tensors of {left.dtype} {list(left.shape)} and {right.dtype} {list(right.shape)}"
        ours, theirs = (
            _elements(archive, value) for archive, value in zip(self._archives, (left, right), strict=True)
        )
        comparison = TensorComparison(left.dtype, right.dtype)
        comparison.add(memoryview(ours), memoryview(theirs))
        found = comparison.result(left.shape)
        return None if found is None else f"the tensor {found}"

    def _note_form(self, where: str, text: str) -> None:
        self._form = self._form or ValueDifference(f"{where}: {text}" if where else text, is_form=True)

    def _push(self, left: object, right: object, where: str) -> None:
        # Cut, because a value can be nested a million times.
        self._pending.append((left, right, where[:_MAX_WHERE]))


def _elements(archive: TorchZip, value: TensorValue) -> bytes:
    found = tensor_bytes(archive, value, "")
    if found.nbytes == 0:
        return b""
    record = archive.read(f"data/{value.storage.key}")
    itemsize = DTYPES[value.dtype].itemsize
    start = value.start * itemsize
    if found.strides is None:
        return record[start : start + math.prod(value.shape) * itemsize]
    cells: Any = np.frombuffer(record, np.dtype((np.void, itemsize)), offset=start)
    steps = [stride * itemsize for stride in found.strides]
    elements: bytes = np.lib.stride_tricks.as_strided(cells, value.shape, steps).tobytes()
    return elements


def _show(value: object) -> str:
    if isinstance(value, Record):
        return f"a `{value.name}`"
    text = repr(value) if isinstance(value, str | int | float | bytes | bool | None) else ""
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value[:10]):
        text = repr(value[:10])
    return text[:120] or f"a {type(value).__name__}"
