"""From the modules that FSDP1 would wrap to the units that FSDP2 gets: no empty ones, no torn ties."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fsdp_migrate.config import FSDP1Config, MixedPrecisionPolicy
from fsdp_migrate.errors import ModelError
from fsdp_migrate.findings import Finding, make_finding, named
from fsdp_migrate.mapping import map_config
from fsdp_migrate.sharding.tying import Tie, is_one_module, parameter_names, resolve_ties
from fsdp_migrate.torch_compat import module_kinds


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from fsdp_migrate.config import FSDP2Config
    from fsdp_migrate.sharding.estimates import UnitBytes
    from fsdp_migrate.sharding.tying import TieDecision, TieOwner
    from fsdp_migrate.sharding.wrap import WrapRequest, WrapUnit


@dataclass(frozen=True, kw_only=True)
class UnitSummary:
    """What people want to know of a unit: its names, its size, and how it is gathered.

    ``names`` are those of its modules, the first one's first; that of the whole model is empty. ``sharded``
    are the bytes of its parameters at rest on the rank that holds most, ``unsharded`` while it is gathered;
    None where the plan did not estimate them.
    """

    names: tuple[str, ...]
    module_class: str
    numel: int
    sharded: int | None
    unsharded: int | None
    param_dtype: str | None
    frees_after_forward: bool


@dataclass(frozen=True)
class UnitPlan:
    """One unit: its module's name (empty for the root), what it manages, and how.

    ``parameters`` are names in the model; ``numel`` counts their elements, unsharded. ``grouped`` are the
    names of further modules that are sharded together with the first, as ``fully_shard([...])`` does.
    ``bytes`` is what the unit costs.
    """

    fqn: str
    module_class: str
    parameters: tuple[str, ...]
    numel: int
    config: FSDP2Config
    full_precision: bool = False
    grouped: tuple[str, ...] = ()
    bytes: UnitBytes | None = None

    @property
    def is_root(self) -> bool:
        """Whether this is the unit of the whole model."""
        return not self.fqn

    @property
    def reshard_after_forward(self) -> bool | int | None:
        """What ``fully_shard`` is told; None: torch's default, which keeps the root's parameters."""
        # FSDP1 never freed the root after forward, and nor does torch where it is told None. Told True, newer
        # releases free it, and older ones keep it all the same.
        return self.config.root_reshard_after_forward if self.is_root else self.config.reshard_after_forward

    @property
    def frees_after_forward(self) -> bool:
        """Whether the parameters are freed after forward, and gathered again for backward."""
        reshard = self.reshard_after_forward
        return not self.is_root if reshard is None else reshard is not False

    @property
    def mp_policy(self) -> MixedPrecisionPolicy:
        """The unit's mixed precision."""
        if self.full_precision:
            return MixedPrecisionPolicy(cast_forward_inputs=False)
        return self.config.root_mp_policy if self.is_root else self.config.mp_policy

    @property
    def summary(self) -> UnitSummary:
        """What people want to know of it."""
        return UnitSummary(
            names=(self.fqn, *self.grouped),
            module_class=self.module_class,
            numel=self.numel,
            sharded=None if self.bytes is None else self.bytes.sharded,
            unsharded=None if self.bytes is None else self.bytes.unsharded,
            param_dtype=self.mp_policy.param_dtype,
            frees_after_forward=self.frees_after_forward,
        )


