"""What is flat in the states of ranks: found, computed by the model or what the files say, and replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.formats.torch_values import TensorValue
from fsdp_migrate.checkpoint_convert.manifest.flat_geometry import FlatGeometry, divide_units
from fsdp_migrate.checkpoint_convert.manifest.keys import join_path, strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.manifest import BytesEntry, Entry, InlineValue
from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline
from fsdp_migrate.checkpoint_convert.sources.flat_params.described import Described, read_described
from fsdp_migrate.checkpoint_convert.sources.flat_params.optimizer import (
    NumberedOptimizer,
    find_numbered,
    name_pieces,
    optimizer_entries,
    parameters_of,
)
from fsdp_migrate.checkpoint_convert.sources.flat_params.tensors import (
    FLAT_KEY,
    FlatParts,
    Replicas,
    find_flat,
    flat_model,
    mismatch,
    path_below,
    unit_name,
)
from fsdp_migrate.checkpoint_convert.sources.rank_merge import RankState, check_complete
from fsdp_migrate.errors import CheckpointMismatchError
from fsdp_migrate.findings import Finding, counted, make_finding


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.keys import Path
    from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
    from fsdp_migrate.checkpoint_convert.storage.folders import Folder


_REMEDY: Final = (
    "Give the model (`--model pkg.mod:factory`) and the FSDP1 arguments of the run that saved it "
    "(`--config FILE`, with `use_orig_params`, `auto_wrap_policy`, `mixed_precision`)."
)


_Found = tuple["Sequence[RankState]", FlatParts, "Sequence[NumberedOptimizer]"]


@dataclass
class FlatStates:
    """Ranks' states without what is flat, and what became of that.

    Attributes:
        states: What is left to put together.
        entries: What flat parameters and numbered state became.
        names: By optimizer's path, the parameters that stand for each number.
        findings: What there is to say about it.
        replicas: What ranks hold a second time, which is still to be compared.
    """

    states: Sequence[RankState]
    entries: dict[str, Entry] = field(default_factory=dict)
    names: dict[Path, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    replicas: Replicas = field(default_factory=Replicas)

    def joined(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """Return other entries together with these, with names for the numbers in parameter groups."""
        found = dict(self.entries)
        for key, entry in entries.items():
            found[key] = self._named(entry)
        return found

    def _named(self, entry: Entry) -> Entry:
        path = entry.path or ()
        if not isinstance(entry, BytesEntry) or entry.inline is None or len(path) < 3:
            return entry
        names = self.names.get(path[:-3])
        if names is None or path[-3] != "param_groups" or not isinstance(entry.inline.value, list):
            return entry
        if path[-1] == "params":
            value = [name for number in entry.inline.value for name in names[number]]
            return BytesEntry(entry.key, entry.path, entry.stored, InlineValue(value))
        return entry


def describe_flat(every: Sequence[Sequence[RankState]], folder: Folder) -> Described | None:
    """Return what one of several sets of ranks' states says of flat parameters itself, if one does.

    Raises:
        CheckpointMismatchError: The ranks contradict each other.
    """
    found = (read_described(states, folder) for states in every)
    return next((described for described in found if described is not None), None)


def take_flat(
    states: Sequence[RankState], described: Described | None, options: SourceOptions, folder: Folder
) -> FlatStates:
    """Take what is flat out of ranks' states, and return it whole where that can be computed.

    Where it cannot, a finding refuses it and says what to give.

    Raises:
        CheckpointMismatchError: What is stored is not what was computed, or replicas differ.
        CheckpointNotFoundError: The file of a rank is missing.
    """
    if described is not None and described.is_of(states):
        rest = [RankState(s.rank, s.file, described.without(s.leaves)) for s in states]
        return FlatStates(rest, dict(described.entries))
    parts = find_flat(states, folder)
    numbered = find_numbered(states, flat=bool(parts.units))
    if not parts.units and not numbered:
        return FlatStates(states)
    # OLMo's optimizer, in files of its own: those of the model said who holds what.
    if described is not None and not parts.units:
        flat = FlatStates(_without(states, {key for optimizer in numbered for key in optimizer.keys}))
        for optimizer in numbered:
            _add_optimizer(flat, optimizer, described.geometry, ModelOutline({}), folder)
        flat.replicas.check(folder)
        return flat
    outline = options.model
    if outline is None or not outline.units:
        return _refused(states, parts, numbered)
    found = _of_one_model((states, parts, numbered), outline, options.part, folder)
    if not found[1].units and not found[2]:
        return FlatStates(found[0])
    return _complete(found, outline, folder)


def _complete(found: _Found, outline: ModelOutline, folder: Folder) -> FlatStates:
    states, parts, numbered = found
    # Before sizes are compared: those of fewer ranks are other ones, and the model would be blamed.
    for key, holders in parts.units.items():
        check_complete(folder, key, holders, len(states))
    return _by_model(states, parts, numbered, outline, folder)


def _of_one_model(found: _Found, outline: ModelOutline, part: str | None, folder: Folder) -> _Found:
    """Leave out what is flat of other models, and the optimizers that cannot be of this one.

    Raises:
        CheckpointMismatchError: Several models fit as well, and none was named; or there are several, and
            none may be left out.
    """
    states, parts, numbered = found
    by_model: dict[Path, set[str]] = {}
    for key, ((state, _), *_) in parts.units.items():
        by_model.setdefault(state.leaves[key][0][:-1], set()).add(key)
    if part is None:
        if len(by_model) > 1:
            raise _several_models(by_model, folder)
        return found
    wanted = {unit.name for unit in outline.units}
    if part:
        own = [path for path in by_model if not path or _is_called(path, part)]
    elif len(by_model) > 1:
        own = [
            path
            for path in by_model
            if {unit_name(join_path(path_below(key, path))) for key in by_model[path]} == wanted
        ]
    else:
        own = list(by_model)
    if len(own) > 1 and not part:
        names = " and ".join(f"`{join_path(path)}`" for path in own[:4])
        what = f"{names} fit this model equally well. Say which it is: part={join_path(own[0])!r}"
        raise mismatch(folder, what)
    others = [path for path in by_model if path not in own]
    if not others or (not own and not part):
        return found
    left = FlatParts({key: held for key, held in parts.units.items() if any(key in by_model[p] for p in own)})
    kept = [each for each in numbered if _fits(each, outline, len(states), folder)]
    # Of several that fit, or if none does, those that are called as the model is: an error then says why.
    if len(kept) != 1 and own:
        named = [each for each in kept or numbered if str(own[0][-1]) in join_path(each.prefix)]
        kept = named or kept
    gone = [*others, *(each.prefix for each in numbered if each not in kept)]
    return _outside(states, gone), left, kept


def _fits(optimizer: NumberedOptimizer, outline: ModelOutline, ranks: int, folder: Folder) -> bool:
    for count in _candidates(outline, ranks):
        geometry = divide_units(outline.units, ranks, count)
        try:
            name_pieces(
                optimizer, geometry, outline.numbered, outline.parameters, folder, outline.groups or ()
            )
        except CheckpointMismatchError:
            continue
        return True
    return False


def _candidates(outline: ModelOutline, ranks: int) -> list[int]:
    """Return over how many ranks a unit may be divided.

    No file has the size of HYBRID_SHARD's groups: each divisor of the ranks is tried, and one may fit.
    """
    ways = {"all": [ranks], "one": [1]}.get(outline.sharding)
    return ways or [n for n in range(1, ranks + 1) if ranks % n == 0]


def _several_models(paths: Collection[Path], folder: Folder) -> CheckpointMismatchError:
    names = " and ".join(f"`{join_path(path)}`" for path in list(paths)[:4])
    msg = (
        f"{folder.url!r} holds the flat parameters of {counted(len(paths), 'model')}, {names}. One model and "
        "its FSDP1 arguments say where its own parameters are, and nothing of the others, so this cannot be "
        "converted. `load_checkpoint(..., part=...)` loads each into its own model; `inspect` prints the "
        "lines."
    )
    return CheckpointMismatchError(msg, path=folder.url)


def _is_called(path: Path, name: str) -> bool:
    called = join_path(path)
    return name == called or name.endswith(f".{called}") or name == str(path[-1])


def _outside(states: Sequence[RankState], above: Sequence[Path]) -> list[RankState]:
    """Return ranks' states without what stands under some paths."""
    gone = {
        key
        for state in states
        for key, (path, _) in state.leaves.items()
        if any(path[: len(each)] == each for each in above)
    }
    return _without(states, gone)


