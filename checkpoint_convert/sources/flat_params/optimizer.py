"""The state of an optimizer that knows each rank's elements of flat parameters by number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.sharded_values import ShardedValue
from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
from fsdp_migrate.checkpoint_convert.manifest.keys import Path, join_path, strip_wrappers
from fsdp_migrate.checkpoint_convert.sources.contents import leaf_entry
from fsdp_migrate.checkpoint_convert.sources.flat_params.tensors import (
    FLAT_KEY,
    RankTensor,
    flat_tensor,
    mismatch,
    unit_name,
)
from fsdp_migrate.checkpoint_convert.sources.parameter_numbers import match_numbers
from fsdp_migrate.checkpoint_convert.sources.rank_merge import same_leaves
from fsdp_migrate.findings import counted


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.boxes import Shape
    from fsdp_migrate.checkpoint_convert.manifest.flat_geometry import FlatGeometry
    from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry
    from fsdp_migrate.checkpoint_convert.sources.flat_params.tensors import Replicas
    from fsdp_migrate.checkpoint_convert.sources.rank_merge import RankState
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_STATE: Final = "state"
_GROUPS: Final = "param_groups"
_PARAMS: Final = "params"
_LABELS: Final = "param_names"


@dataclass(frozen=True)
class NumberedOptimizer:
    """An optimizer of numbers, as each rank saved it.

    Attributes:
        prefix: The path under which it stands.
        groups: The numbers of each group.
        labels: The names that it keeps for them itself, in the same order.
        fields: By number and name of the field, what each rank has.
        keys: The keys of these fields.
    """

    prefix: Path
    groups: list[list[int]]
    labels: list[str]
    fields: Mapping[int, Mapping[str, list[tuple[RankState, object]]]]
    keys: frozenset[str]


def find_numbered(states: Sequence[RankState], *, flat: bool = False) -> list[NumberedOptimizer]:
    """Return the optimizers by number whose state is in pieces of one dimension, one piece per rank.

    Beside flat parameters (``flat``) one without any tensor is of those too: SGD without momentum.
    """
    prefixes: dict[Path, None] = {}
    for path, _ in states[0].leaves.values():
        for depth in range(min(len(path), 4)):
            if path[depth] == _GROUPS:
                prefixes[path[:depth]] = None
    found = [_read_optimizer(states, prefix) for prefix in prefixes]
    return [
        optimizer
        for optimizer in found
        if optimizer is not None and (_is_flat(optimizer) or (flat and not _has_tensors(optimizer)))
    ]


def _read_optimizer(states: Sequence[RankState], prefix: Path) -> NumberedOptimizer | None:
    depth = len(prefix)
    groups: list[list[int]] = []
    labels: list[str] = []
    for path, leaf in states[0].leaves.values():
        if path[:depth] != prefix or len(path) != depth + 3 or path[depth] != _GROUPS:
            continue
        if path[-1] == _PARAMS:
            # Its parameters have names already: there is nothing to find out.
            if not isinstance(leaf, list) or not all(type(number) is int for number in leaf):
                return None
            groups.append(leaf)
        elif path[-1] == _LABELS and isinstance(leaf, list):
            labels += [str(name) for name in leaf]
    fields: dict[int, dict[str, list[tuple[RankState, object]]]] = {}
    keys: set[str] = set()
    for state in states:
        for key, (path, leaf) in state.leaves.items():
            if path[:depth] == prefix and len(path) == depth + 3 and path[depth] == _STATE:
                if not str(path[depth + 1]).isdigit():
                    return None
                of_number = fields.setdefault(int(path[depth + 1]), {})
                of_number.setdefault(str(path[-1]), []).append((state, leaf))
                keys.add(key)
    return NumberedOptimizer(prefix, groups, labels, fields, frozenset(keys)) if groups else None


def _is_flat(optimizer: NumberedOptimizer) -> bool:
    """Tell whether there is state, and none of it has the shape of a parameter or is a sharded tensor."""
    leaves = [leaf for fields in optimizer.fields.values() for held in fields.values() for _, leaf in held]
    tensors = [leaf for leaf in leaves if isinstance(leaf, TensorValue)]
    dimensions = {len(tensor.shape) for tensor in tensors}
    return 1 in dimensions and dimensions <= {0, 1}


def _has_tensors(optimizer: NumberedOptimizer) -> bool:
    leaves = (leaf for fields in optimizer.fields.values() for held in fields.values() for _, leaf in held)
    return any(isinstance(leaf, TensorValue | ShardedValue) for leaf in leaves)


def name_pieces(
    optimizer: NumberedOptimizer,
    geometry: FlatGeometry,
    numbered: Sequence[str],
    whole: Mapping[str, Shape],
    folder: Folder,
    given: Sequence[Sequence[str]] = (),
) -> dict[int, str]:
    """Return the unit or parameter behind every number, by how much of it each rank has.

    Args:
        optimizer: The optimizer.
        geometry: Who holds what.
        numbered: What numbers can stand for, in their order; empty where the optimizer has labels.
        whole: The shapes of parameters that are not flat.
        folder: Where the files are.
        given: The parameters in each group of an optimizer that was given with the model.

    Raises:
        CheckpointMismatchError: There is not exactly one way to name them.
    """
    numbers = [number for group in optimizer.groups for number in group]
    sizes = {number: _held(optimizer, number, geometry.ranks, folder) for number in optimizer.fields}
    # The surest first: names that the optimizer kept itself, those of an optimizer that was given with the
    # model, and where there are neither, the one order that fits all sizes.
    if optimizer.labels and len(optimizer.labels) == len(numbers):
        labels = [_clean_label(label) for label in optimizer.labels]
        found: dict[int, str] | str = dict(zip(numbers, labels, strict=True))
    elif list(map(len, given)) == list(map(len, optimizer.groups)):
        found = dict(zip(numbers, (name for group in given for name in group), strict=True))
    else:
        candidates = {name: _expected(name, geometry, whole) for name in numbered}
        found = match_numbers(optimizer.groups, sizes, candidates)
    if isinstance(found, str):
        raise mismatch(folder, f"`{join_path(optimizer.prefix) or 'the optimizer'}`: {found}")
    # Also where names were given: another model's may be as many.
    for number, held in sizes.items():
        expected = _expected(found[number], geometry, whole)
        if held != expected:
            rank = next(r for r in range(geometry.ranks) if held[r] != expected[r])
            raise mismatch(
                folder,
                f"rank {rank} holds {held[rank]} elements of number {number}, which should be "
                f"`{found[number] or '(root)'}` and have {expected[rank]}",
            )
    return found


def _clean_label(label: str) -> str:
    return unit_name(label) if FLAT_KEY.search(label) else strip_wrappers(label)


def _held(optimizer: NumberedOptimizer, number: int, ranks: int, folder: Folder) -> Shape:
    """Return how many elements each rank holds of what has a number."""
    sizes = [0] * ranks
    for name, held in optimizer.fields[number].items():
        for state, leaf in held:
            if not isinstance(leaf, TensorValue) or not leaf.shape:
                continue
            numel = math.prod(leaf.shape)
            if sizes[state.rank] not in (0, numel):
                what = f"`{state.file}` has {counted(numel, 'element')} of `{name}` of number {number}, and "
                raise mismatch(folder, f"{what}{sizes[state.rank]} of another field")
            sizes[state.rank] = numel
    return tuple(sizes)


def _expected(name: str, geometry: FlatGeometry, whole: Mapping[str, Shape]) -> Shape:
    if name in geometry.units and name not in geometry.shapes:
        return (geometry.shard_size(name),) * geometry.ranks
    if name in geometry.slices:
        slices = geometry.slices[name]
        return tuple(slices[rank].numel if rank in slices else 0 for rank in range(geometry.ranks))
    return (math.prod(whole.get(name, (0,))),) * geometry.ranks


def optimizer_entries(
    optimizer: NumberedOptimizer,
    names: Mapping[int, str],
    geometry: FlatGeometry,
    folder: Folder,
    replicas: Replicas,
) -> dict[str, Entry]:
    """Return the state by parameters' names, whole; ``replicas`` takes what ranks hold a second time.

    Raises:
        CheckpointMismatchError: Elements are missing, or ranks differ in what is one value for all of them.
    """
    entries: dict[str, Entry] = {}
    for number in sorted(optimizer.fields):
        owner = names[number]
        targets, pieces = parameters_of(owner, geometry)
        owning = _ranks_with_elements(optimizer.fields[number])
        for field, held in optimizer.fields[number].items():
            tensors = {
                state.rank: RankTensor(state, leaf)
                for state, leaf in held
                if isinstance(leaf, TensorValue) and leaf.shape
            }
            for name in targets:
                path = (*optimizer.prefix, _STATE, name, field)
                if tensors and name in geometry.shapes:
                    entry: Entry = flat_tensor(path, name, tensors, pieces, folder, replicas)
                else:
                    # A rank without elements has no gradient, and counts no steps.
                    own = [(state, leaf) for state, leaf in held if state.rank in owning]
                    entry = _common(path, own or held, folder)
                entries[entry.key] = entry
    return entries


def _ranks_with_elements(fields: Mapping[str, Sequence[tuple[RankState, object]]]) -> set[int]:
    return {
        state.rank
        for held in fields.values()
        for state, leaf in held
        if isinstance(leaf, TensorValue) and leaf.shape and 0 not in leaf.shape
    }


def parameters_of(owner: str, geometry: FlatGeometry) -> tuple[tuple[str, ...], FlatGeometry]:
    """Return the parameters behind a unit's or a parameter's name, and where ranks hold their elements."""
    if owner in geometry.units and owner not in geometry.shapes:
        return geometry.units[owner], geometry
    # The state of one parameter holds its elements alone, where the flat parameter has others before them.
    slices = {rank: piece._replace(offset=0) for rank, piece in geometry.slices.get(owner, {}).items()}
    return (owner,), replace(geometry, slices={owner: slices})


def _common(path: Path, held: Sequence[tuple[RankState, object]], folder: Folder) -> Entry:
    """Return what every rank has the same of, such as a step count."""
    key = join_path(path)
    (first, leaf), *others = held
    for state, other in others:
        if not same_leaves(folder, key, leaf, other):
            raise mismatch(folder, f"`{key}` is not the same in `{first.file}` and `{state.file}`")
    return leaf_entry(key, path, leaf, file=first.file, where=f"'{folder.url}/{first.file}'")