def plan_units(
    model: nn.Module, given: FSDP1Config, found: Iterable[WrapUnit], request: WrapRequest, tied: TieOwner
) -> tuple[tuple[UnitPlan, ...], list[Finding]]:
    """Plan the units of the modules that a policy has selected, in the order in which they are sharded.

    Raises:
        ModelError: A tie would pull a full-precision module into a unit of mixed precision, or a module to
            which the policy gives settings of its own into a unit that has others.
    """
    every = list(found)
    selected = [unit for unit in every if not unit.fqn or module_kinds.has_forward(unit.module)]
    names = {unit.module: unit.fqn for unit in selected}
    resolved = resolve_ties(model, names, request.ignored_params, tied)
    for decision in resolved.decisions:
        _check_decision(decision, selected)
        _check_settings(decision, given, selected)
    # A module that is grouped bears the name of another, and one that was given up none.
    kept = [unit for unit in selected if resolved.names.get(unit.module) == unit.fqn]
    units, own = _with_parameters(model, given, kept, request, resolved.grouped)
    planned = {fqn for unit in units for fqn in (unit.fqn, *unit.grouped)}
    containers = [unit.fqn for unit in every if unit.module not in names]
    vacant = [unit.fqn for unit in kept if unit.fqn not in planned]
    findings = [*_left_out(containers, vacant), *map(_tie_finding, resolved.decisions), *own]
    if not given.use_orig_params:
        # One module under two names has one set of parameters in FSDP1, in the unit that holds it.
        torn = (each for each in resolved.decisions if not is_one_module(model, each.tie))
        findings.extend(map(_trained_apart, torn))
    elif given.sharding_strategy == "NO_SHARD":
        findings.extend(map(_reduced_in_part, resolved.decisions))
    if given.param_init_fn is not None:
        named = parameter_names(model).items()
        ignored = [names[0] for parameter, names in named if parameter in request.ignored_params]
        findings.extend(made_apart(model, given, ignored, findings))
    return units, findings


def made_apart(
    model: nn.Module,
    given: FSDP1Config | FSDP2Config,
    ignored: Iterable[str],
    told: Iterable[Finding],
) -> Iterator[Finding]:
    """Yield ties on the meta device: FSDP1 tore them, as each module was given memory of its own.

    Not where rank 0 has a model with values, which the others were to take.

    Args:
        model: The model.
        given: FSDP1's arguments, or what became of them.
        ignored: The first name of each parameter that is ignored.
        told: What is said of ties already.
    """
    left = set(ignored)
    known = {each.message for each in told if each.code == "FM273"}
    is_filled = given.sync_module_states if isinstance(given, FSDP1Config) else given.broadcast_from_rank0
    for parameter, names in parameter_names(model).items():
        is_one = len(names) < 2 or names[0] in left or is_one_module(model, Tie(names, ()))
        if is_one or is_filled or not parameter.is_meta:
            continue
        text = " and ".join(f"`{name}`" for name in names)
        if not any(each.startswith(f"{text} are one parameter") for each in known):
            message = (
                f"{text} are one parameter, on the meta device: FSDP1 gave each module memory of its own, "
                "and trained them apart, with other random numbers. Here they stay one parameter."
            )
            yield make_finding("FM273", "param_init_fn", message, _UNTIE)


def _check_decision(decision: TieDecision, selected: Sequence[WrapUnit]) -> None:
    unmixed = {unit.fqn for unit in selected if unit.full_precision and unit.fqn}
    for fqn in (*decision.given_up, *decision.grouped):
        if fqn in unmixed and not unmixed.issuperset(decision.grouped or (decision.owner,)):
            names = " and ".join(f"`{name}`" for name in decision.tie.names)
            msg = (
                f"{names} are one parameter, but module `{fqn}` stays in full precision and the others do "
                "not. Untie them, or take the class out of `_module_classes_to_ignore`."
            )
            raise ModelError(msg, fqn=fqn)


_UNTIE = "To go on with what FSDP1 trained, untie them in the model: its checkpoint holds all copies."
_SPEED_ONLY = frozenset({"sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers"})
"""What a unit may lose to another without a change of values."""


def _check_settings(decision: TieDecision, given: FSDP1Config, selected: Sequence[WrapUnit]) -> None:
    """Check that the owner of a tied parameter has the settings of the units that are no units any more."""
    overrides = {unit.fqn: unit.overrides for unit in selected}
    owner = given.updated(**overrides[decision.owner])
    for fqn in (*decision.given_up, *decision.grouped):
        own = given.updated(**overrides[fqn])
        keys = sorted({*overrides[fqn], *overrides[decision.owner]} - _SPEED_ONLY)
        lost = next((key for key in keys if getattr(own, key) != getattr(owner, key)), None)
        if lost is not None:
            names = " and ".join(f"`{name}`" for name in decision.tie.names)
            owning = f"unit `{decision.owner}`" if decision.owner else "the root unit"
            msg = (
                f"{names} are one parameter, which {owning} would own, but the auto-wrap policy gives module "
                f"`{fqn}` another `{lost}`. Untie them, or give both the same."
            )
            raise ModelError(msg, fqn=fqn)