def _by_model(
    states: Sequence[RankState],
    parts: FlatParts,
    numbered: Sequence[NumberedOptimizer],
    outline: ModelOutline,
    folder: Folder,
) -> FlatStates:
    ranks = len(states)
    candidates = _candidates(outline, ranks)
    found: list[FlatStates] = []
    problem: CheckpointMismatchError | None = None
    for count in candidates:
        geometry = divide_units(outline.units, ranks, count)
        try:
            found.append(_computed(states, parts, numbered, (outline, geometry), folder))
        except CheckpointMismatchError as error:
            problem = error
    if len(found) == 1:
        # Not before: what are replicas in a division that does not fit are other elements in truth.
        found[0].replicas.check(folder)
        return found[0]
    if problem is not None and (outline.sharding != "some" or not found):
        raise problem
    what = f"the sizes fit groups of {len(found)} different sizes, and nothing tells which it was"
    raise mismatch(folder, what)


def _computed(
    states: Sequence[RankState],
    parts: FlatParts,
    numbered: Sequence[NumberedOptimizer],
    given: tuple[ModelOutline, FlatGeometry],
    folder: Folder,
) -> FlatStates:
    outline, geometry = given
    prefix = _model_prefix(parts)
    taken = {*parts.units, *(key for optimizer in numbered for key in optimizer.keys)}
    if parts.units:
        # With `use_orig_params=True` each rank's own elements stand there a second time, by name.
        names = {
            *geometry.shapes,
            *(alias for alias, name in outline.aliases.items() if name in geometry.shapes),
        }
        taken |= _named_pieces(states, prefix, names)
    flat = FlatStates(_without(states, taken))
    if parts.units:
        model = flat_model(parts, geometry, prefix, outline.aliases, folder, flat.replicas)
        flat.entries.update(model)
        held = f"{counted(len(model), 'parameter')} of {counted(len(geometry.units), 'unit')}"
        text = f"{held}, divided over {counted(geometry.ways, 'rank')}."
        flat.findings.append(make_finding("FM240", ".".join(map(str, prefix)) or "(root)", text))
    for optimizer in numbered:
        _add_optimizer(flat, optimizer, geometry, outline, folder)
    return flat


