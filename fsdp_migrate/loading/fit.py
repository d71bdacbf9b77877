"""Does what a checkpoint offers fit what is asked for? All that does not, before anything is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from fsdp_migrate.checkpoint_convert.manifest.param_group_defaults import NEWER
from fsdp_migrate.checkpoint_convert.sources.tied_tensors import torn_text
from fsdp_migrate.errors import CheckpointMismatchError
from fsdp_migrate.findings import Finding, counted, in_lines, listed, make_finding, named
from fsdp_migrate.loading.offer import Leaf, Offer, StoredTensor


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from fsdp_migrate.loading.wanted import Wanted


OWN_SETTINGS: Final = frozenset({"params", "param_names", "foreach", "fused"})
"""Settings that are the new optimizer's own: whose they are, and by which kernels they are stepped."""
_MOST_NAMED: Final = 8
_MAX_LISTED: Final = 40
_UNTIE: Final = "load it into a model without this tie, or have the value of the last name by `strict=False`"
_NO_OPTIMIZER: Final = "no optimizer is in the checkpoint"


@dataclass(slots=True)
class Fit:
    """What of an offer is loaded, and what does not fit.

    Attributes:
        model: What the model gets, by its name.
        missing: The names of the model that there is nothing for.
        state: What the optimizers get, by the first name of each parameter and by field.
        settings: What each group of the optimizers gets.
        problems: What does not fit, each with the code of the finding that it is without ``strict``.
        findings: What is to be said, but is no problem.
    """

    model: dict[str, Leaf] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    state: dict[str, dict[str, Leaf]] = field(default_factory=dict)
    settings: list[dict[str, Leaf]] = field(default_factory=list)
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def problem(self, code: str, subject: str, text: str) -> None:
        """Add a problem."""
        self.problems.append((code, subject, text))

    @property
    def _advice(self) -> str:
        texts = {text for _, _, text in self.problems}
        alone = " `weights_only=True` loads the model alone." if _NO_OPTIMIZER in texts else ""
        return f"`strict=False` loads what fits, and `rename` changes names of the checkpoint.{alone}"

    def settle(self, source: str, *, strict: bool) -> None:
        """Raise for problems where ``strict`` is asked for; otherwise they become findings.

        Raises:
            CheckpointMismatchError: There are some; the error lists all.
        """
        if strict and self.problems:
            shown = in_lines((text for _, _, text in self.problems), _MAX_LISTED)
            head = f"{source!r} does not fit what it is loaded into. Nothing was loaded:"
            raise CheckpointMismatchError(f"{head}\n{shown}", advice=self._advice, path=source)
        of_code: dict[str, list[tuple[str, str]]] = {}
        for code, subject, text in self.problems:
            of_code.setdefault(code, []).append((subject, text))
        for code, found in of_code.items():
            self.findings.append(
                make_finding(code, found[0][0], f"{listed((text for _, text in found), _MOST_NAMED)}.")
            )


def fit(offer: Offer, wanted: Wanted, *, extra: Collection[str], meta: Collection[str] = ()) -> Fit:
    """Compare what is offered with what is asked for.

    Args:
        offer: What the checkpoint has.
        wanted: What the model and the optimizers are.
        extra: What else is asked for, by name.
        meta: The names of the model that have no memory yet.
    """
    found = Fit()
    _fit_model(found, offer, wanted, meta)
    for name, first in offer.torn.items():
        found.problem("FM273", name, f"`{name}` {torn_text(first)}: {_UNTIE}")
    if wanted.optimizers:
        _fit_optimizers(found, offer, wanted)
    for name in extra:
        if name not in offer.extra:
            there = ", ".join(f"`{other}`" for other in offer.others[:12]) or "nothing else"
            found.problem(
                "FM432", name, f"`{name}`, asked for in `extra`, is not there; the checkpoint has: {there}"
            )
    random = offer.random_states
    if random:
        found.findings.append(make_finding("FM438", random[0], f"{named(random, _MOST_NAMED)}."))
    unused = [name for name in offer.others if name not in random]
    if unused:
        found.findings.append(make_finding("FM431", unused[0], f"{named(unused, _MOST_NAMED)}."))
    return found


