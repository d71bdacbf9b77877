"""Which entries are a model, which an optimizer, and which something else.

People choose the top names of their state dicts themselves, so the structure below them decides:

1. A path is an **optimizer** if ``param_groups`` stands below it, nested (``optim.param_groups.0.lr``, or the
   whole of ``optim.param_groups`` as torch before 2.4 saves it) or flattened
   (``optim.param_groups.<parameter>.lr``). Without groups it is one if ``state`` stands below it, its name
   says so (``optim...``), and everything in ``state`` lies two levels deep.
2. A path is a **model** if it has a name that people give to models (``model``, ``state_dict``, ``module``,
   ``net``, ...), stands at the top or beside an optimizer, and holds parameters by name and nothing else.
   So is, beside them, a path whose names contain all those of an optimizer that none of them is the model of
   (that may be the root), or after which an optimizer is called (``critic_optimizer``). If there is none of
   either, each path at which a state dict lies is one: tensors by their dotted names (``blocks.0.weight``)
   and nothing nested, whatever the path is called, but for copies of other weights (``ema``). Failing that,
   a checkpoint of nothing but tensors at the root is one model. A list of models is as many: ``model.0``.
3. Everything else is **other**, and is never cast or left out because something in it looks like a weight.

Paths are looked for at depths 0 to 3: the root, ``model``, ``app.model``, ``state.optimizers.AdamW``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.keys import Path, all_have_module, strip_wrappers
from fsdp_migrate.checkpoint_convert.manifest.manifest import Entry, Part, PartKind, TensorEntry


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest


Groups = list[list[str]]

MODEL_NAMES: Final = frozenset(
    {"model", "models", "model_state", "model_state_dict", "module", "net", "network", "state_dict"}
)
MOMENTS: Final = {
    "exp_avg": ("exp_avg_sq", "exp_inf"),
    "square_avg": ("acc_delta", "momentum_buffer", "grad_avg"),
    "prev": ("step_size",),
}
"""Of Adam and its kin, Adamax, Adadelta, RMSprop and Rprop what a parameter has two of, which always differ.

Not ``max_exp_avg_sq``, which may equal the other.
"""
# Accelerate numbers several models: the second is `model_1`.
_NUMBERED_MODEL: Final = re.compile(r"model_\d+")
_CONTAINERS: Final = frozenset({"app", "state", "train_state"})
_EXTRA_STATE: Final = "_extra_state"
# Weights that a run keeps beside those that it trains.
_COPIES: Final = re.compile(r"(?:^|_)(?:ema|swa|shadow|averaged?|avg)(?:_|$)", re.IGNORECASE)
_GROUPS: Final = "param_groups"
_STATE: Final = "state"
_MAX_DEPTH: Final = 3
_Place = tuple[PartKind, Path]


def is_numbered_model(name: str) -> bool:
    """Tell whether it is one of several models that are numbered, as Accelerate numbers them: ``model_1``."""
    return _NUMBERED_MODEL.fullmatch(name) is not None


def guess_path(key: str) -> Path:
    """Return the path of a key where the checkpoint does not record it: by the names that torch uses.

    Example:
        >>> guess_path("model.blocks.0.up.weight")
        ('model', 'blocks.0.up.weight')
        >>> guess_path("state.optimizers.AdamW.state.up.weight.exp_avg")
        ('state', 'optimizers', 'AdamW', 'state', 'up.weight', 'exp_avg')
    """
    names = key.split(".")
    # Composer's names have one level more: `state.model.<name>`,
    # `state.optimizers.<class>.state.<name>.<field>`.
    if names[0] == _STATE and len(names) > 2 and names[1] in ("model", "optimizers"):
        depth = 2 if names[1] == "model" else 3
        return (*names[: depth - 1], *guess_path(".".join(names[depth - 1 :])))
    if len(names) > 3 and names[1] == _STATE:
        return (names[0], _STATE, ".".join(names[2:-1]), names[-1])
    if len(names) > 2 and names[1] == _GROUPS and names[2].isdigit():
        return (names[0], _GROUPS, int(names[2]), *names[3:])
    return (names[0], ".".join(names[1:])) if len(names) > 1 else (key,)


def with_bare_paths(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Return entries whose paths were not recorded; of a bare state dict each key is a path by itself.

    It is one if there is no optimizer, and its names do not all start with one that a model is called by:
    ``model.layers.0.weight`` beside ``lm_head.weight``. Others stay without paths, which are guessed.
    """
    if not entries or any(entry.path is not None for entry in entries.values()):
        return entries
    guessed = {guess_path(key) for key in entries}
    tops = {path[0] for path in guessed}
    is_state = any(_GROUPS in path or (path[0] == _STATE and len(path) > 2) for path in guessed)
    is_model = len(tops) == 1 and tops <= MODEL_NAMES
    if is_state or is_model or not all(isinstance(entry, TensorEntry) for entry in entries.values()):
        return entries
    return {key: replace(entry, path=(key,)) for key, entry in entries.items()}


