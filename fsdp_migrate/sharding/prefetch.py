"""FSDP1's ``forward_prefetch``: units start the next one's all-gather, in the order of the first forward."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.distributed.fsdp import FSDPModule
    from torch.utils.hooks import RemovableHandle


class ForwardPrefetch:
    """Records the order in which units run in the root's first forward, and then chains them.

    FSDP1 prefetches from the second iteration on, in the order that it recorded in the first
    (``_exec_order_utils._ExecOrderData``). A unit that runs several times is chained by its first run. The
    hooks that record go away after the first forward that ends.
    """

    def __init__(self, root: nn.Module, units: Iterable[FSDPModule]) -> None:
        self._order: dict[FSDPModule, None] = {}
        self._handles: list[RemovableHandle] = [
            unit.register_forward_pre_hook(self._record)  # type: ignore[attr-defined]
            for unit in units
        ]
        self._handles.append(root.register_forward_hook(self._chain))

    def _record(self, module: FSDPModule, args: Any) -> None:
        del args
        self._order.setdefault(module)

    def _chain(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args, output
        order = list(self._order)
        for unit, following in itertools.pairwise(order):
            unit.set_modules_to_forward_prefetch([following])
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