def _fit_model(found: Fit, offer: Offer, wanted: Wanted, meta: Collection[str]) -> None:
    if not offer.model and wanted.model and wanted.optimizers and offer.groups is not None:
        found.missing += wanted.model
        found.problem("FM432", "model", "no model is in the checkpoint, an optimizer alone")
        return
    aliases = wanted.aliases
    of_first: dict[str, list[str]] = {}
    for name in wanted.model:
        of_first.setdefault(aliases.get(name, name), []).append(name)
    used: set[str] = set()
    for names in of_first.values():
        # Of a tied parameter one name is enough.
        there = [name for name in names if name in offer.model]
        for name in names:
            value = wanted.model[name]
            own = name if name in offer.model else next(iter(there), None)
            if own is None:
                nested = _nested(offer.model, name)
                if nested:
                    used.update(nested)
                    found.model.update({key: offer.model[key] for key in nested})
                    continue
                found.missing.append(name)
                more = ", and it is on the meta device" if name in meta else ""
                found.problem("FM432", name, f"`{name}` of the model is not in the checkpoint{more}")
                continue
            used.add(own)
            leaf = offer.model[own]
            if _shapes_differ(leaf, value):
                found.problem("FM433", name, _shape_text(name, leaf, value))
                found.missing.append(name)
            else:
                found.model[name] = leaf
    for name in offer.model:
        if name not in used:
            found.problem("FM431", name, f"`{name}` of the checkpoint is not in the model")


def _nested(model: Mapping[str, Leaf], name: str) -> list[str]:
    """Return what lies below a name: a module's extra state that was a mapping was taken apart."""
    return [key for key in model if key.startswith(f"{name}.")] if name.endswith("_extra_state") else []