def entry_path(entry: Entry) -> Path:
    """Return the recorded path of an entry, or the guessed one."""
    return entry.path or guess_path(entry.key)


def find_parts(entries: Mapping[str, Entry]) -> tuple[Part, ...]:
    """Divide entries into parts, as the module's docstring says.

    Every entry is in exactly one part. Parts come in the order of their first entry.
    """
    paths = {key: entry_path(entry) for key, entry in entries.items()}
    # Optimizers first: `param_groups` marks each of them, and the names that they know find the models that
    # have an unusual name.
    optimizers = _find_optimizers(paths)
    models = _find_models(paths, entries, optimizers, _trained_names(paths, optimizers))
    models = {place for prefix in models for place in _in_list(prefix, paths)}
    members: defaultdict[_Place, list[str]] = defaultdict(list)
    for key, path in paths.items():
        is_tensor = isinstance(entries[key], TensorEntry)
        members[_place(path, optimizers, models, tensor=is_tensor)].append(key)
    return tuple(_part(*place, keys, paths) for place, keys in members.items())


def _trained_names(paths: Mapping[str, Path], optimizers: set[Path]) -> list[frozenset[str]]:
    """Return the parameters that each optimizer knows by name."""
    names: dict[Path, set[str]] = {prefix: set() for prefix in optimizers}
    for path in paths.values() if optimizers else ():
        for depth in range(min(len(path), _MAX_DEPTH + 1)):
            if path[:depth] in names:
                name = parameter_name(Part("optimizer", path[:depth], ()), path)
                names[path[:depth]] |= {_comparable(name)} if name else set()
    return [frozenset(found) for found in names.values()]


def parameter_name(part: Part, path: Path) -> str | None:
    """Return the parameter that an entry of a model or an optimizer belongs to, or None.

    Example:
        >>> part = Part("optimizer", ("optim",), ())
        >>> parameter_name(part, ("optim", "state", "up.weight", "exp_avg"))
        'up.weight'
        >>> parameter_name(part, ("optim", "state.up.weight.exp_avg"))
        'up.weight'
    """
    below = path[len(part.prefix) :]
    if part.kind == "model":
        return ".".join(map(str, below))
    if part.kind != "optimizer":
        return None
    if len(below) >= 3 and below[0] == _STATE:
        return str(below[1])
    if len(below) == 1 and isinstance(below[0], str):
        head, _, rest = below[0].partition(".")
        if head in (_STATE, _GROUPS) and "." in rest:
            return rest.rpartition(".")[0]
    return None


def is_flattened(part: Part, path: Path) -> bool:
    """Tell whether an optimizer's entry was saved with ``flatten_optimizer_state_dict``."""
    below = path[len(part.prefix) :]
    return len(below) == 1 and str(below[0]).startswith((_STATE + ".", _GROUPS + "."))


