"""Open a checkpoint on every rank, or on one that reads for all."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fsdp_migrate.checkpoint_convert.loading.catalogue import Catalogue, refuse_unlike
from fsdp_migrate.checkpoint_convert.manifest.options import ModelOutline, SourceOptions
from fsdp_migrate.errors import CheckpointNotFoundError, FSDPMigrateError
from fsdp_migrate.findings import Finding, make_finding
from fsdp_migrate.sharding.outlines import outline_model
from fsdp_migrate.sharding.prepare import fsdp1_arguments


if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from fsdp_migrate.checkpoint_convert.manifest.parameter_map import ParameterMap
    from fsdp_migrate.checkpoint_convert.storage.folders import Location
    from fsdp_migrate.loading.peers import Peers
    from fsdp_migrate.loading.wanted import Wanted


LeftOut = Literal["", "optimizers", "all but models"]
"""What of a checkpoint is not opened."""


@dataclass(slots=True)
class Opened:
    """A checkpoint that is open: here, or on the rank that sends.

    Attributes:
        catalogue: What it offers; None where another rank reads.
        sender: The rank that reads for all; None where each reads for itself.
        findings: What there is to say about that.
    """

    catalogue: Catalogue | None
    sender: int | None
    findings: tuple[Finding, ...] = ()

    def close(self) -> None:
        """Close what is open."""
        if self.catalogue is not None:
            self.catalogue.close()


def open_checkpoint(
    path: Location,
    peers: Peers,
    wanted: Wanted,
    model: nn.Module,
    broadcast: bool | str,
    *,
    left_out: LeftOut,
    renames: Sequence[str],
    map: str | ParameterMap | None,
    options: SourceOptions | None,
    part: str | None,
) -> Opened:
    """Open a checkpoint on the ranks that are to read it; a collective call.

    Raises:
        CheckpointError: This rank cannot, in the words of ``convert``.
        CheckpointMismatchError: The ranks that see it do not see the same; on every rank.
        RankError: Another rank cannot.
    """
    url = os.fspath(path)
    found: list[Catalogue] = []
    absent: list[CheckpointNotFoundError] = []

    def work() -> None:
        try:
            # With a map it is another model than that which saved, and says nothing of its numbers and units.
            own = None if map is not None else _outline(model, wanted)
            opened = Catalogue(
                path,
                weights_only=left_out == "all but models",
                without_optimizer=left_out == "optimizers",
                renames=renames,
                map=map,
                options=replace(options or SourceOptions(model=own), part=part or "", side_parts=True),
                holds_to_model=False,
            )
            found.append(opened)
        except CheckpointNotFoundError as error:
            if broadcast is False:
                raise
            absent.append(error)

    try:
        peers.together(work, "cannot load the checkpoint, so no rank does")
        seen = peers.exchange(None if absent else found[0].seen)
        if broadcast is not True:
            # Also where some see nothing, such as all but one rank of each node: whose files are read must
            # not depend on who reads them.
            _refuse_unlike(url, peers, seen)
    except BaseException:
        for one in found:
            one.close()
        raise
    blind = [rank for rank, what in zip(peers.ranks, seen, strict=True) if what is None]
    if len(blind) == len(seen):
        raise absent[0]
    if not blind and broadcast is not True:
        return Opened(found[0], None)
    opened = Opened(found[0] if found else None, next(rank for rank in peers.ranks if rank not in blind))
    if peers.rank != opened.sender:
        opened.close()
        opened.catalogue = None
    why = f"the ranks {blind[:16]} do not see it" if blind else "`broadcast=True`"
    finding = make_finding("FM437", url, f"{why}: rank {opened.sender} reads, and sends to all.")
    opened.findings = (finding,)
    return opened


def _refuse_unlike(path: str, peers: Peers, seen: Sequence[str | None]) -> None:
    """Check that all ranks that see something see the same."""
    said = zip(peers.ranks, seen, strict=True)
    refuse_unlike(
        path,
        {rank: what for rank, what in said if what is not None},
        "Give all ranks the same files, or pass `broadcast=True`: then one rank reads for all.",
    )


def _outline(model: nn.Module, wanted: Wanted) -> ModelOutline:
    """Describe the model as far as reading needs it; flat parameters need FSDP1's arguments as well."""
    found = ModelOutline(
        {every[0]: tuple(param.shape) for param, every in wanted.names.items()},
        aliases={alias: every[0] for every in wanted.names.values() for alias in every[1:]},
        trainable=tuple(every[0] for param, every in wanted.names.items() if param.requires_grad),
        groups=tuple(tuple(group) for group in wanted.groups) if wanted.optimizers else None,
    )
    prepared = fsdp1_arguments(model)
    if prepared is None:
        return found
    try:
        flat = outline_model(*prepared)
    except FSDPMigrateError:
        return found  # what needs more than this says so itself
    return replace(found, units=flat.units, numbered=flat.numbered, sharding=flat.sharding)
