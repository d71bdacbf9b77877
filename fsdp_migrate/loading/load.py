"""Load any FSDP1-era checkpoint into a model and its optimizers, in one call."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch

from fsdp_migrate.arguments import (
    FLAG,
    FUNCTION,
    MAPPING,
    NOTHING,
    PATH,
    TEXT,
    TEXTS,
    check_arguments,
    instance_of,
    what_it_is,
)
from fsdp_migrate.checkpoint_convert.manifest.options import SourceOptions
from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
from fsdp_migrate.errors import ConfigError
from fsdp_migrate.findings import Finding, make_finding
from fsdp_migrate.loading.apply import (
    ExtraPlan,
    ModelPlan,
    StatePlan,
    load_extra,
    load_optimizers,
    load_rest_of_model,
    model_casts,
    plan_extra,
    plan_model,
    plan_optimizers,
)
from fsdp_migrate.loading.fit import Fit, fit
from fsdp_migrate.loading.materialize import check_meta, materialize
from fsdp_migrate.loading.offer import Offer, make_offer
from fsdp_migrate.loading.opening import LeftOut, Opened, open_checkpoint
from fsdp_migrate.loading.peers import Peers
from fsdp_migrate.loading.report import LoadReport
from fsdp_migrate.loading.transfer import read_jobs, send_jobs
from fsdp_migrate.loading.wanted import Wanted, look_at
from fsdp_migrate.runtime.sharded import show_shards
from fsdp_migrate.sharding.check import check_not_lazy
from fsdp_migrate.sharding.optimizers import as_list
from fsdp_migrate.sharding.structure import check_structure


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from fsdp_migrate.checkpoint_convert.loading.slices import SliceCounts
    from fsdp_migrate.checkpoint_convert.storage.folders import Location
    from fsdp_migrate.checkpoint_convert.storage.progress import Progress
    from fsdp_migrate.loading.transfer import Job


_BEFORE: Final = "cannot load the checkpoint, so no rank does"
_DURING: Final = "failed while it loaded, so that the model is loaded in part on every rank"


def load_checkpoint(
    path: Location,
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer] = (),
    *,
    extra: Mapping[str, Any] | None = None,
    strict: bool = True,
    weights_only: bool = False,
    part: str | None = None,
    rename: Sequence[str] = (),
    map: str | ParameterMap | None = None,
    broadcast: bool | str = "auto",
    progress: Progress | None = None,
    options: SourceOptions | None = None,
) -> LoadReport:
    """Load a checkpoint of an FSDP1 run straight into a model and its optimizers, without converting it.

    In place of ``convert_checkpoint``, ``get_state_dict``, ``dcp.load`` and ``set_state_dict``, with
    the same bits. Each rank reads its own slices, straight into the memory that is to hold them. Nothing of
    the checkpoint is executed, and no file is written. All ranks of the model must call it.

    Changes: the values of the model, and the optimizers' state and settings, but for ``foreach`` and
    ``fused``. A parameter of which the checkpoint has no optimizer state has none afterwards. What can be
    refused is refused before anything is changed; if reading fails after that, the model is loaded in part,
    and the error says so.

    Args:
        path: Any checkpoint that ``convert`` reads: a folder, a file or an fsspec URL.
        model: The model: sharded by :func:`prepare_fully_shard`, by plain ``fully_shard``, or not at all.
            On the meta device it gets memory first.
        optimizers: Its optimizer, or several, in the order of the run that saved.
        extra: What else is wanted, by its name in the checkpoint. An object with ``load_state_dict`` is given
            what is there; for anything else the report has the value, in ``report.values``.
        strict: The names and shapes of the model, the parameter groups and the names in ``extra`` must all be
            there, and no other ones. Without it, what fits is loaded, and the rest is in the findings.
        weights_only: Load the model alone, without optimizers, and what ``extra`` asks for.
        part: Which of several models in the checkpoint it is, by its name there, such as ``"critic"``. Needed
            where more than one fits, and none is called ``model`` or the like.
        rename: Changes of names of parameters of the checkpoint, each ``"regex=replacement"``.
        map: What becomes of parameters that the model holds otherwise than the run that saved: a text for
            ``read_map`` such as ``"transformers-5:mixtral"``, or what it gave. ``options`` then describes the
            model that saved.
        broadcast: ``"auto"``: where not every rank sees the checkpoint, one that does sends what it reads, in
            pieces of 32 MiB. True: always. False: every rank must see it.
        progress: Called with a ``ProgressEvent`` now and then, on the first rank.
        options: What the checkpoint does not say itself. Without it, what is known of the model is taken.

    Returns:
        What was loaded, and what there is to say about it.

    Raises:
        CheckpointMismatchError: Something does not fit; the error lists all of it. Or the ranks see different
            files, or several models in the checkpoint fit equally well.
        CheckpointError: The checkpoint cannot be read, in the words of ``convert``.
        RankError: Another rank has an error; it says which, and why.
        OptimizerError: An optimizer holds parameters that are not the model's.
        ModelStateError: A forward or backward is under way.

    Example:
        >>> import os, tempfile, torch
        >>> from torch import nn
        >>> model = nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = os.path.join(folder, "state.pt")
        ...     torch.save({"model": {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, "step": 7}, file)
        ...     report = load_checkpoint(file, model, extra={"step": 0})
        >>> model.weight.sum().item(), report.values
        (2.0, {'step': 7})
    """
    start = time.monotonic()
    run = _Run(model, Peers(model))

    def look() -> None:
        check_structure(model)
        check_not_lazy(model)
        check_arguments(PATH, path=path)
        check_arguments(MAPPING | NOTHING, extra=extra)
        check_arguments(FLAG, strict=strict, weights_only=weights_only)
        check_arguments(TEXTS, rename=rename)
        check_arguments(TEXT | instance_of(ParameterMap) | NOTHING, map=map)
        check_arguments(TEXT | NOTHING, part=part)
        check_arguments(FLAG | TEXT, broadcast=broadcast)
        check_arguments(FUNCTION | NOTHING, progress=progress)
        check_arguments(instance_of(SourceOptions) | NOTHING, options=options)
        run.optimizers += [] if weights_only else as_list(optimizers)
        _check_extra(extra or {})
        run.extra |= dict(extra or {})
        run.look(broadcast)

    # Each step is done by all ranks before the next begins: a rank that fails in one stops all of them while
    # the model is still as it was.
    run.peers.together(look, _BEFORE)
    opened = open_checkpoint(
        path,
        run.peers,
        run.wanted,
        model,
        broadcast,
        left_out=_left_out(weights_only, named=bool(extra or part)),
        renames=rename,
        map=map,
        options=options,
        part=part,
    )
    try:
        offer = run.take_offer(opened, part)
        found = run.compare(offer, strict=strict)
        shown = progress if run.peers.rank == run.peers.ranks[0] else None
        counts = run.fill(opened, offer, found, shown)
    finally:
        opened.close()
    return run.report(opened, offer, found, counts, time.monotonic() - start)


def _left_out(weights_only: bool, *, named: bool) -> LeftOut:
    if not weights_only:
        return ""
    # Else what `extra` or `part` asks for is left out too.
    return "optimizers" if named else "all but models"


def _check_extra(extra: Mapping[Any, Any]) -> None:
    """Check what ``extra`` holds before anything is loaded: it is given its part last."""
    for name, wanted in extra.items():
        if not isinstance(name, str):
            msg = f"`extra` has the name {name!r:.100}, which is {what_it_is(name)}; expected texts."
            raise ConfigError(msg, field="extra")
        if isinstance(wanted, type) and hasattr(wanted, "load_state_dict"):
            msg = f"`extra[{name!r}]` is the class {wanted.__name__}; expected an object of that class."
            raise ConfigError(msg, field="extra")


@dataclass(slots=True)
class _Run:
    """One call, step by step."""

    model: nn.Module
    peers: Peers
    optimizers: list[Optimizer] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _wanted: Wanted | None = None

    @property
    def wanted(self) -> Wanted:
        """Return what the model asks for."""
        assert self._wanted is not None
        return self._wanted

    def look(self, broadcast: bool | str) -> None:
        """See what is asked for."""
        if broadcast not in ("auto", True, False):
            msg = f"`broadcast` is {broadcast!r}; expected 'auto', True or False."
            raise ConfigError(msg, field="broadcast")
        show_shards(self.model, "load_checkpoint")
        self._wanted = look_at(self.model, self.optimizers)

    def take_offer(self, opened: Opened, part: str | None) -> Offer:
        """Return what the checkpoint offers, the same on every rank."""
        names = list(self.wanted.names.values())
        shapes = {
            name: tuple(value.shape)
            for name, value in self.wanted.model.items()
            if isinstance(value, torch.Tensor)
        }
        made: list[Offer] = []

        def make() -> Offer:
            assert opened.catalogue is not None
            return make_offer(
                opened.catalogue,
                names,
                list(self.extra),
                optimizers=bool(self.optimizers),
                shapes=shapes,
                ties=self.wanted.ties,
                part=part,
            )

        if opened.sender is not None:
            return self.peers.share(make, opened.sender, _BEFORE)
        self.peers.together(lambda: made.append(make()), _BEFORE)
        return made[0]

    def compare(self, offer: Offer, *, strict: bool) -> Fit:
        """Hold the offer against what is asked for; without ``strict`` the differences are findings."""
        found: list[Fit] = []

        def work() -> None:
            one = fit(offer, self.wanted, extra=list(self.extra), meta=check_meta(self.model))
            one.settle(offer.source, strict=strict)
            found.append(one)

        self.peers.together(work, _BEFORE)
        return found[0]

    def fill(self, opened: Opened, offer: Offer, found: Fit, progress: Progress | None) -> SliceCounts:
        """Read everything into its place; from here on the model changes."""
        done: list[tuple[SliceCounts, ModelPlan, StatePlan, ExtraPlan]] = []

        def read() -> None:
            if check_meta(self.model):
                materialize(self.model, self.optimizers, found.missing)
                # Once more: memory of its own makes other tensors of what was on the meta device.
                self._wanted = look_at(self.model, self.optimizers)
            plans = plan_model(self.wanted, found), plan_optimizers(self.wanted, found), plan_extra(offer)
            jobs: list[Job] = [job for plan in plans for job in plan.jobs]
            if opened.sender is None:
                assert opened.catalogue is not None
                counts = read_jobs(opened.catalogue, jobs, progress)
            else:
                counts = send_jobs(opened.catalogue, jobs, self.peers, opened.sender, progress)
            done.append((counts, *plans))

        def give() -> None:
            _, model, states, more = done[0]
            load_rest_of_model(self.model, model)
            self.findings += [*model_casts(model.jobs), *load_optimizers(self.wanted, found, states)]
            self.values = load_extra(self.extra, more)

        # Where one rank cannot read, no optimizer is touched on any.
        self.peers.together(read, _DURING)
        self.peers.together(give, _DURING)
        return done[0][0]

    def report(
        self, opened: Opened, offer: Offer, found: Fit, counts: SliceCounts, seconds: float
    ) -> LoadReport:
        """Return what was done."""
        rate = counts.nbytes / seconds / 1e9 if seconds else 0.0
        text = (
            f"{counts.nbytes} bytes in {seconds:.1f} s ({rate:.2f} GB/s); {counts.agreed} agree with the "
            f"checksums that torch.save stored, {counts.bare} have none, and {counts.partial} are of records "
            "that were not compared."
        )
        said = [make_finding("FM436", offer.source, text), *opened.findings]
        return LoadReport(
            source=offer.source,
            layout=offer.layout,
            values=self.values,
            loaded=tuple(found.model),
            missing=tuple(found.missing),
            states=len(found.state),
            nbytes=counts.nbytes,
            seconds=seconds,
            findings=(*offer.findings, *found.findings, *self.findings, *said),
        )