def _shapes_differ(leaf: Leaf, value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or not isinstance(leaf, StoredTensor):
        return isinstance(value, torch.Tensor) != isinstance(leaf, StoredTensor) and not _is_free(value)
    return leaf.shape != tuple(value.shape)


def _is_free(value: Any) -> bool:
    """Tell whether a value is a module's own affair, whatever the checkpoint has for it."""
    return not isinstance(value, torch.Tensor) or not value.ndim


def _shape_text(name: str, leaf: Leaf, value: Any) -> str:
    stored = f"the shape {list(leaf.shape)}" if isinstance(leaf, StoredTensor) else "no tensor"
    own = f"{list(value.shape)}" if isinstance(value, torch.Tensor) else "no tensor"
    return f"`{name}` has {stored} in the checkpoint, and {own} in the model"


def _fit_optimizers(found: Fit, offer: Offer, wanted: Wanted) -> None:
    if offer.groups is None:
        found.problem("FM432", "optimizer", _NO_OPTIMIZER)
        found.settings = [{} for _ in wanted.groups]
        return
    aliases = wanted.aliases
    _fit_settings(found, offer, wanted, aliases)
    own = {name for group in wanted.groups for name in group}
    state = {aliases.get(name, name): fields for name, fields in offer.state.items()}
    for name in state:
        if name not in own:
            text = f"`{name}` has optimizer state in the checkpoint, and is in no group of the optimizers"
            found.problem("FM431", name, text)
    # Not of a parameter that is not loaded: it would be the state of other weights.
    apart = own.intersection(state, wanted.model, found.missing) if offer.model else set()
    found.state |= {name: state[name] for name in own if name in state and name not in apart}
    if apart:
        text = f"the optimizer's state of {named(sorted(apart), _MOST_NAMED)}: the parameters are not loaded."
        found.findings.append(make_finding("FM432", min(apart), f"Not loaded: {text}"))
    without = [name for name in own if name not in state]
    if without:
        found.findings.append(make_finding("FM435", without[0], f"{named(without, _MOST_NAMED)}."))


def _fit_settings(found: Fit, offer: Offer, wanted: Wanted, aliases: Mapping[str, str]) -> None:
    if offer.settings and not offer.groups:
        _fit_flattened(found, offer, wanted, aliases)
        return
    stored = [[aliases.get(name, name) for name in group.names] for group in offer.groups or []]
    doubled = [name for group in stored for name in group if group.count(name) > 1]
    if doubled:
        text = f"`{doubled[0]}` is one parameter in the model, and several in the checkpoint's optimizer"
        found.problem("FM434", doubled[0], text)
    matched = [_match(group, stored) for group in wanted.groups]
    # Groups may stand in another order, and parameters within one.
    if None in matched or sorted(map(sorted, stored)) != sorted(map(sorted, wanted.groups)):
        found.problem("FM434", "param_groups", _groups_text(stored, wanted.groups))
    for number, settings in zip(matched, wanted.settings, strict=True):
        given = {} if number is None else dict((offer.groups or [])[number].settings)
        _give_settings(found, settings, given)


def _match(group: Sequence[str], stored: Sequence[Sequence[str]]) -> int | None:
    """Return the stored group that holds all parameters of a group: the same, or a larger one."""
    own = set(group)
    same = [number for number, names in enumerate(stored) if set(names) == own]
    larger = [number for number, names in enumerate(stored) if own and own <= set(names)]
    return next(iter([*same, *larger]), None)


def _give_settings(found: Fit, settings: Collection[str], given: Mapping[str, Leaf]) -> None:
    """Give a group its settings; note those that it has and the checkpoint has not."""
    found.settings.append(
        {
            key: leaf
            for key, leaf in given.items()
            if key not in OWN_SETTINGS and (key in settings or not _is_default_of_newer(key, leaf))
        }
    )
    missing = sorted(set(settings) - set(given) - OWN_SETTINGS)
    if given and missing:
        text = (
            f"the settings {', '.join(f'`{name}`' for name in missing)} of a group are not in the checkpoint"
        )
        found.problem("FM434", missing[0], f"{text}: is it the same kind of optimizer?")


def _is_default_of_newer(key: str, leaf: Leaf) -> bool:
    """Tell whether this says what holds anyway where torch, before 2.7, has no such setting."""
    return key == NEWER and not isinstance(leaf, StoredTensor) and leaf.load() is False


def _fit_flattened(found: Fit, offer: Offer, wanted: Wanted, aliases: Mapping[str, str]) -> None:
    """Give each group the settings that all of its parameters have in common."""
    own = {aliases.get(name, name): fields for name, fields in offer.settings.items()}
    for group, settings in zip(wanted.groups, wanted.settings, strict=True):
        missing = [name for name in group if name not in own]
        if missing:
            text = f"{named(missing, _MOST_NAMED)} have no settings in the checkpoint's optimizer"
            found.problem("FM434", missing[0], text)
        given = next((own[name] for name in group if name in own), {})
        differ = [name for name in group if name in own and not _same_settings(own[name], given)]
        if differ:
            text = f"`{group[0]}` and `{differ[0]}` are in one group here, and have other settings there"
            found.problem("FM434", differ[0], text)
        _give_settings(found, settings, given)


def _same_settings(one: Mapping[str, Leaf], other: Mapping[str, Leaf]) -> bool:
    return {k: v for k, v in one.items() if k not in OWN_SETTINGS} == {
        k: v for k, v in other.items() if k not in OWN_SETTINGS
    }


def _groups_text(stored: Sequence[Sequence[str]], own: Sequence[Sequence[str]]) -> str:
    sizes = [[len(group) for group in each] for each in (stored, own)]
    theirs, ours = ({name for group in each for name in group} for each in (stored, own))
    odd = [f"`{name}`" for name in (*sorted(theirs - ours)[:4], *sorted(ours - theirs)[:4])]
    what = f"only one side knows {', '.join(odd)}" if odd else "the same parameters, divided otherwise"
    # timm leaves a group out that is empty.
    has_empty = 0 in sizes[0] or len(sizes[0]) == 1 < len(sizes[1])
    if not odd and has_empty and 0 not in sizes[1]:
        what += (
            ". A test such as `p.ndim >= 2` leaves a group empty under FSDP1, whose parameters were flat, "
            "and timm's functions leave such a group out: `fsdp-migrate explain FM318`"
        )
    return (
        f"the checkpoint has {counted(len(stored), 'parameter group')} of {sizes[0]} parameters, and the "
        f"optimizers have {len(own)} of {sizes[1]}: {what}"
    )