def _trained_apart(decision: TieDecision) -> Finding:
    """Tell of what FSDP1 did to a tie across units where it shows flat parameters: it tore it."""
    names = " and ".join(f"`{name}`" for name in decision.tie.names)
    text = (
        f"{names} are one parameter in several units: with `use_orig_params=False` FSDP1 trained a copy in "
        "each, and they became different. Here it stays one parameter."
    )
    return make_finding("FM273", "use_orig_params", text, _UNTIE)


def _reduced_in_part(decision: TieDecision) -> Finding:
    """Tell of a tie across units under NO_SHARD: one of FSDP1's units reduced it, in part."""
    names = " and ".join(f"`{name}`" for name in decision.tie.names)
    text = (
        f"{names} are one parameter in several units: under NO_SHARD FSDP1 reduced the gradients of one of "
        "these units, and those of the others stayed different on each rank. Here all are reduced."
    )
    return make_finding("FM123", "sharding_strategy", text)


def _tie_finding(decision: TieDecision) -> Finding:
    names = " and ".join(f"`{name}`" for name in decision.tie.names)
    if decision.grouped:
        group = ", ".join(f"`{fqn}`" for fqn in decision.grouped)
        text = f"{names} are one parameter: its modules {group} are sharded together, as one unit."
        return make_finding("FM104", "auto_wrap_policy", text)
    owner = f"unit `{decision.owner}`" if decision.owner else "the root unit"
    text = f"{names} are one parameter: {owner} owns it, and {named(list(decision.given_up))} are no units."
    return make_finding("FM103", "auto_wrap_policy", text)


def _with_parameters(
    model: nn.Module,
    given: FSDP1Config,
    kept: Sequence[WrapUnit],
    request: WrapRequest,
    groups: dict[str, tuple[str, ...]],
) -> tuple[tuple[UnitPlan, ...], list[Finding]]:
    names = {param: all_names[0] for param, all_names in parameter_names(model).items()}
    claimed: set[nn.Parameter] = set(request.ignored_params)
    units: list[UnitPlan] = []
    findings: list[Finding] = []
    # Inner units come first and claim what is below them, as fully_shard does; the root takes the rest.
    for unit in kept:
        grouped = groups.get(unit.fqn, ())
        members = [unit.module, *(model.get_submodule(fqn) for fqn in grouped)]
        params = dict.fromkeys(param for module in members for param in module.parameters())
        managed = [param for param in params if param not in claimed]
        if unit.fqn and not managed:
            continue
        claimed.update(managed)
        config, own = _unit_config(given, unit)
        findings.extend(own)
        plan = UnitPlan(
            fqn=unit.fqn,
            module_class=type(unit.module).__name__,
            parameters=tuple(names[param] for param in managed),
            numel=sum(param.numel() for param in managed),
            config=config,
            full_precision=unit.full_precision and bool(unit.fqn),
            grouped=grouped,
        )
        units.append(plan)
    return tuple(units), findings


def _unit_config(given: FSDP1Config, unit: WrapUnit) -> tuple[FSDP2Config, list[Finding]]:
    """Map the unit's own FSDP1 arguments, which ``CustomPolicy`` can give, over those of the whole."""
    if not unit.overrides:
        return map_config(given)[0], []
    config, findings = map_config(given.updated(**unit.overrides))
    own = [
        replace(finding, subject=f"auto_wrap_policy[{unit.fqn}].{finding.subject}")
        for finding in findings
        if finding.subject.partition(".")[0] in unit.overrides
    ]
    return config, own


def _left_out(containers: list[str], empty: list[str]) -> Iterator[Finding]:
    if containers:
        text = f"{named(containers)}: FSDP2 needs a `forward`, and a container has none."
        yield make_finding("FM101", "auto_wrap_policy", text)
    if empty:
        text = f"{named(empty)}: selected, but all of their parameters are in inner units."
        yield make_finding("FM102", "auto_wrap_policy", text)
