"""What a checkpoint offers to one model and its optimizers: plain enough to be sent to ranks."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from fsdp_migrate.checkpoint_convert.formats.unflatten import nest
from fsdp_migrate.checkpoint_convert.sources.tied_tensors import hold_other_values
from fsdp_migrate.loading.parts import choose_model, choose_optimizers, read_rewritten, split_state


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue, OfferedPart
    from fsdp_migrate.findings import Finding


_RANDOM: Final = re.compile(r"(^|[._])(rng|random)", re.IGNORECASE)
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the checkpoint: its key, type and shape."""

    key: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Another value, as an archive that was written here."""

    data: bytes

    def load(self) -> Any:
        """Return the value."""
        return read_rewritten(self.data)


Leaf = StoredTensor | StoredValue
State = dict[str, dict[str, Leaf]]


@dataclass(frozen=True, slots=True)
class OfferedGroup:
    """A parameter group: its parameters, and its settings."""

    names: Names
    settings: Mapping[str, Leaf]


@dataclass(slots=True)
class Offer:
    """What there is for a model, its optimizers, and ``extra``.

    Attributes:
        source: Where it lies.
        layout: How it is laid out.
        model: What the model can have, by name.
        state: What optimizers can have, by the name of the parameter and by field.
        groups: The parameter groups; None where no optimizer was asked for.
        settings: The settings of each parameter, for an optimizer that was saved flattened.
        extra: What was asked for besides, by its name, each leaf with its path below it.
        torn: The names of one parameter that hold other values, each with the first of them.
        others: The names of what nothing asked for.
        findings: What there is to say about it.
    """

    source: str
    layout: str
    model: dict[str, Leaf] = field(default_factory=dict)
    state: State = field(default_factory=dict)
    groups: list[OfferedGroup] | None = None
    settings: dict[str, dict[str, Leaf]] = field(default_factory=dict)
    extra: dict[str, list[tuple[tuple[Any, ...], Leaf]]] = field(default_factory=dict)
    torn: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def random_states(self) -> list[str]:
        """Return the names of random states that nothing asked for."""
        return [name for name in self.others if _RANDOM.search(name)]


def make_offer(
    catalogue: Catalogue,
    names: Sequence[Names],
    extra: Collection[str],
    *,
    optimizers: bool,
    shapes: Mapping[str, tuple[int, ...]],
    ties: Iterable[Names] = (),
    part: str | None = None,
) -> Offer:
    """Return what a checkpoint offers.

    Args:
        catalogue: The checkpoint.
        names: The parameters of the model, each with all of its names.
        extra: What else is wanted, by name.
        optimizers: Whether optimizers are wanted.
        shapes: The shapes of the model's parameters and buffers, by name.
        ties: The names of each parameter and buffer of the model that has several.
        part: What the model is called in the checkpoint.

    Raises:
        CheckpointMismatchError: Several models in it fit as well, or none is called so.
        CheckpointError: A value is damaged, or asks for a class on no list.
    """
    manifest = catalogue.manifest
    offer = Offer(manifest.source, manifest.layout, findings=catalogue.findings)
    known = {name for every in names for name in every}
    chosen = choose_model(catalogue, known, shapes, part)
    used: set[str] = set()
    if chosen is not None:
        offer.model = {chosen.below(key): _leaf(catalogue, key) for key in chosen.keys}
        used.update(chosen.keys)
        offer.torn = _torn(offer, catalogue, ties)
        # The same, of which the inspection speaks by the names in the checkpoint.
        offer.findings = tuple(each for each in offer.findings if each.code != "FM273")
    if optimizers:
        for each in choose_optimizers(catalogue, chosen, known):
            _add_optimizer(offer, catalogue, each, known)
            used.update(each.keys)
    every = [
        key for each in catalogue.parts if each.kind == "other" and each is not chosen for key in each.keys
    ]
    for name in extra:
        prefix, keys = find_extra(every, name)
        if keys:
            offer.extra[name] = [(_path_below(catalogue, key, prefix), _leaf(catalogue, key)) for key in keys]
            used.update(keys)
    offer.others = tuple(_tops(catalogue, used))
    return offer


def _torn(offer: Offer, catalogue: Catalogue, ties: Iterable[Names]) -> dict[str, str]:
    """Return the names of one tensor of the model that the checkpoint holds other values for."""
    found: dict[str, str] = {}
    for every in ties:
        keys = {name: leaf.key for name in every if isinstance(leaf := offer.model.get(name), StoredTensor)}
        first = next(iter(keys), "")
        for name in [*keys][1:]:
            one, other = (catalogue.tensors[keys[each]].source for each in (first, name))
            if hold_other_values(catalogue.folder, one, other):
                found[name] = first
    return found


def _leaf(catalogue: Catalogue, key: str) -> Leaf:
    found = catalogue.tensors.get(key)
    if found is not None:
        return StoredTensor(key, found.source.dtype, found.source.shape)
    return StoredValue(catalogue.value_bytes(key))


def _add_optimizer(offer: Offer, catalogue: Catalogue, part: OfferedPart, known: Collection[str]) -> None:
    groups: dict[int, dict[str, Leaf]] = {}
    whole: list[OfferedGroup] = []
    for key in part.keys:
        below = part.below(key)
        split = split_state(below, known)
        if split is not None:
            offer.state.setdefault(split[0], {})[split[1]] = _leaf(catalogue, key)
            continue
        steps = below.split(".")
        if steps[0] != "param_groups":
            continue
        leaf = _leaf(catalogue, key)
        # torch up to 2.3 stores the list of groups whole, later ones group by group; where the state was
        # flattened, settings stand by parameter.
        if len(steps) == 1 and isinstance(leaf, StoredValue):
            whole = [_group_of(dict(group)) for group in leaf.load()]
        elif len(steps) > 2 and steps[1].isdigit():
            groups.setdefault(int(steps[1]), {})[".".join(steps[2:])] = leaf
        elif len(steps) > 2:
            offer.settings.setdefault(".".join(steps[1:-1]), {})[steps[-1]] = leaf
    for _, settings in sorted(groups.items()):
        listed = settings.pop("params", None)
        names = listed.load() if isinstance(listed, StoredValue) else ()
        whole.append(OfferedGroup(tuple(map(str, names)), settings))
    offer.groups = [*(offer.groups or []), *whole]


def _group_of(group: dict[str, Any]) -> OfferedGroup:
    names = tuple(map(str, group.pop("params", ())))
    return OfferedGroup(names, {key: _stored(value) for key, value in group.items()})


def _stored(value: Any) -> StoredValue:
    file = io.BytesIO()
    torch.save(value, file)
    return StoredValue(file.getvalue())


def find_extra(keys: Iterable[str], name: str) -> tuple[str, list[str]]:
    """Return what a name stands for: the prefix, and the keys that have it.

    It is a name at the root, or the only one of this name below.

    Example:
        >>> find_extra(["model.w", "lr_scheduler.last_epoch"], "lr_scheduler")
        ('lr_scheduler', ['lr_scheduler.last_epoch'])
        >>> find_extra(["state.model.w", "state.timestamp.batch"], "timestamp")
        ('state.timestamp', ['state.timestamp.batch'])
    """
    every = list(keys)
    found = [key for key in every if key == name or key.startswith(f"{name}.")]
    if found:
        return name, found
    prefixes = {key[: at + len(name)] for key in every if (at := f".{key}.".find(f".{name}.")) >= 0}
    if len(prefixes) != 1:
        return name, []
    prefix = prefixes.pop()
    return prefix, [key for key in every if key == prefix or key.startswith(f"{prefix}.")]


def _path_below(catalogue: Catalogue, key: str, prefix: str) -> tuple[Any, ...]:
    """Return the path of a key below a prefix; by its dots where it is not recorded."""
    entry = catalogue.tensors.get(key) or catalogue.values[key]
    path, taken = entry.path, 0
    if path is not None:
        for depth in range(len(path) + 1):
            if ".".join(map(str, path[:depth])) == prefix:
                return path[depth:]
    taken = len(prefix) + 1
    return (
        tuple(int(step) if step.isdigit() else step for step in key[taken:].split(".")) if key[taken:] else ()
    )


def _tops(catalogue: Catalogue, used: Collection[str]) -> Iterator[str]:
    """Yield the names of the parts of which nothing was used."""
    for part in catalogue.parts:
        if not any(key in used for key in part.keys):
            yield part.prefix or part.name


def build_extra(leaves: Sequence[tuple[tuple[Any, ...], Any]]) -> Any:
    """Put a value together from its leaves.

    Example:
        >>> build_extra([(("last_epoch",), 3), (("base_lrs",), [0.1])])
        {'last_epoch': 3, 'base_lrs': [0.1]}
        >>> build_extra([((), 7)])
        7
    """
    if len(leaves) == 1 and not leaves[0][0]:
        return leaves[0][1]
    # The name above makes a list of what is numbered.
    return nest([(("root", *path), value) for path, value in leaves])["root"]
