"""A channel between the ranks of a sharded model, apart from those on which FSDP2 communicates."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from fsdp_migrate.errors import ModelError
from fsdp_migrate.torch_compat.param_groups import parameter_groups


if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torch import nn

    from fsdp_migrate.torch_compat.param_groups import ParameterGroup


_channels: WeakKeyDictionary[nn.Module, RankChannel] = WeakKeyDictionary()


class RankChannel:
    """Lets the ranks of a model's largest mesh agree on numbers, and tell each other texts."""

    def __init__(self, groups: Sequence[ParameterGroup]) -> None:
        ranks = max((group.ranks for group in groups), key=len)
        for group in groups:
            if not set(group.ranks) <= set(ranks):
                msg = (
                    f"The unit `{group.name}` is sharded over the ranks {list(group.ranks)} and another over "
                    f"{list(ranks)}: one must hold the other, so that all of a model's ranks can agree."
                )
                raise ModelError(msg)
        # On the CPU an answer is known without waiting for what the accelerator still has to do.
        has_gloo = dist.is_gloo_available()
        self.ranks = ranks
        self.device = torch.device("cpu" if has_gloo else groups[0].device_type)
        # Otherwise a call of all ranks that there are, and some may have another model.
        self.group = dist.new_group(
            list(ranks), backend="gloo" if has_gloo else None, use_local_synchronization=True
        )

    def maximum(self, numbers: Sequence[int]) -> list[int]:
        """Return the maximum over the ranks of each of the numbers, which must be equally many."""
        votes = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        dist.all_reduce(votes, dist.ReduceOp.MAX, group=self.group)
        result: list[int] = votes.tolist()
        return result

    def exchange(self, own: str | None) -> dict[int, str]:
        """Return what each rank that has something to say says."""
        said: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(said, own, group=self.group)
        return {rank: text for rank, text in zip(self.ranks, said, strict=True) if text is not None}


def channel_of(model: nn.Module) -> RankChannel:
    """Return the model's channel; it is made by the first call, which is a collective call of its ranks.

    Raises:
        ModelError: The model holds no unit of FSDP2.
    """
    if model not in _channels:
        groups = parameter_groups(model)
        if not groups and isinstance(model, FSDPModule):
            msg = (
                f"`{type(model).__name__}` has no parameters, and so nothing to communicate. Iterate over "
                "the parts themselves."
            )
            raise ModelError(msg)
        if not groups:
            msg = (
                f"`{type(model).__name__}` holds no unit of FSDP2. Shard it by prepare_fully_shard or "
                "fully_shard first."
            )
            raise ModelError(msg)
        _channels[model] = RankChannel(groups)
    return _channels[model]


def ranks_by_text(texts: dict[int, str]) -> str:
    """Return what ranks say, those that say the same together: ``rank 0: ...; ranks 1, 2: ...``."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks_of.setdefault(text, []).append(rank)
    return "; ".join(
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}: {text}"
        for text, ranks in ranks_of.items()
    )