def group_names(manifest: Manifest, parts: Sequence[Part], names: Mapping[str, str]) -> Groups | None:
    """Return the parameters of each group of some optimizers, or None where they are not told."""
    lists = {found.key: found for found in manifest.name_lists}
    groups: Groups = []
    for part in parts:
        numbered: dict[int, list[str]] = {}
        for key in part.keys:
            below = entry_path(manifest.entries[key])[len(part.prefix) :]
            if key not in lists or lists[key].names is None or below[0] != "param_groups":
                continue
            if len(below) == 1:
                numbered = {n: list(group.names) for n, group in enumerate(lists[key].groups)}
            elif below[-1] == "params" and isinstance(below[1], int):
                numbered[below[1]] = list(lists[key].names or ())
        if not numbered:
            return None
        groups += [[names.get(name, name) for name in numbered[number]] for number in sorted(numbered)]
    return groups


def _find_optimizers(paths: Mapping[str, Path]) -> set[Path]:
    found: set[Path] = set()
    states: defaultdict[Path, set[int]] = defaultdict(set)
    for path in paths.values():
        for depth in range(min(len(path), _MAX_DEPTH + 1)):
            name = path[depth]
            if name == _GROUPS or str(name).startswith(_GROUPS + "."):
                found.add(path[:depth])
            elif name == _STATE and depth:
                states[path[:depth]].add(len(path) - depth - 1)
    found |= {
        prefix
        for prefix, depths in states.items()
        if depths == {2} and str(prefix[-1]).lower().startswith("optim")
    }
    return _outermost(found)


def _find_models(
    paths: Mapping[str, Path],
    entries: Mapping[str, Entry],
    optimizers: set[Path],
    trained: Iterable[frozenset[str]],
) -> set[Path]:
    trained = [names for names in trained if names]
    below, plain, direct = _find_candidates(paths, entries, optimizers, with_names=bool(trained))
    found = _outermost({prefix for prefix in below if plain[prefix] and _is_model_place(prefix, optimizers)})
    # No model by name has all that an optimizer trains: the path that has all of these names is its model.
    for wanted in trained:
        if not any(wanted <= below[prefix] for prefix in found):
            fitting = {prefix for prefix, names in below.items() if wanted <= names}
            found |= {prefix for prefix in _trained(_outermost(fitting)) if not _overlaps(prefix, found)}
    # At the root a number may stand beside the tensors: a bare state dict with an epoch is still one.
    dicts = {prefix for prefix in direct if not prefix or plain[prefix]}
    if found:
        named = {prefix for prefix in dicts if prefix and _has_namesake(prefix, optimizers)}
        return found | {prefix for prefix in named if not _overlaps(prefix, found)}
    is_bare = all(len(path) == 1 and isinstance(entries[key], TensorEntry) for key, path in paths.items())
    if not dicts and is_bare and not optimizers:
        return {()}
    return _trained(_outermost(dicts))


def _in_list(prefix: Path, paths: Mapping[str, Path]) -> set[Path]:
    """Return the paths of the models in a list of them, or the path of one that is in none."""
    below = {path[len(prefix)] for path in paths.values() if path[: len(prefix)] == prefix != path}
    # A list of models: torch has a number where a mapping has a name.
    is_list = bool(prefix) and all(isinstance(item, int) for item in below)
    return {(*prefix, item) for item in below} if is_list else {prefix}


def is_copy(name: str) -> bool:
    """Tell whether a name says that weights are kept beside those that a run trains.

    Example:
        >>> is_copy("consolidated_ema"), is_copy("schema")
        (True, False)
    """
    return _COPIES.search(name.partition(".")[0]) is not None


def _trained(prefixes: set[Path]) -> set[Path]:
    """Leave out copies of weights, where there are others."""
    own = {prefix for prefix in prefixes if not (prefix and _COPIES.search(str(prefix[-1])))}
    return own or prefixes


