"""What of FSDP1 differs where gradients wait for a reduction: said when a model first lets them wait."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch.distributed as dist
from torch import nn

from fsdp_migrate.mapping import added_up_in


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.torch_compat.param_groups import ParameterGroup


logger = logging.getLogger(__name__)

_told: WeakSet[nn.Module] = WeakSet()


def tell_where_gradients_add_up(model: nn.Module, groups: Iterable[ParameterGroup]) -> None:
    """Log FM022, once for a model and on the first of its ranks, if its gradients wait in another dtype."""
    every = list(groups)
    if model in _told or not every or dist.get_rank() != every[0].ranks[0]:
        return
    _told.add(model)
    for param_dtype, reduce_dtype in sorted(set().union(*(group.dtypes_of_gradients for group in every))):
        if param_dtype != reduce_dtype:
            logger.warning("FM022 mixed_precision.reduce_dtype: %s", added_up_in(param_dtype, reduce_dtype))
