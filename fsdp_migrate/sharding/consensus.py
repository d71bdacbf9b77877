"""All ranks shard, or none does: what one rank finds wrong is an error on every rank, not a hang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from fsdp_migrate.errors import ConfigError, FSDPMigrateError, ModelError
from fsdp_migrate.findings import listed, make_finding
from fsdp_migrate.sharding.facts import WITH_DTYPES, differing, facts_of, shapes_of
from fsdp_migrate.sharding.own_values import digest_of, sampled_values, values_finding
from fsdp_migrate.sharding.structure import structure_fault
from fsdp_migrate.torch_compat.device_meshes import meshes_of


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from fsdp_migrate.findings import Finding
    from fsdp_migrate.sharding.facts import Fact
    from fsdp_migrate.sharding.plan import ShardPlan


Groups: TypeAlias = Sequence["dist.ProcessGroup | None"]
"""The groups over which ranks talk, one dimension of their mesh after the other; None is all ranks."""

SaidT = TypeVar("SaidT")


@dataclass(frozen=True)
class RankReport:
    """What one rank has to say before sharding: its plan's facts and meta tensors, or its error.

    ``fills_meta``: a ``param_init_fn`` of this rank gives its meta tensors memory, and may give them another
    dtype. ``shapes``: a digest of the model without its dtypes. ``values``: one of values that should be the
    same on every rank.
    """

    rank: int
    facts: tuple[tuple[str, str], ...] = ()
    num_meta: int = 0
    fills_meta: bool = False
    shapes: str = ""
    values: str = ""
    error: str | None = None


def groups_of(fsdp1_config: Any, mesh: DeviceMesh | None, model: object) -> list[dist.ProcessGroup | None]:
    """Return the groups over which the ranks that shard together talk; None is all ranks.

    Ranks that another parallelism has joined depend on each other too. The config is looked at as it was
    given: whether it can be read is what the ranks are to agree on.

    Raises:
        ConfigError: This rank is in none of the groups; the others do not wait for it.
    """

    def given(name: str) -> Any:
        is_mapping = isinstance(fsdp1_config, Mapping)
        return fsdp1_config.get(name) if is_mapping else getattr(fsdp1_config, name, None)

    chosen = mesh if mesh is not None else given("device_mesh")
    if isinstance(chosen, DeviceMesh):
        if chosen.get_coordinate() is None:
            raise ConfigError(_not_a_member("mesh", chosen.mesh.flatten().tolist()), field="mesh")
        # What is no model, or none that can be walked, is told to all ranks, later.
        known = model.parameters() if isinstance(model, nn.Module) and structure_fault(model) is None else ()
        return [each.get_group(dim) for each in (chosen, *meshes_of(known)) for dim in range(each.ndim)]
    groups = given("process_group")
    several = groups if isinstance(groups, (tuple, list)) else [groups]
    # What `dist.new_group` returns to ranks that it was not given.
    if any(group is dist.GroupMember.NON_GROUP_MEMBER for group in several):
        raise ConfigError(_not_a_member("process_group"), field="process_group")
    found: list[dist.ProcessGroup | None] = [g for g in several if isinstance(g, dist.ProcessGroup)]
    return found or [None]


def _not_a_member(field: str, ranks: Sequence[int] = ()) -> str:
    held = f", which holds the ranks {list(ranks)}" if ranks else ""
    return (
        f"Rank {dist.get_rank()} is not in its `{field}`{held}. Call prepare_fully_shard on those ranks "
        "only, or give this rank a group of its own."
    )


def agree_on_plan(make: Callable[[], ShardPlan], model: nn.Module, groups: Groups) -> ShardPlan:
    """Make the plan on every rank, and return it if all ranks are to communicate the same.

    Raises:
        Exception: This rank's own error, if it has one: one of ours, or of a policy that the user wrote.
        ConfigError: The ranks were given different arguments; each is named, with who has what.
        ModelError: Another rank has an error, the ranks' models differ, or some are on the meta
            device and others are not, without ``sync_module_states`` from a real rank 0 or a
            ``param_init_fn`` on each of those.
    """
    plan: ShardPlan | None = None
    failure: Exception | None = None
    facts: dict[str, Fact] = {}
    values: tuple[tuple[str, str], ...] = ()
    own = RankReport(dist.get_rank())
    try:
        plan = make()
        facts = {fact.name: fact for fact in facts_of(plan, model)}
        digests = tuple((name, fact.digest) for name, fact in facts.items())
        num_meta = sum(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        values = sampled_values(plan, model)
        fills_meta = plan.config.param_init_fn is not None
        shapes = shapes_of(model, plan).digest
        own = RankReport(own.rank, digests, num_meta, fills_meta, shapes, digest_of(values))
    except Exception as error:
        failure = error
        own = RankReport(own.rank, error=_text_of(error))
    # A rank that failed takes part all the same: the others wait for what it has to say.
    reports = exchange(own, groups)
    if failure is not None:
        raise failure
    _raise_failures(reports, "cannot shard its model, so no rank does")
    assert plan is not None
    names = differing([_facts_before_filling(report, reports) for report in reports])
    if names:
        # Only now, and only for what differs: the names of a large model are megabytes on each rank.
        own_parts = tuple((name, facts[name].parts if name in facts else ()) for name in names)
        _raise_differences(names, exchange((own.rank, own_parts), groups))
    found = _check_meta(reports, broadcasts=plan.config.broadcast_from_rank0)
    if len({report.values for report in reports}) > 1 and all(report.values for report in reports):
        found.append(values_finding(exchange(values, groups)))
    return replace(plan, findings=(*plan.findings, *found))


def _facts_before_filling(own: RankReport, reports: Sequence[RankReport]) -> dict[str, str]:
    """Return the facts that ranks have to agree on now: not on dtypes that a ``param_init_fn`` may change."""
    facts = dict(own.facts)
    if any(each.num_meta and each.fills_meta for each in reports) and len({e.shapes for e in reports}) == 1:
        return {name: digest for name, digest in facts.items() if name not in WITH_DTYPES}
    return facts


def agree_on_dtypes(tensors: Mapping[str, torch.Tensor], groups: Groups) -> None:
    """Check that tensors have the same dtypes on all ranks, now that functions of these have filled them.

    Raises:
        ModelError: They have not. Who would send the bytes of one dtype to another one's, would abort.
    """
    own = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    said = exchange((dist.get_rank(), own), groups)
    names = dict.fromkeys(name for _, each in said for name in each)
    found = [name for name in names if len({each[name] for _, each in said if name in each}) > 1]
    if found:
        who = _who_has_what({rank: (each.get(found[0], "nothing"),) for rank, each in said})
        others = f" (and {len(found) - 1} more)" if found[1:] else ""
        msg = (
            f"After `param_init_fn` the ranks have different dtypes in `{found[0]}`{others}: {who}. Give "
            "every rank the same. The model is sharded in part; build it again."
        )
        raise ModelError(msg, fqn=found[0])


def together(
    work: Callable[[], None],
    groups: Groups,
    where: str,
    kind: type[FSDPMigrateError] = ModelError,
) -> None:
    """Do what may fail on this rank alone; if it does, it fails on every rank.

    Raises:
        Exception: This rank's own error, if it has one.
        ModelError: Another rank has an error; or what ``kind`` is.
    """
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        failure = error
    own = RankReport(dist.get_rank(), error=None if failure is None else _text_of(failure))
    reports = exchange(own, groups)
    if failure is not None:
        raise failure
    _raise_failures(reports, where, kind)


def share(
    make: Callable[[], SaidT],
    groups: Groups,
    sender: int,
    where: str,
    kind: type[FSDPMigrateError] = ModelError,
) -> SaidT:
    """Return on every rank what one of them makes; if it fails there, it fails on every rank.

    Raises:
        Exception: The sender's own error, on the sender.
        ModelError: The sender has an error; or what ``kind`` is.
    """
    made: dict[int, SaidT] = {}

    def work() -> None:
        if dist.get_rank() == sender:
            made[sender] = make()

    together(work, groups, where, kind)
    said = exchange(made, groups)
    return next(each[sender] for each in said if sender in each)


def any_rank_says(word: bool, groups: Groups) -> bool:
    """Tell whether any of the ranks says yes; a collective call."""
    return any(said for _, said in exchange((dist.get_rank(), word), groups))


def _text_of(error: Exception) -> str:
    own = isinstance(error, FSDPMigrateError)
    return str(error) if own else f"{type(error).__name__}: {error}"


def _raise_failures(
    reports: Sequence[RankReport], where: str, kind: type[FSDPMigrateError] = ModelError
) -> None:
    failed = [report for report in reports if report.error is not None]
    if failed:
        others = f" (and ranks {[other.rank for other in failed[1:]]})" if failed[1:] else ""
        msg = f"Rank {failed[0].rank}{others} {where}: {failed[0].error}"
        raise kind(msg)


def exchange(own: SaidT, groups: Groups) -> list[SaidT]:
    """Return what every rank has to say, in the order of the ranks."""
    known: dict[int, SaidT] = {dist.get_rank(): own}
    # Each group adds what its ranks have heard in those before. So over the dimensions of a mesh everybody
    # hears of everybody, without a group of all of them, which the ranks of other models would have to make.
    for group in groups:
        gathered: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(gathered, known, group=group)
        known = {rank: said for part in gathered for rank, said in part.items()}
    return [known[rank] for rank in sorted(known)]


def _raise_differences(
    names: Sequence[str], said: Sequence[tuple[int, tuple[tuple[str, tuple[str, ...]], ...]]]
) -> None:
    """Name each thing in which the ranks differ, and who has what."""
    by_rank = {rank: dict(facts) for rank, facts in said}
    lines = [
        f"  {name}: {_who_has_what({r: facts[name] for r, facts in by_rank.items()})}." for name in names
    ]
    listing = "\n".join(lines)
    if any(name.startswith("`") for name in names):
        # Arguments before models: units and dtypes often differ because the arguments do.
        field = next(name for name in names if name.startswith("`")).strip("`")
        msg = (
            f"The ranks were given different arguments, so no rank shards its model:\n{listing}\n"
            "Give every rank the same: they would wait for each other in training."
        )
        raise ConfigError(msg, field=field)
    msg = (
        f"The ranks have different models, so no rank shards its own:\n{listing}\n"
        "Names, shapes, dtypes, what is trained and the units must be the same on every rank."
    )
    raise ModelError(msg)


def _who_has_what(parts: Mapping[int, tuple[str, ...]]) -> str:
    """Say which ranks have what, of several parts only those that not all ranks have."""
    common = set.intersection(*map(set, parts.values()))
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, own in parts.items():
        alike.setdefault(tuple(part for part in own if part not in common), []).append(rank)
    if len(alike) == 1:
        return "in another order on " + ", ".join(f"rank {rank}" for rank in list(parts)[1:4])
    texts = []
    for own, ranks in alike.items():
        texts.append(f"{listed(own, 3) or 'nothing'} on {_ranks(ranks)}")
    return listed(texts, 8, between="; ")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed(ranks, 8)}"


def _check_meta(reports: Sequence[RankReport], *, broadcasts: bool) -> list[Finding]:
    meta = [report.rank for report in reports if report.num_meta]
    real = [report.rank for report in reports if not report.num_meta]
    if not meta or not real or (broadcasts and reports[0].rank in real):
        return []
    if not broadcasts and all(report.fills_meta for report in reports if report.num_meta):
        text = (
            f"The models of ranks {meta} alone are on the meta device, and nothing sends them values: each "
            "has what its own `param_init_fn` makes. The parts of a parameter may not belong together."
        )
        hint = "Load a checkpoint before the first step, or pass `sync_module_states=True`."
        return [make_finding("FM131", "param_init_fn", text, hint)]
    what = (
        "`sync_module_states=True` broadcasts from the first of them"
        if broadcasts
        else ("`sync_module_states` is not set")
    )
    msg = (
        f"The models of ranks {meta} are on the meta device and those of ranks {real} are not, but {what}. "
        f"Build the model of rank {reports[0].rank} on a real device and pass `sync_module_states=True`, "
        "or build all alike."
    )
    raise ModelError(msg)
