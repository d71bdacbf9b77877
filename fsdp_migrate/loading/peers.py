"""The ranks that load together: all load, or none does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist
from torch import nn

from fsdp_migrate.errors import RankError, UnsupportedFeatureError
from fsdp_migrate.sharding.consensus import exchange, share, together
from fsdp_migrate.sharding.structure import structure_fault
from fsdp_migrate.torch_compat.device_meshes import meshes_of


if TYPE_CHECKING:
    from collections.abc import Callable

    from fsdp_migrate.sharding.consensus import Groups


T = TypeVar("T")


class Peers:
    """The ranks over which a model is sharded, or all of them; a process without a group is alone."""

    def __init__(self, model: object) -> None:
        self.is_alone = not dist.is_initialized()
        self.rank = 0 if self.is_alone else dist.get_rank()
        # What is no model, or none that can be walked, is told to all ranks, later.
        known = model.parameters() if isinstance(model, nn.Module) and structure_fault(model) is None else ()
        groups = [mesh.get_group(dim) for mesh in meshes_of(known) for dim in range(mesh.ndim)]
        self._groups: Groups = groups or [None]
        self.ranks: list[int] = [0] if self.is_alone else exchange(self.rank, self._groups)

    def one_group(self) -> dist.ProcessGroup | None:
        """Return the group of all of these ranks; None is that of all ranks there are.

        Raises:
            UnsupportedFeatureError: They have no group in common.
        """
        if len(self.ranks) == dist.get_world_size():
            return None
        if len(self._groups) == 1:
            return self._groups[0]
        msg = (
            f"The ranks {self.ranks} have no process group of their own, so that none can send the others "
            "what it reads. Put the checkpoint where every rank sees it."
        )
        raise UnsupportedFeatureError(
            msg, feature="sending within a part of the ranks on several mesh dimensions"
        )

    def exchange(self, own: T) -> list[T]:
        """Return what every rank says, in the order of the ranks."""
        return [own] if self.is_alone else exchange(own, self._groups)

    def together(self, work: Callable[[], None], where: str) -> None:
        """Do what may fail on this rank alone; if it does, it fails on every rank.

        Raises:
            Exception: This rank's own error, if it has one.
            RankError: Another rank has one; it says which, and why.
        """
        if self.is_alone:
            work()
        else:
            together(work, self._groups, where, RankError)

    def share(self, make: Callable[[], T], sender: int, where: str) -> T:
        """Return on every rank what one of them makes.

        Raises:
            RankError: It could not be made.
        """
        return make() if self.is_alone else share(make, self._groups, sender, where, RankError)