def _add_optimizer(
    flat: FlatStates,
    optimizer: NumberedOptimizer,
    geometry: FlatGeometry,
    outline: ModelOutline,
    folder: Folder,
) -> None:
    given = outline.groups or ()
    owners = name_pieces(optimizer, geometry, outline.numbered, outline.parameters, folder, given)
    flat.names[optimizer.prefix] = {
        number: parameters_of(owner, geometry)[0] for number, owner in owners.items()
    }
    flat.entries.update(optimizer_entries(optimizer, owners, geometry, folder, flat.replicas))
    state = f"the state of {counted(len(optimizer.fields), 'number')}"
    text = f"{state}, divided over {counted(geometry.ways, 'rank')}."
    flat.findings.append(make_finding("FM240", ".".join(map(str, optimizer.prefix)) or "(root)", text))


def _model_prefix(parts: FlatParts) -> Path:
    """Return the path that flat parameters have in common."""
    holders = next(iter(parts.units.items()), None)
    if holders is None:
        return ()
    key, ((state, _), *_) = holders
    return state.leaves[key][0][:-1]


def _named_pieces(states: Sequence[RankState], prefix: Path, names: Collection[str]) -> set[str]:
    """Return the keys of parameters by their names, with or without what ``torch.compile`` puts into them."""
    return {
        key
        for state in states
        for key, (path, _) in state.leaves.items()
        if path[: len(prefix)] == prefix and strip_wrappers(join_path(path[len(prefix) :])) in names
    }


def _without(states: Sequence[RankState], taken: set[str]) -> list[RankState]:
    return [
        RankState(s.rank, s.file, {key: leaf for key, leaf in s.leaves.items() if key not in taken})
        for s in states
    ]


def _refused(
    states: Sequence[RankState], parts: FlatParts, numbered: Sequence[NumberedOptimizer]
) -> FlatStates:
    """Leave out what cannot be told apart, for the manifest's sake, and refuse the conversion."""
    pieces = _pieces(states) if parts.units else set()
    kept = {key for optimizer in numbered for key in optimizer.keys}
    flat = FlatStates(_without(states, pieces | kept))
    if parts.units:
        units = counted(len(parts.units), "flat parameter")
        text = f"{units}: no file says which names and shapes are where in them."
        flat.findings.append(make_finding("FM238", next(iter(parts.units)), text, _REMEDY))
    for optimizer in numbered:
        subject = ".".join(map(str, optimizer.prefix)) or "(root)"
        hint = f"{_REMEDY} Or leave it out with `weights_only` (--weights-only)."
        state = f"the state of {counted(len(optimizer.fields), 'number')}"
        text = f"{state}, of which each rank has its own elements only."
        flat.findings.append(make_finding("FM239", subject, text, hint))
    return flat


def _pieces(states: Sequence[RankState]) -> set[str]:
    """Return the keys of plain tensors that are not of the same shape on every rank."""
    shapes: dict[str, set[tuple[int, ...]]] = {}
    for state in states:
        for key, (_, leaf) in state.leaves.items():
            if isinstance(leaf, TensorValue) and not FLAT_KEY.search(key):
                shapes.setdefault(key, set()).add(leaf.shape)
    return {key for key, found in shapes.items() if len(found) > 1}