def _find_candidates(
    paths: Mapping[str, Path], entries: Mapping[str, Entry], optimizers: set[Path], *, with_names: bool
) -> tuple[Mapping[Path, set[str]], Mapping[Path, bool], set[Path]]:
    """Return what may be a model.

    Returns:
        The names of the tensors below each path, if they are wanted; whether nothing else is nested there;
        and the paths at which parameters lie by their dotted names.
    """
    below: defaultdict[Path, set[str]] = defaultdict(set)
    plain: defaultdict[Path, bool] = defaultdict(lambda: True)
    direct: set[Path] = set()
    for key, path in paths.items():
        if optimizers and _is_below(path, optimizers):
            continue
        entry = entries[key]
        is_tensor = isinstance(entry, TensorEntry)
        for depth in range(min(len(path), _MAX_DEPTH + 1)):
            prefix, rest = path[:depth], path[depth:]
            if is_tensor and with_names:
                below[prefix].add(_comparable(".".join(map(str, rest))))
            elif is_tensor and prefix not in below:
                below[prefix] = set()
            is_plain = is_tensor or len(rest) == 1 or any(_EXTRA_STATE in str(name) for name in rest)
            if not is_plain or prefix not in plain:
                plain[prefix] = is_plain
        if isinstance(entry, TensorEntry) and entry.is_float and entry.shape and "." in str(path[-1]):
            direct.add(path[:-1])
    return below, plain, direct


def _is_model_place(prefix: Path, optimizers: set[Path]) -> bool:
    if not prefix or not (prefix[-1] in MODEL_NAMES or _NUMBERED_MODEL.fullmatch(str(prefix[-1]))):
        return False
    beside = any(optimizer[:1] == prefix[:1] for optimizer in optimizers)
    return len(prefix) == 1 or (len(prefix) == 2 and (beside or prefix[0] in _CONTAINERS))


def _outermost(prefixes: set[Path]) -> set[Path]:
    return {prefix for prefix in prefixes if not any(prefix[:n] in prefixes for n in range(len(prefix)))}


def _has_namesake(prefix: Path, optimizers: set[Path]) -> bool:
    """Tell whether an optimizer is called after a path: ``critic_optimizer`` after ``critic``."""
    own = str(prefix[-1]).lower()
    names = [re.split(r"[_\-.]", str(path[-1]).lower()) for path in optimizers if path]
    return any(own in words for words in names)


def _overlaps(prefix: Path, others: Iterable[Path]) -> bool:
    """Tell whether a path lies below one of others, or above it."""
    return any(prefix[: len(other)] == other or other[: len(prefix)] == prefix for other in others)


def _comparable(name: str) -> str:
    return strip_wrappers(name).removeprefix("module.")


def _is_below(path: Path, optimizers: set[Path]) -> bool:
    return any(path[:depth] in optimizers for depth in range(1, len(path)))


def _place(path: Path, optimizers: set[Path], models: set[Path], *, tensor: bool) -> _Place:
    for depth in range(len(path)):
        prefix = path[:depth]
        if prefix in optimizers and str(path[depth]).startswith((_STATE, _GROUPS)):
            return "optimizer", prefix
        if prefix in models and (prefix or (tensor and len(path) == 1)):
            return "model", prefix
    # What is neither stays together with its neighbours: `state.timestamp`, `rng`. Beside a model or an
    # optimizer, as in `{"app": {"model": ..., "scheduler": ..., "step": ...}}`, each has a name of its own.
    is_beside = any(prefix[:1] == path[:1] and len(prefix) > 1 for prefix in (*models, *optimizers))
    is_apart = len(path) > 2 if path[0] == _STATE else is_beside
    return "other", path[:2] if is_apart else path[:1]


def _part(kind: PartKind, prefix: Path, members: list[str], paths: Mapping[str, Path]) -> Part:
    part = Part(kind, prefix, tuple(members))
    names = [name for key in members if (name := parameter_name(part, paths[key]))]
    return Part(kind, prefix, part.keys, all_have_module(names))
